// Package drain evicts the pods of a node and waits for their volumes.
//
// Each call of Drain looks at the pods, starts the evictions that may start now, and reports
// what is awaited. It blocks for one short request only; see below. What a Drainer remembers (attempts, waits for volumes) may
// be lost: a restart begins the waits again, but for volumes of pods that are gone. The caller says
// when the drain is forced.
//
// # Pods
//
// All pods of the node leave, apart from mirror pods and those of DaemonSets. Finished pods
// count as pods without volumes. Pods without claims leave at the same time. Pods with claims
// leave by priority, highest first, one after another (Serial) or at the same time unless they
// share a volume (Independent). The next one leaves when the volumes of the last one are
// detached from the node and attached to another, or when the time for that is over. Volumes
// that several pods of the node use, or that may be attached to several nodes, are not awaited.
//
// A PodDisruptionBudget is ignored only when the drain is forced, or when a pod's evictions were
// refused too often. The Report says so.
//
// # Events and caches
//
// A Report's Wait is for time alone. [Events] bring all other passes, together with
// Options.Wake. The cache must have the indexes of [AddIndexes], may hold what [StripPod] leaves
// of Pods, and must be complete: pods that it does not show count as gone. As the cache may be older
// than the cordon, the API server is asked, once for a drain, whether it has no pods either. Only
// versions of objects of one kind can be compared, so that the version of the Node does not tell.
package drain

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Defaults, which are those of MCM.
const (
	// DefaultDetachTimeout is the default of Options.DetachTimeout.
	DefaultDetachTimeout = 2 * time.Minute
	// DefaultReattachTimeout is the default of Options.ReattachTimeout.
	DefaultReattachTimeout = 90 * time.Second
)

// Strategy is the order in which pods with volumes leave.
type Strategy string

const (
	// Serial evicts one after another, by priority, as MCM does.
	Serial Strategy = "serial"
	// Independent evicts those that share no volumes at the same time.
	Independent Strategy = "independent"
)

// Options configure a Drainer.
type Options struct {
	// Client of the target cluster, with a cache that has the indexes of AddIndexes. Required.
	Client client.Client
	// Evictor evicts pods. Required.
	Evictor Evictor
	// Run starts a task, or returns false if it never will. It must not block. Required.
	Run func(task func(ctx context.Context)) bool
	// Wake asks for another pass over a Machine when a task of it has ended. Required.
	Wake func(machine types.NamespacedName)
	// Clock is required.
	Clock clock.PassiveClock
	// Strategy defaults to Serial.
	Strategy Strategy
	// DetachTimeout limits the detachment of a pod's volumes, beyond its grace period. Zero
	// means DefaultDetachTimeout, a negative value none at all.
	DetachTimeout time.Duration
	// ReattachTimeout limits their attachment to another node. Zero means
	// DefaultReattachTimeout, a negative value none at all.
	ReattachTimeout time.Duration
	// Identify returns the ID of a volume at a Machine's provider, which is the end of the
	// volume's name in a node's status.volumesAttached. The detachment of a volume without one is
	// not awaited. Pods with a pending volume stay until the provider's answer wakes the caller.
	// It must not block nor change the volume. An error ends the pass. Required.
	Identify func(ctx context.Context, machine types.NamespacedName, pv *corev1.PersistentVolume) (id string, pending bool, err error)
}

// Request asks for the drain of a node. All of it but Machine may change between passes.
type Request struct {
	// Machine identifies the drain.
	Machine types.NamespacedName
	// Node is the name of the Machine's node, which is cordoned.
	Node string
	// Since is when the drain began, or began anew after an outage. While nobody can drain it is
	// now. Attempts from before do not count, and waits for volumes begin there at the earliest.
	Since time.Time
	// Timeout is the time after which the caller forces the drain.
	Timeout time.Duration
	// MaxEvictRetries is how often a refused eviction is tried again, every 20 s and within
	// Timeout, until the pod is deleted by force.
	MaxEvictRetries int32
	// Force is why the drain is forced; see ForceFor.
	Force Force
}

// Interface is the part of Drainer that its callers use, so that a decorator can measure drains.
type Interface interface {
	// Drain takes the drain of a node one pass further. It returns an error if the cache cannot be read. The Report has
	// the problems of Pods.
	Drain(ctx context.Context, req Request) (Report, error)
	// DeleteAttachments deletes the VolumeAttachments of a node after a forced drain. It reports whether all of them are
	// being deleted, or the node is gone.
	DeleteAttachments(ctx context.Context, node string) (done bool, err error)
	// Awaiting returns the Machines whose drains wait for a volume.
	Awaiting(persistentVolume string) []types.NamespacedName
	// Refused returns the Machines of whose Pods in a namespace an eviction was refused.
	Refused(namespace string) []types.NamespacedName
	// Forget drops everything that is remembered of a Machine's drain.
	Forget(machine types.NamespacedName)
}

// Drainer drains nodes. Make one with New. Workers may use it at the same time for different
// Machines.
type Drainer struct {
	Options
	mu      sync.Mutex
	ledgers map[types.NamespacedName]*ledger
	census  census
}

