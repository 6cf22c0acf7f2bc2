package sim

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/driver/sim/internal/dice"
	"github.com/millwright-dev/millwright/driver/sim/internal/nodes"
)

const (
	// writeTimeout limits the writes of one job, since a deletion waits for them.
	writeTimeout = 10 * time.Second
	// retryDelay is the time after which a failed write is tried again.
	retryDelay = time.Second
	// writers is how many nodes are written at the same time.
	writers = 50
)

// kubelets simulate the kubelets of a cloud's VMs. Plans are carried out while run runs.
type kubelets struct {
	cloud *Cloud
	nodes client.Client
	// heartbeatInterval is the time between two renewals of a Lease; zero means none.
	heartbeatInterval time.Duration
	// queue is made by start.
	queue workqueue.TypedDelayingInterface[job]
	// locks are held while a node is written. Nodes share them.
	locks [256]chan struct{}

	mu sync.Mutex
	// scripted is what SetNodeReady was last called with, by provider ID.
	scripted map[string]corev1.ConditionStatus
	// updating is when the agents began the updates under way, by provider ID.
	updating map[string]time.Time
}

// job writes the node of a VM.
type job struct {
	kind jobKind
	// vm is the provider ID, node the name of the node.
	vm, node string
	// ready is what flap sets.
	ready corev1.ConditionStatus
}

type jobKind string

const (
	join      jobKind = "join"
	heartbeat jobKind = "heartbeat"
	flap      jobKind = "flap"
	// scriptedReady sets what SetNodeReady was last called with.
	scriptedReady jobKind = "ready"
	// update has the agent look at its node.
	update jobKind = "update"
	// lost turns the node of a VM that vanished to Ready=Unknown.
	lost jobKind = "lost"
	// die has the VM vanish.
	die jobKind = "die"
)

func newKubelets(cloud *Cloud, config Config) *kubelets {
	k := &kubelets{cloud: cloud, nodes: config.Nodes, heartbeatInterval: config.HeartbeatInterval}
	for i := range k.locks {
		k.locks[i] = make(chan struct{}, 1)
	}
	return k
}

// start forgets what was planned before.
func (k *kubelets) start() {
	k.queue = workqueue.NewTypedDelayingQueue[job]()
	k.scripted, k.updating = map[string]corev1.ConditionStatus{}, map[string]time.Time{}
}

// run carries out what is planned until ctx ends and the last write has ended. It logs to the
// logger of ctx.
func (k *kubelets) run(ctx context.Context) {
	defer context.AfterFunc(ctx, k.queue.ShutDown)()
	var group sync.WaitGroup
	for range writers {
		group.Go(func() {
			for j, ended := k.queue.Get(); !ended; j, ended = k.queue.Get() {
				if ctx.Err() == nil {
					k.do(ctx, j)
				}
				k.queue.Done(j)
			}
		})
	}
	group.Wait()
}

func (k *kubelets) plan(kind jobKind, v VM, after time.Duration) {
	k.queue.AddAfter(job{kind: kind, vm: v.ProviderID, node: v.NodeName}, after)
}

// planJoin plans the next thing that a kubelet does by itself.
func (k *kubelets) planJoin(v VM) {
	if v.Node.Joined {
		k.planLife(v)
		return
	}
	k.plan(join, v, time.Until(v.Node.JoinAt))
}

// planLife plans what a kubelet does after its node joined.
func (k *kubelets) planLife(v VM) {
	if k.heartbeatInterval > 0 {
		k.plan(heartbeat, v, 0)
	}
	if v.Node.FlapInterval > 0 {
		k.planFlap(v, corev1.ConditionFalse)
	}
	if !v.Node.DiesAt.IsZero() {
		k.plan(die, v, time.Until(v.Node.DiesAt))
	}
	k.planUpdate(v)
}

// planFlap plans the next change of a node that flaps.
func (k *kubelets) planFlap(v VM, ready corev1.ConditionStatus) {
	k.queue.AddAfter(job{kind: flap, vm: v.ProviderID, node: v.NodeName, ready: ready}, v.Node.FlapInterval)
}

// planReady plans a change of the Ready condition.
func (k *kubelets) planReady(v VM, ready corev1.ConditionStatus) {
	k.mu.Lock()
	k.scripted[v.ProviderID] = ready
	k.mu.Unlock()
	k.plan(scriptedReady, v, 0)
}

// lock waits until no other job writes a node. The error is that of ctx.
func (k *kubelets) lock(ctx context.Context, node string) (unlock func(), err error) {
	lock := k.locks[dice.Hash(node)%uint64(len(k.locks))]
	select {
	case lock <- struct{}{}:
		return func() { <-lock }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// do carries out a job. A failed write is tried again, but for that of a lost VM: another VM may
// have its node by then. A node that is not found is not created again: only a kubelet that
// starts does that.
func (k *kubelets) do(ctx context.Context, j job) {
	err := k.write(ctx, j)
	if err == nil || apierrors.IsNotFound(err) || ctx.Err() != nil {
		return
	}
	logr.FromContextOrDiscard(ctx).Error(err, "Writing a simulated node failed", "node", j.node, "what", j.kind)
	if j.kind != lost {
		k.queue.AddAfter(j, retryDelay)
	}
}

func (k *kubelets) write(ctx context.Context, j job) error {
	unlock, err := k.lock(ctx, j.node)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	w := nodeWriter{client: k.nodes}
	if j.kind == lost {
		return w.setReady(ctx, j.node, corev1.ConditionUnknown)
	}
	v, exists, err := k.cloud.change(j.vm, nil)
	if err != nil || !exists || !v.GoneAt.IsZero() {
		return err
	}
	switch j.kind {
	case join:
		return k.join(ctx, w, v)
	case heartbeat:
		if err = w.renew(ctx, j.node, k.heartbeatInterval); err == nil {
			k.plan(heartbeat, v, k.heartbeatInterval)
		}
	case flap:
		if err = w.setReady(ctx, j.node, j.ready); err == nil {
			k.planFlap(v, nodes.Opposite(j.ready))
		}
	case update:
		if err = k.update(ctx, w, v); err == nil {
			k.planUpdate(v)
		}
	case die:
		_, err = k.cloud.vanish(func() []VM { return k.cloud.store.get(v.ProviderID) })
	case scriptedReady:
		err = k.setScripted(ctx, w, v)
	}
	return err
}

func (k *kubelets) setScripted(ctx context.Context, w nodeWriter, v VM) error {
	if !v.Node.Joined {
		return nil
	}
	k.mu.Lock()
	ready := k.scripted[v.ProviderID]
	k.mu.Unlock()
	return w.setReady(ctx, v.NodeName, ready)
}

// join registers a node and reports its status.
func (k *kubelets) join(ctx context.Context, w nodeWriter, v VM) error {
	if v.Node.Joined {
		return nil // it was planned twice
	}
	ready := corev1.ConditionTrue
	if v.Node.NotReady {
		ready = corev1.ConditionFalse
	}
	if err := w.register(ctx, v); err != nil {
		return err
	}
	if err := w.report(ctx, v, ready); err != nil {
		return err
	}
	v, exists, err := k.cloud.change(v.ProviderID, func(v *VM) { v.Node.Joined = true })
	if err == nil && exists {
		k.planLife(v)
	}
	return err
}
