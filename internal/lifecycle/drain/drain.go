// Package drain evicts the Pods of a node and waits for their volumes.
//
// Each call of Drain looks at the Pods, starts the evictions that may start now, and reports what it waits for.
// It blocks for one short request at most; see below. The state of a Drainer (attempts, waits for volumes) may
// be lost. After a restart, waits begin again, except for volumes of Pods that are already gone. The caller
// decides when the drain is forced.
//
// # Pods
//
// All Pods that were on the node when it was cordoned are evicted, except mirror Pods and Pods of DaemonSets. Pods
// that arrive later are evicted, too, unless they tolerate the cordon or their owner has brought back several: their
// successors would come back again. The drain does not wait for those. Finished Pods count as Pods
// without volumes. Pods without claims are evicted at the same time. Pods with claims are evicted by priority,
// highest first: either one after another (Serial), or at the same time unless they share a volume
// (Independent). The next Pod is evicted when the volumes of the previous one are detached from the node and
// attached to another node, or when the timeout for that expires. The drain does not wait for volumes that
// several Pods of the node use, or that may be attached to several nodes.
//
// A PodDisruptionBudget is ignored only if the drain is forced, or if the eviction of a Pod was refused too
// often. The Report shows this.
//
// # Events and caches
//
// Report.Wait is only for changes that happen without an event. [Events] and Options.Wake trigger all other
// passes. The cache must have the indexes of [AddIndexes] and must be complete, because Pods that it does not
// show count as gone. If Options.Use is set, all kinds but Nodes are cached only while something drains, and a drain waits
// until the cache is complete. For Pods, it needs only what [StripPod] keeps. The cache may be older than the cordon.
// For this reason, each drain asks the API server once to confirm that the node has no Pods. The version of the
// Node is of no use for this, because resource versions can be compared only within one kind.
package drain

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Defaults of the options, as in MCM.
const (
	// DefaultDetachTimeout is the default of Options.DetachTimeout.
	DefaultDetachTimeout = 2 * time.Minute
	// DefaultReattachTimeout is the default of Options.ReattachTimeout.
	DefaultReattachTimeout = 90 * time.Second
)

// Strategy is the order in which Pods with volumes are evicted.
type Strategy string

const (
	// Serial evicts one Pod after another, by priority, as MCM does.
	Serial Strategy = "serial"
	// Independent evicts Pods that share no volumes at the same time.
	Independent Strategy = "independent"
)

// Options configure a Drainer.
type Options struct {
	// Client is a client of the target cluster, with a cache that has the indexes of AddIndexes. Required.
	Client client.Client
	// Use reports whether the cache can be read, apart from Nodes, and ensures that it can be read for longer than UseInterval.
	// If the cache cannot be read yet, Use calls wake, unless it is nil, when it can, and problem is why, if that is known. Use
	// must not block. If Use is nil, the cache can always be read.
	Use func(machine types.NamespacedName, wake func()) (filled bool, problem error)
	// Evictor evicts pods. Required.
	Evictor Evictor
	// Run starts a task, or returns false if it will never run. It must not block. Required.
	Run func(task func(ctx context.Context)) bool
	// Wake triggers another pass for a Machine when one of its tasks has completed. Required.
	Wake func(machine types.NamespacedName)
	// Clock is required.
	Clock clock.PassiveClock
	// Strategy defaults to Serial.
	Strategy Strategy
	// DetachTimeout limits the detachment of a Pod's volumes, in addition to its grace period. Zero means
	// DefaultDetachTimeout. A negative value means that the drain does not wait.
	DetachTimeout time.Duration
	// ReattachTimeout limits the attachment of the volumes to another node. Zero means DefaultReattachTimeout. A
	// negative value means that the drain does not wait.
	ReattachTimeout time.Duration
	// Identify returns the ID of a volume at a Machine's provider, which is the suffix of the volume's name in a
	// node's status.volumesAttached. If the ID is empty, the drain does not wait for the volume's detachment.
	// Pods with a pending volume are not evicted until the provider's response wakes the caller. Identify must
	// not block or change the volume. An error aborts the pass. Required.
	Identify func(ctx context.Context, machine types.NamespacedName, pv *corev1.PersistentVolume) (id string, pending bool, err error)
}

// Request is a request to drain a node. All fields except Machine may change between passes.
type Request struct {
	// Machine identifies the drain.
	Machine types.NamespacedName
	// Node is the name of the Machine's node, which must be cordoned.
	Node string
	// Since is when the drain began, or began again after an outage. While a drain is impossible, it is the
	// current time. Earlier attempts do not count, and waits for volumes begin at this time at the earliest.
	Since time.Time
	// Timeout is the time after which the caller forces the drain.
	Timeout time.Duration
	// MaxEvictRetries is how often a refused eviction is retried before the Pod is deleted forcibly. Retries
	// happen every 20 s and within Timeout.
	MaxEvictRetries int32
	// Force is why the drain is forced; see ForceFor.
	Force Force
}

