package sim

import (
	"context"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// writeTimeout bounds the writes of one job, so that a deletion that waits for
	// them does not wait long.
	writeTimeout = 10 * time.Second
	// retryDelay is the time after which a write that failed is tried again.
	retryDelay = time.Second
)

// Start plays the kubelets: nodes join, flap and renew their leases until ctx ends.
// VMs that have not joined by then do so in the next Start, be it in another
// process. Start returns when the last write has ended, nil unless the cloud could
// not be read. It logs to the logger of ctx. It must not run twice at the same time
// on one driver.
func (d *Driver) Start(ctx context.Context) error {
	if d.config.Nodes == nil {
		<-ctx.Done()
		return nil
	}
	// Listening comes first: what is planned twice is done once.
	d.cloud.listen(d)
	defer d.jobs.clear()
	defer d.orders.clear()
	defer d.cloud.ignore(d)
	vms, err := d.cloud.VMs()
	if err != nil {
		return err
	}
	for _, v := range vms {
		d.planJoin(v)
	}
	d.jobs.run(ctx, d.config.JoinConcurrency)
	return nil
}

// NeedLeaderElection tells a controller-runtime manager to call Start in the leader
// only. VMs need no leader, but two processes would write every node twice.
func (d *Driver) NeedLeaderElection() bool { return true }

// planJoin plans the next thing that the node of v will do by itself.
func (d *Driver) planJoin(v VM) {
	if d.config.Nodes == nil || v.Node == nil {
		return
	}
	if v.Node.Joined {
		d.planLife(v)
		return
	}
	d.jobs.add(d.job(task{"join", d.join}, v, v.Node.JoinAt))
}

// planLife plans what a node does after it joined.
func (d *Driver) planLife(v VM) {
	now := d.cloud.clock.Now()
	if d.config.HeartbeatInterval > 0 {
		d.jobs.add(d.job(task{"heartbeat", d.heartbeat}, v, now))
	}
	if v.Node.FlapInterval > 0 {
		d.planFlap(v, corev1.ConditionFalse)
	}
}

// planReady plans a change of the Ready condition.
func (d *Driver) planReady(v VM, ready corev1.ConditionStatus, after time.Duration) {
	if d.config.Nodes == nil || v.Node == nil {
		return
	}
	at := d.cloud.clock.Now().Add(after)
	order := d.orders.give(at)
	j := d.job(task{"ready", func(ctx context.Context, v VM) error {
		if !v.Node.Joined || !d.orders.take(v.ProviderID, order) {
			return nil
		}
		return d.writer().setReady(ctx, v.NodeName, ready)
	}}, v, at)
	// Several changes may be planned for one node.
	j.key += "/" + strconv.Itoa(order.number)
	d.jobs.add(j)
}

// planLost has the node of a VM that vanished become Unknown.
func (d *Driver) planLost(v VM) {
	if d.config.Nodes == nil || v.Node == nil || d.config.LeaveVanishedNodes {
		return
	}
	d.jobs.add(job{key: "lost/" + v.ProviderID, at: d.cloud.clock.Now(), run: func(ctx context.Context) {
		d.lost(ctx, v)
	}})
}

func (d *Driver) lost(ctx context.Context, v VM) {
	unlock, err := d.writers.lock(ctx, v.NodeName)
	if err != nil {
		return
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err = d.writer().setReady(ctx, v.NodeName, corev1.ConditionUnknown)
	if err != nil && !apierrors.IsNotFound(err) {
		logr.FromContextOrDiscard(ctx).Error(err, "Marking the node of a vanished VM failed", "node", v.NodeName)
	}
}

// task is what a job does for a VM as it is then, and its name in logs.
type task struct {
	kind  string
	write func(context.Context, VM) error
}

// job makes a job that writes the node of v, if v exists then. A write that fails is
// tried again, one that finds no node is given up: nobody re-creates a node that was
// deleted, except a kubelet that starts anew.
func (d *Driver) job(t task, v VM, at time.Time) job {
	j := job{key: t.kind + "/" + v.ProviderID, at: at}
	j.run = func(ctx context.Context) {
		err := d.write(ctx, v, t.write)
		if err == nil || apierrors.IsNotFound(err) {
			return
		}
		if ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "Writing a simulated node failed", "node", v.NodeName, "what", t.kind)
		}
		again := j
		again.at = d.cloud.clock.Now().Add(retryDelay)
		d.jobs.add(again)
	}
	return j
}

// write calls f with the VM as it is now, while nobody else writes its node, and not
// at all if it does not run any more.
func (d *Driver) write(ctx context.Context, v VM, f func(context.Context, VM) error) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	unlock, err := d.writers.lock(ctx, v.NodeName)
	if err != nil {
		return err
	}
	defer unlock()
	now, runs, err := d.cloud.running(v.ProviderID)
	if err != nil || !runs {
		return err
	}
	return f(ctx, now)
}

// join registers a node and reports its status.
func (d *Driver) join(ctx context.Context, v VM) error {
	if v.Node.Joined {
		// Start and CreateMachine have both planned it.
		return nil
	}
	ready := corev1.ConditionTrue
	if v.Node.NotReady {
		ready = corev1.ConditionFalse
	}
	w := d.writer()
	if err := w.register(ctx, v); err != nil {
		return err
	}
	if err := w.report(ctx, v, ready); err != nil {
		return err
	}
	v, exists, err := d.cloud.change(v.ProviderID, func(v *VM) { v.Node.Joined = true })
	if err != nil {
		return err
	}
	if exists {
		d.planLife(v)
	}
	return nil
}

// heartbeat renews the lease of a node and plans the next time.
func (d *Driver) heartbeat(ctx context.Context, v VM) error {
	interval := d.config.HeartbeatInterval
	err := d.writer().renew(ctx, v.NodeName, interval)
	if err == nil {
		d.jobs.add(d.job(task{"heartbeat", d.heartbeat}, v, d.cloud.clock.Now().Add(interval)))
	}
	return err
}

// planFlap plans the next change of a node that flaps.
func (d *Driver) planFlap(v VM, ready corev1.ConditionStatus) {
	at := d.cloud.clock.Now().Add(v.Node.FlapInterval)
	d.jobs.add(d.job(task{"flap", func(ctx context.Context, v VM) error {
		if err := d.writer().setReady(ctx, v.NodeName, ready); err != nil {
			return err
		}
		next := corev1.ConditionTrue
		if ready == corev1.ConditionTrue {
			next = corev1.ConditionFalse
		}
		d.planFlap(v, next)
		return nil
	}}, v, at))
}

func (d *Driver) writer() nodeWriter {
	return nodeWriter{client: d.config.Nodes, now: d.cloud.clock.Now}
}
