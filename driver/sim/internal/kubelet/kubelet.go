// Package kubelet simulates the kubelets of VMs.
package kubelet

import (
	"context"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// writeTimeout limits the writes of one job, since a deletion waits for them.
	writeTimeout = 10 * time.Second
	// retryDelay is the time after which a failed write is tried again.
	retryDelay = time.Second
)

// VM is what a kubelet knows of its VM.
type VM struct {
	// ProviderID identifies the VM.
	ProviderID string
	// NodeName is the name of its node.
	NodeName string
	// Addresses are those of the node.
	Addresses []corev1.NodeAddress
	Plan
}

// Plan says how and when a VM becomes a node. It has the fields of sim.NodePlan.
type Plan struct {
	JoinAt       time.Time
	Joined       bool
	NotReady     bool
	FlapInterval time.Duration
	Labels       map[string]string
	Taints       []corev1.Taint
	Capacity     corev1.ResourceList
}

// Cloud is where the VMs are.
type Cloud interface {
	// Running returns a VM, and false if it does not exist, is being deleted, or never
	// becomes a node.
	Running(providerID string) (VM, bool, error)
	// Joined stores that the node of a VM has joined. It returns the VM, and false if it
	// does not exist.
	Joined(providerID string) (VM, bool, error)
}

// Options configure Kubelets. All fields are required unless they say otherwise.
type Options struct {
	// Nodes writes to the target cluster.
	Nodes client.Client
	// Cloud has the VMs.
	Cloud Cloud
	// Clock is the source of the time.
	Clock clock.Clock
	// HeartbeatInterval is the time between two renewals of a Lease; zero means none.
	HeartbeatInterval time.Duration
	// KeepVanished keeps the nodes of VMs that vanished as they are.
	KeepVanished bool
	// Concurrency is how many nodes are written at a time.
	Concurrency int
}

// Kubelets are the kubelets of all VMs of a cloud. Make them with New. What is planned
// happens while Run runs.
type Kubelets struct {
	Options
	jobs *scheduler
	// writers holds the names of nodes that are being written.
	writers keyedMutex
	// orders keeps scripted changes of Ready in order.
	orders orders
}

// New returns Kubelets.
func New(options Options) *Kubelets {
	return &Kubelets{Options: options, jobs: newScheduler(options.Clock)}
}

// Run carries out what is planned until ctx ends and the last write has ended. It logs to
// the logger of ctx.
func (k *Kubelets) Run(ctx context.Context) {
	k.jobs.run(ctx, k.Concurrency)
}

// Clear drops what is planned.
func (k *Kubelets) Clear() {
	k.orders.clear()
	k.jobs.clear()
}

// Wait returns when no write to a node is under way. The error is that of ctx.
func (k *Kubelets) Wait(ctx context.Context, node string) error {
	unlock, err := k.writers.lock(ctx, node)
	if err == nil {
		unlock()
	}
	return err
}

// PlanJoin plans the next thing that a kubelet does by itself.
func (k *Kubelets) PlanJoin(v VM) {
	if v.Joined {
		k.planLife(v)
		return
	}
	k.jobs.add(k.job(task{"join", k.join}, v, v.JoinAt))
}

// planLife plans what a kubelet does after its node joined.
func (k *Kubelets) planLife(v VM) {
	if k.HeartbeatInterval > 0 {
		k.jobs.add(k.job(task{"heartbeat", k.heartbeat}, v, k.Clock.Now()))
	}
	if v.FlapInterval > 0 {
		k.planFlap(v, corev1.ConditionFalse)
	}
}

// PlanReady plans a change of the Ready condition, unless the node has not joined by then.
func (k *Kubelets) PlanReady(v VM, ready corev1.ConditionStatus, after time.Duration) {
	at := k.Clock.Now().Add(after)
	order := k.orders.give(at)
	j := k.job(task{"ready", func(ctx context.Context, v VM) error {
		if !v.Joined || !k.orders.take(v.ProviderID, order) {
			return nil
		}
		return k.writer().setReady(ctx, v.NodeName, ready)
	}}, v, at)
	// Several changes may be planned for one node.
	j.key += "/" + strconv.Itoa(order.number)
	k.jobs.add(j)
}

