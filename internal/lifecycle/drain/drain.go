// Package drain empties a node: which pods leave it, in which order, and what is awaited
// in between.
//
// A Drainer is asked once per pass of whoever takes a node away. It looks at the pods
// that are there, starts the evictions that may start now, and says what it waits for.
// It never blocks. What it remembers (attempts, waits for volumes) may be lost at any
// time: a restart begins those waits again, while the deadline, which counts from a time
// that the caller keeps, goes on. Waits for volumes to appear on another node are not
// begun again for pods that are gone.
//
// # Which pods
//
// All pods of the node, apart from mirror pods and those of DaemonSets. Finished pods
// leave too, and count as pods without volumes: nothing of theirs is mounted. Pods
// without claims leave at the same time. Pods with claims leave by priority, highest
// first, one after another (Serial) or at the same time unless they share a volume
// (Independent). The next one leaves when the volumes of the last one are detached from
// the node and attached to another, or when the time for that is over. Volumes that
// several pods of the node use, or that may be attached to several nodes, are not awaited.
//
// A PodDisruptionBudget is gone around only when the drain is forced, when its deadline
// has passed, or when a pod's evictions were refused too often. The Report says so.
//
// # What the caller has to watch
//
// A Report's Wait is for time alone. Everything else has to bring a pass by an event, in
// the target cluster:
//
//   - Pods, by spec.nodeName: [PodChanges]
//   - Nodes, when status.volumesAttached changes: [VolumesDiffer]
//   - VolumeAttachments: those of the node (for [Drainer.DeleteAttachments]), and those of
//     other nodes, which concern whichever drain [Drainer.Awaiting] names
//   - PodDisruptionBudgets, which concern whichever drain [Drainer.Refused] names
//   - the end of evictions, through Options.Wake, and in the control cluster the Machine
//
// PersistentVolumes and claims are read through the cache and need no watch. The cache
// must have the indexes of [AddIndexes], and may keep of a Pod what [StripPod] leaves. It
// must be complete: pods that it does not show are taken for gone.
package drain

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// Strategy is how pods with volumes leave.
type Strategy string

// The strategies.
const (
	// Serial lets one leave after another, by priority. It is what MCM does.
	Serial Strategy = "serial"
	// Independent lets those leave at the same time that share no volumes.
	Independent Strategy = "independent"
)

// Identity is how a provider knows a volume.
type Identity struct {
	// ID is what ends the volume's name in a node's status.volumesAttached. Empty means
	// that its detachment is not awaited.
	ID string
	// Pending tells that the provider has not answered yet. Pods with the volume stay
	// until then; the answer has to bring another pass.
	Pending bool
	// Problem says why there is no ID. Empty if there need not be one, as for a volume
	// that is another provider's.
	Problem string
}

// Options configure a Drainer.
type Options struct {
	// Client of the target cluster. Reads come from a cache that has the indexes of
	// AddIndexes; deletions go to the API server. Required.
	Client client.Client
	// Evictor evicts pods. Required.
	Evictor Evictor
	// Run starts a task, and answers false if it never will. It must not block. Required.
	Run func(task func(ctx context.Context)) bool
	// Wake asks for another pass over a Machine when a task of it has ended. Required.
	Wake func(machine types.NamespacedName)
	// Clock tells the time. Required.
	Clock clock.PassiveClock
	// Strategy is how pods with volumes leave. Empty means Serial.
	Strategy Strategy
	// DetachTimeout is how long the volumes of a pod may take to be detached, beyond its
	// grace period. Zero means DefaultDetachTimeout.
	DetachTimeout time.Duration
	// ReattachTimeout is how long they may then take to be attached to another node. Zero
	// means DefaultReattachTimeout.
	ReattachTimeout time.Duration
	// Identify says how the provider of a Machine knows a volume. It must not block and
	// must not change the volume. Nil means CSIHandle, for all Machines.
	Identify func(machine types.NamespacedName, pv *corev1.PersistentVolume) Identity
}

// CSIHandle identifies volumes of CSI drivers by their handle. Others have no ID.
func CSIHandle(_ types.NamespacedName, pv *corev1.PersistentVolume) Identity {
	if pv.Spec.CSI == nil {
		return Identity{}
	}
	return Identity{ID: pv.Spec.CSI.VolumeHandle}
}

// Request is what is to be drained. Any of it may change from one pass to the next.
type Request struct {
	// Machine is the one whose node it is. Its drains are told apart by it.
	Machine types.NamespacedName
	// Node is the node's name. The caller has cordoned it.
	Node string
	// Since is when the drain began: the Machine's deletionTimestamp.
	Since time.Time
	// Timeout is the time from Since on after which the drain is forced. Zero or less
	// forces it at once.
	Timeout time.Duration
	// MaxEvictRetries is how often an eviction that was refused is tried again, at
	// intervals of 20 s, until the pod is deleted by force. It is never more often than
	// fits in Timeout.
	MaxEvictRetries int32
	// Force says why the drain is forced; NotForced if it is not. See ForceFor.
	Force Force
}