// Interface is the part of Drainer that its callers use, so that a decorator can measure drains.
type Interface interface {
	// Drain runs one pass of the drain of a node. It returns an error if the cache could not be read. The Report has the
	// problems of Pods.
	Drain(ctx context.Context, req Request) (Report, error)
	// IsEmpty reports whether the cache shows no Pods on the node that a drain would evict. It returns false while the cache
	// cannot be read.
	IsEmpty(ctx context.Context, node string) (bool, error)
	// DeleteAttachments deletes the VolumeAttachments of a node after a forced drain. It reports whether all of them are
	// being deleted, the node is gone, nothing is attached to it, or the cache cannot be read.
	DeleteAttachments(ctx context.Context, node string) (done bool, err error)
	// Awaiting returns the Machines whose drains wait for a volume.
	Awaiting(persistentVolume string) []types.NamespacedName
	// Refused returns the Machines for whose drains an eviction in the namespace was refused.
	Refused(namespace string) []types.NamespacedName
	// Forget drops the state of a Machine's drain.
	Forget(machine types.NamespacedName)
}

// Drainer drains nodes. Create one with New. It can be used concurrently for different Machines.
type Drainer struct {
	Options
	mu     sync.Mutex
	states map[types.NamespacedName]*drainState
	// awaiting has the Machines that wait for volumes, and refused those whose evictions were refused, by namespace.
	awaiting, refused index
	clusterPods       clusterPods
}

// New creates a Drainer.
func New(opts Options) *Drainer {
	if opts.Strategy == "" {
		opts.Strategy = Serial
	}
	opts.DetachTimeout = max(0, cmp.Or(opts.DetachTimeout, DefaultDetachTimeout))
	opts.ReattachTimeout = max(0, cmp.Or(opts.ReattachTimeout, DefaultReattachTimeout))
	return &Drainer{Options: opts, states: map[types.NamespacedName]*drainState{}, awaiting: index{}, refused: index{}}
}

// Drain runs one pass of the drain of a node. It returns an error if the cache could not be read. Problems of
// Pods are in the Report.
func (d *Drainer) Drain(ctx context.Context, req Request) (Report, error) {
	l, before := d.stateOf(req)
	if waits, ok := d.awaitCache(&req, l); !ok {
		return waits, nil
	}
	f, err := d.gather(ctx, req, before)
	if err != nil {
		return Report{}, err
	}
	if f == nil {
		return Report{Done: true, Force: req.Force, NodeGone: true}, nil
	}
	r := d.rules(req)
	d.mu.Lock()
	ops, made := pass(*f, r, l)
	d.reindex(l)
	d.mu.Unlock()
	d.apply(req.Machine, l, ops)
	switch {
	case made.Force != NotForced:
		l.cordoned = f.now // the next pass may not be forced and needs a lower bound
	case made.Done:
		d.confirm(ctx, l, &made)
	}
	d.keepCache(&made)
	return made, nil
}

func (d *Drainer) stateOf(req Request) (*drainState, known) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.states[req.Machine]
	if l == nil || l.node != req.Node {
		d.drop(req.Machine)
		l = newDrainState(req.Node, d.Clock.Now())
		l.machine = req.Machine
		d.states[req.Machine] = l
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

// Forget drops the state of a Machine's drain.
func (d *Drainer) Forget(machine types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(machine)
}

// Awaiting returns the Machines whose drains wait until the volume is detached, or attached to another node.
func (d *Drainer) Awaiting(persistentVolume string) []types.NamespacedName {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.awaiting.machines(persistentVolume)
}

// Refused returns the Machines for whose drains an eviction in the namespace was refused.
func (d *Drainer) Refused(namespace string) []types.NamespacedName {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refused.machines(namespace)
}

func compareKeys(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }

// Force is why a drain ignores PodDisruptionBudgets and does not wait.
type Force string

const (
	// NotForced is the zero value.
	NotForced Force = ""
	// ForceRequested means that a label of the Machine forces the drain.
	ForceRequested Force = "a label of the machine requests it"
	// ForceNotReady means that the kubelet is not expected to terminate the Pods.
	ForceNotReady Force = "the node has not been Ready for over 5 minutes"
	// ForceReadonlyFilesystem is a condition of node-problem-detector.
	ForceReadonlyFilesystem Force = "the node's filesystem has been read-only for over 5 minutes"
	// ForceDeadline means that the drain timeout expired.
	ForceDeadline Force = "the drain timeout has expired"
)

// lostAfter is how long such a condition must persist.
const lostAfter = 5 * time.Minute

const readonlyFilesystem = "ReadonlyFilesystem"

// ForceFor returns why a drain must be forced: because it was requested, or because for five minutes the node's
// Ready condition was not True or its ReadonlyFilesystem condition was not False. Missing conditions do not
// force a drain.
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

// ForceDue returns the time after which the result of ForceFor changes even if the conditions do not change. It
// returns zero if it does not change.
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