// PlanLost plans that the node of a VM that vanished turns to Ready=Unknown.
func (k *Kubelets) PlanLost(v VM) {
	if k.KeepVanished {
		return
	}
	k.jobs.add(job{key: "lost/" + v.ProviderID, at: k.Clock.Now(), run: func(ctx context.Context) {
		err := k.exclusively(ctx, v, func(ctx context.Context) error {
			return k.writer().setReady(ctx, v.NodeName, corev1.ConditionUnknown)
		})
		if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
			logr.FromContextOrDiscard(ctx).Error(err, "Marking the node of a vanished VM failed", "node", v.NodeName)
		}
	}})
}

// task is what a job does for a VM as it is then, and its name in logs.
type task struct {
	kind  string
	write func(context.Context, VM) error
}

// job returns a job that writes the node of v, if v exists then. A failed write is tried
// again. A node that is not found is not created again: only a kubelet that starts does
// that.
func (k *Kubelets) job(t task, v VM, at time.Time) job {
	j := job{key: t.kind + "/" + v.ProviderID, at: at}
	j.run = func(ctx context.Context) {
		err := k.exclusively(ctx, v, func(ctx context.Context) error {
			now, runs, err := k.Cloud.Running(v.ProviderID)
			if err != nil || !runs {
				return err
			}
			return t.write(ctx, now)
		})
		if err == nil || apierrors.IsNotFound(err) {
			return
		}
		if ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "Writing a simulated node failed", "node", v.NodeName, "what", t.kind)
		}
		again := j
		again.at = k.Clock.Now().Add(retryDelay)
		k.jobs.add(again)
	}
	return j
}

// exclusively calls write while nobody else writes the node of v.
func (k *Kubelets) exclusively(ctx context.Context, v VM, write func(context.Context) error) error {
	unlock, err := k.writers.lock(ctx, v.NodeName)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return write(ctx)
}

// join registers a node and reports its status.
func (k *Kubelets) join(ctx context.Context, v VM) error {
	if v.Joined {
		return nil // it was planned twice
	}
	ready := corev1.ConditionTrue
	if v.NotReady {
		ready = corev1.ConditionFalse
	}
	w := k.writer()
	if err := w.register(ctx, v); err != nil {
		return err
	}
	if err := w.report(ctx, v, ready); err != nil {
		return err
	}
	v, exists, err := k.Cloud.Joined(v.ProviderID)
	if err == nil && exists {
		k.planLife(v)
	}
	return err
}

// heartbeat renews the Lease of a node and plans the next renewal.
func (k *Kubelets) heartbeat(ctx context.Context, v VM) error {
	err := k.writer().renew(ctx, v.NodeName, k.HeartbeatInterval)
	if err == nil {
		k.jobs.add(k.job(task{"heartbeat", k.heartbeat}, v, k.Clock.Now().Add(k.HeartbeatInterval)))
	}
	return err
}

// planFlap plans the next change of a node that flaps.
func (k *Kubelets) planFlap(v VM, ready corev1.ConditionStatus) {
	k.jobs.add(k.job(task{"flap", func(ctx context.Context, v VM) error {
		if err := k.writer().setReady(ctx, v.NodeName, ready); err != nil {
			return err
		}
		next := corev1.ConditionTrue
		if ready == corev1.ConditionTrue {
			next = corev1.ConditionFalse
		}
		k.planFlap(v, next)
		return nil
	}}, v, k.Clock.Now().Add(v.FlapInterval)))
}

func (k *Kubelets) writer() nodeWriter { return nodeWriter{client: k.Nodes, now: k.Clock.Now} }