// Drainer drains nodes. Make one with New. It may be used by several workers, for
// different Machines.
type Drainer struct {
	Options
	mu      sync.Mutex
	ledgers map[types.NamespacedName]*ledger
}

// New makes a Drainer.
func New(opts Options) *Drainer {
	if opts.Strategy == "" {
		opts.Strategy = Serial
	}
	if opts.DetachTimeout == 0 {
		opts.DetachTimeout = DefaultDetachTimeout
	}
	if opts.ReattachTimeout == 0 {
		opts.ReattachTimeout = DefaultReattachTimeout
	}
	if opts.Identify == nil {
		opts.Identify = CSIHandle
	}
	return &Drainer{Options: opts, ledgers: map[types.NamespacedName]*ledger{}}
}

// Drain takes the drain of a node one pass further. An error means that the cache could
// not be read; all that goes wrong with pods is in the Report.
func (d *Drainer) Drain(ctx context.Context, req Request) (Report, error) {
	l, before := d.ledgerOf(req)
	f, err := d.gather(ctx, req, before)
	if err != nil {
		return Report{}, err
	}
	if f == nil {
		return Report{Done: true, Force: req.Force, NodeGone: true}, nil
	}
	r := d.rules(req, f.now)
	d.mu.Lock()
	ops := plan(*f, r, l)
	made := report(*f, r, l, ops)
	d.mu.Unlock()
	d.apply(req.Machine, l, ops)
	return made, nil
}

func (d *Drainer) ledgerOf(req Request) (*ledger, known) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.ledgers[req.Machine]
	if l == nil || l.node != req.Node {
		l = newLedger(req.Node)
		d.ledgers[req.Machine] = l
	}
	return l, l.known()
}

// retries is how often an eviction may be refused within the drain's time.
func (req Request) retries() int {
	return max(0, min(int(req.MaxEvictRetries), int(req.Timeout/evictionInterval)))
}

func (d *Drainer) rules(req Request, now time.Time) rules {
	r := rules{
		strategy: d.Strategy, detach: d.DetachTimeout, reattach: d.ReattachTimeout,
		timeout: req.Timeout, retries: req.retries(), deadline: req.Since.Add(req.Timeout), force: req.Force,
	}
	if r.force == NotForced && !now.Before(r.deadline) {
		r.force = ForceDeadline
	}
	return r
}

// Forget drops what is remembered of a Machine's drain. To be called when the Machine is
// gone.
func (d *Drainer) Forget(machine types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.ledgers, machine)
}

// Awaiting names the Machines whose drains wait for the volume to be detached, or to be
// attached to another node. Events of VolumeAttachments concern them.
func (d *Drainer) Awaiting(persistentVolume string) []types.NamespacedName {
	return d.machines(func(p *progress) bool {
		return !p.settled && slices.ContainsFunc(p.awaited, func(a awaited) bool { return a.volume == persistentVolume })
	})
}

// Refused names the Machines whose drains were refused an eviction in the namespace.
// Events of its PodDisruptionBudgets concern them.
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
	slices.SortFunc(found, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	return found
}

func compareNames(a, b metav1.Object) int { return strings.Compare(a.GetName(), b.GetName()) }

// Force says why a drain goes around PodDisruptionBudgets and waits for nothing.
type Force string

// The reasons for a forced drain.
const (
	// NotForced is a normal drain; the zero value.
	NotForced Force = ""
	// ForceRequested is a drain that somebody forces, by a label of the Machine.
	ForceRequested Force = "it was asked for"
	// ForceNotReady is the drain of a node that has not been Ready for too long to
	// expect that it ends its pods.
	ForceNotReady Force = "the node has not been Ready for over 5 minutes"
	// ForceReadonlyFilesystem is the drain of a node that could not write its disk for
	// too long.
	ForceReadonlyFilesystem Force = "the node's filesystem has been read-only for over 5 minutes"
	// ForceDeadline is a drain whose time is over. Drain finds this one out itself.
	ForceDeadline Force = "the drain timeout has passed"
)

// lostAfter is how long a node may be not Ready, or its filesystem read-only, until its
// pods are no longer asked to end.
const lostAfter = 5 * time.Minute

// readonlyFilesystem is the condition type of node-problem-detector.
const readonlyFilesystem = "ReadonlyFilesystem"

// ForceFor reports whether a drain has to be forced, and why. Requested is whether somebody
// asks for it; conditions are those that were recorded of the node. A Ready condition
// that is not True, and a ReadonlyFilesystem one that is not False, force once they are
// older than five minutes; conditions that are not there do not.
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

// ForceDue is the time from now on after which ForceFor may answer otherwise although
// nothing changes; zero if never.
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