// New makes a Drainer.
func New(opts Options) *Drainer {
	if opts.Strategy == "" {
		opts.Strategy = Serial
	}
	opts.DetachTimeout = max(0, cmp.Or(opts.DetachTimeout, DefaultDetachTimeout))
	opts.ReattachTimeout = max(0, cmp.Or(opts.ReattachTimeout, DefaultReattachTimeout))
	return &Drainer{Options: opts, ledgers: map[types.NamespacedName]*ledger{}}
}

// Drain takes the drain of a node one pass further. An error means that the cache could not be
// read; problems of pods are in the Report.
func (d *Drainer) Drain(ctx context.Context, req Request) (Report, error) {
	l, before := d.ledgerOf(req)
	f, err := d.gather(ctx, req, before)
	if err != nil {
		return Report{}, err
	}
	if f == nil {
		return Report{Done: true, Force: req.Force, NodeGone: true}, nil
	}
	r := d.rules(req)
	d.mu.Lock()
	ops := plan(*f, r, l)
	made := report(*f, r, l, ops)
	d.mu.Unlock()
	d.apply(req.Machine, l, ops)
	switch {
	case made.Force != NotForced:
		l.cordoned = f.now // at the latest by the next pass, if that is not forced
	case made.Done:
		d.confirm(ctx, l, &made)
	}
	return made, nil
}

func (d *Drainer) ledgerOf(req Request) (*ledger, known) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.ledgers[req.Machine]
	if l == nil || l.node != req.Node {
		l = newLedger(req.Node, d.Clock.Now())
		d.ledgers[req.Machine] = l
	}
	return l, l.known()
}

func (d *Drainer) rules(req Request) rules {
	return rules{
		strategy: d.Strategy, detach: d.DetachTimeout, reattach: d.ReattachTimeout,
		retries: max(0, min(int(req.MaxEvictRetries), int(req.Timeout/evictionInterval))),
		timeout: req.Timeout, since: req.Since, force: req.Force,
	}
}

// Forget drops what is remembered of a Machine's drain.
func (d *Drainer) Forget(machine types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.ledgers, machine)
}

// Awaiting returns the Machines whose drains wait for the volume to be detached, or attached to
// another node.
func (d *Drainer) Awaiting(persistentVolume string) []types.NamespacedName {
	return d.machines(func(p *progress) bool {
		return !p.settled && slices.ContainsFunc(p.awaited, func(a awaited) bool { return a.volume == persistentVolume })
	})
}

// Refused returns the Machines whose drains were refused an eviction in the namespace.
func (d *Drainer) Refused(namespace string) []types.NamespacedName {
	return d.machines(func(p *progress) bool { return p.refused && p.key.Namespace == namespace })
}

func (d *Drainer) machines(concerned func(*progress) bool) []types.NamespacedName {
	d.mu.Lock()
	defer d.mu.Unlock()
	var found []types.NamespacedName
	for machine, l := range d.ledgers {
		for _, p := range l.pods {
			if concerned(p) {
				found = append(found, machine)
				break
			}
		}
	}
	slices.SortFunc(found, compareKeys)
	return found
}

func compareKeys(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }

// Force is why a drain ignores PodDisruptionBudgets and waits for nothing.
type Force string

const (
	// NotForced is the zero value.
	NotForced Force = ""
	// ForceRequested means that a label of the Machine forces the drain.
	ForceRequested Force = "it was asked for"
	// ForceNotReady means that the kubelet is not expected to end the pods.
	ForceNotReady Force = "the node has not been Ready for over 5 minutes"
	// ForceReadonlyFilesystem is a condition of node-problem-detector.
	ForceReadonlyFilesystem Force = "the node's filesystem has been read-only for over 5 minutes"
	// ForceDeadline means that the timeout has passed.
	ForceDeadline Force = "the drain timeout has passed"
)

// lostAfter is how long such a condition must have lasted.
const lostAfter = 5 * time.Minute

const readonlyFilesystem = "ReadonlyFilesystem"

// ForceFor returns why a drain has to be forced: because it is requested, or because the node
// has had a Ready condition that is not True, or a ReadonlyFilesystem one that is not False, for
// five minutes. Absent conditions force nothing.
func ForceFor(requested bool, conditions []corev1.NodeCondition, now time.Time) Force {
	if requested {
		return ForceRequested
	}
	for i := range conditions {
		condition := &conditions[i]
		if now.Sub(condition.LastTransitionTime.Time) <= lostAfter {
			continue
		}
		switch {
		case condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue:
			return ForceNotReady
		case condition.Type == readonlyFilesystem && condition.Status != corev1.ConditionFalse:
			return ForceReadonlyFilesystem
		}
	}
	return NotForced
}

// ForceDue returns after how long ForceFor changes without a change of the conditions; zero if
// never.
func ForceDue(conditions []corev1.NodeCondition, now time.Time) time.Duration {
	var due time.Duration
	for i := range conditions {
		at := conditions[i].LastTransitionTime.Add(lostAfter + time.Second)
		if ForceFor(false, conditions[i:i+1], at) == NotForced || !at.After(now) {
			continue
		}
		if left := at.Sub(now); due == 0 || left < due {
			due = left
		}
	}
	return due
}
