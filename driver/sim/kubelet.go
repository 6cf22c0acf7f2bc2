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
	// writeTimeout limits the writes of one job, because a deletion waits for them.
	writeTimeout = 10 * time.Second
	// retryDelay is the delay before a failed write is retried.
	retryDelay = time.Second
	// writers is the maximum number of nodes that are written at the same time.
	writers = 50
)

// kubelets simulates the kubelets of a cloud's VMs. Planned jobs are executed while run runs.
type kubelets struct {
	cloud *Cloud
	nodes client.Client
	// heartbeatInterval is the interval at which Leases are renewed; zero means never.
	heartbeatInterval time.Duration
	// queue is created by start.
	queue workqueue.TypedDelayingInterface[job]
	// locks are held while a node is written. Several nodes share a lock.
	locks [256]chan struct{}

	mu sync.Mutex
	// scripted contains the last argument of SetNodeReady by provider ID.
	scripted map[string]corev1.ConditionStatus
	// updating contains the start times of updates in progress by provider ID.
	updating map[string]time.Time
}

// job writes the node of a VM.
type job struct {
	kind jobKind
	// vm is the provider ID; node is the name of the node.
	vm, node string
	// ready is the status that a flap job sets.
	ready corev1.ConditionStatus
}

type jobKind string

const (
	join      jobKind = "join"
	heartbeat jobKind = "heartbeat"
	flap      jobKind = "flap"
	// scriptedReady sets the status from the last call of SetNodeReady.
	scriptedReady jobKind = "ready"
	// update lets the agent check its node.
	update jobKind = "update"
	// lost sets the node of a vanished VM to Ready=Unknown.
	lost jobKind = "lost"
	// die makes the VM vanish.
	die jobKind = "die"
)

func newKubelets(cloud *Cloud, config Config) *kubelets {
	k := &kubelets{cloud: cloud, nodes: config.Nodes, heartbeatInterval: config.HeartbeatInterval}
	for i := range k.locks {
		k.locks[i] = make(chan struct{}, 1)
	}
	return k
}

// start drops all planned jobs.
func (k *kubelets) start() {
	k.queue = workqueue.NewTypedDelayingQueue[job]()
	k.scripted, k.updating = map[string]corev1.ConditionStatus{}, map[string]time.Time{}
}

// run executes planned jobs until ctx is done and the last write is complete. It logs to the logger of ctx.
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

// planJoin plans the next independent action of a kubelet.
func (k *kubelets) planJoin(v VM) {
	if v.Node.Joined {
		k.planLife(v)
		return
	}
	k.plan(join, v, time.Until(v.Node.JoinAt))
}

// planLife plans the actions of a kubelet after its node has joined.
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

// planFlap plans the next change of a flapping node.
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

// do executes a job. A failed write is retried, except for a lost VM, because another VM may have its node by then.
// A missing node is not recreated: only a kubelet that starts creates its node.
func (k *kubelets) do(ctx context.Context, j job) {
	err := k.write(ctx, j)
	if err == nil || apierrors.IsNotFound(err) || ctx.Err() != nil {
		return
	}
	logr.FromContextOrDiscard(ctx).Error(err, "Cannot write simulated node", "node", j.node, "what", j.kind)
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
		return nil // the join was planned twice
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
