package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// cluster simulates the programs that a drain waits for: kubelets, which terminate evicted pods; the attach-detach
// controller and a CSI driver, which move their volumes to another node; and the disruption controller, which counts a
// terminated pod as replaced. All of them react immediately.
type cluster struct {
	client    client.WithWatch
	log       func(string, ...any)
	workloads []workload
	byName    map[string]workload
	nodes     map[string]*attachedVolumes
	budgets   []*budgetState
	byApp     map[string]*budgetState
}

// attachedVolumes are the volumes in the status of a node.
type attachedVolumes struct {
	mu      sync.Mutex
	node    string
	volumes []string
}

// budgetState is a disruption budget, and the terminated pods that its status does not contain yet.
type budgetState struct {
	object *policyv1.PodDisruptionBudget
	// changed has an element if gone may not be empty.
	changed chan struct{}
	mu      sync.Mutex
	gone    []string
}

func newCluster(w *setup, nodes []string) *cluster {
	c := &cluster{
		client: w.client, log: w.log, workloads: w.load.workloads(nodes), byName: map[string]workload{},
		nodes: map[string]*attachedVolumes{}, byApp: map[string]*budgetState{},
	}
	pods := map[string]int{}
	for _, p := range c.workloads {
		c.byName[p.name] = p
		pods[p.app]++
		if c.nodes[p.node] == nil {
			c.nodes[p.node] = &attachedVolumes{node: p.node}
		}
		if p.volume != "" {
			c.nodes[p.node].volumes = append(c.nodes[p.node].volumes, p.volume)
		}
	}
	for _, p := range c.workloads {
		if c.byApp[p.app] == nil {
			b := &budgetState{object: budgetFor(p.app, pods[p.app]), changed: make(chan struct{}, 1)}
			c.byApp[p.app], c.budgets = b, append(c.budgets, b)
		}
	}
	return c
}

// podWatcher watches the metadata of the pods.
type podWatcher struct{ client client.WithWatch }

var podKind = metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}

// WatchWithContext implements cache.WatcherWithContext.
func (w podWatcher) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return w.client.Watch(ctx, &metav1.PartialObjectMetadataList{TypeMeta: podKind}, &client.ListOptions{Raw: &options}, client.InNamespace(namespace), client.HasLabels{workloadLabel})
}

// start runs the programs until stop is called, which waits for their last requests and returns their first error. That
// error also cancels the returned context.
func (c *cluster) start(ctx context.Context) (running context.Context, stop func() error, err error) {
	list := &metav1.PartialObjectMetadataList{TypeMeta: podKind}
	if err := c.client.List(ctx, list, client.InNamespace(namespace), client.Limit(1)); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	pods, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, podWatcher{c.client})
	if err != nil {
		cancel(nil)
		return nil, nil, fmt.Errorf("cannot watch pods: %w", err)
	}
	evicted := make(chan workload, len(c.workloads))
	var programs sync.WaitGroup
	run := func(program func(context.Context) error) {
		programs.Go(func() {
			if err := program(ctx); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	run(func(ctx context.Context) error { return c.watch(ctx, pods, evicted) })
	for range workers {
		run(func(ctx context.Context) error { return c.terminate(ctx, evicted) })
	}
	for _, b := range c.budgets {
		run(func(ctx context.Context) error { return b.replenish(ctx, c.client) })
	}
	return ctx, func() error {
		cancel(errStopped)
		programs.Wait()
		if cause := context.Cause(ctx); !errors.Is(cause, errStopped) {
			return cause
		}
		return nil
	}, nil
}

var errStopped = errors.New("stopped")

// watch sends each evicted pod once.
func (c *cluster) watch(ctx context.Context, pods watch.Interface, evicted chan<- workload) error {
	defer pods.Stop()
	seen := map[types.UID]bool{}
	for {
		select {
		case event, open := <-pods.ResultChan():
			if !open || event.Type == watch.Error {
				return fmt.Errorf("the watch of pods ended: %w", apierrors.FromObject(event.Object))
			}
			pod, ok := event.Object.(*metav1.PartialObjectMetadata)
			if !ok || event.Type != watch.Modified || pod.DeletionTimestamp.IsZero() || seen[pod.UID] {
				continue
			}
			seen[pod.UID] = true
			evicted <- c.byName[pod.Name] // it has capacity for all pods
		case <-ctx.Done():
			return nil
		}
	}
}

// terminate removes evicted pods and then moves their volumes.
func (c *cluster) terminate(ctx context.Context, evicted <-chan workload) error {
	for {
		select {
		case p := <-evicted:
			if err := c.terminatePod(ctx, p); err != nil {
				return fmt.Errorf("cannot terminate pod %s: %w", p.name, err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *cluster) terminatePod(ctx context.Context, p workload) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: p.name}}
	if err := c.client.Delete(ctx, pod, client.GracePeriodSeconds(0)); err != nil {
		return err
	}
	c.byApp[p.app].terminated(p.name)
	if p.volume == "" {
		return nil
	}
	if err := c.client.Delete(ctx, attachment(p.volume, p.node)); err != nil {
		return err
	}
	if err := c.nodes[p.node].detach(ctx, c.client, p.volume); err != nil {
		return err
	}
	return c.attach(ctx, p.volume, elsewhere)
}

// detach removes a volume from the status of its node.
func (a *attachedVolumes) detach(ctx context.Context, c client.Client, volume string) error {
	a.mu.Lock()
	a.volumes = slices.DeleteFunc(a.volumes, func(other string) bool { return other == volume })
	a.mu.Unlock()
	return client.IgnoreNotFound(a.write(ctx, c))
}

// write writes the status of the node.
func (a *attachedVolumes) write(ctx context.Context, c client.Client) error {
	a.mu.Lock() // writes of one node must not overtake each other
	defer a.mu.Unlock()
	volumes := make([]corev1.AttachedVolume, len(a.volumes))
	for i, volume := range a.volumes {
		volumes[i] = attached(volume)
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"volumesAttached": volumes}})
	if err != nil {
		return err
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.node}}
	return c.Status().Patch(ctx, node, client.RawPatch(types.MergePatchType, patch))
}

// terminated records that a pod has terminated.
func (b *budgetState) terminated(pod string) {
	b.mu.Lock()
	b.gone = append(b.gone, pod)
	b.mu.Unlock()
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// replenish updates the status of the budget for terminated pods.
func (b *budgetState) replenish(ctx context.Context, c client.Client) error {
	for {
		select {
		case <-b.changed:
		case <-ctx.Done():
			return nil
		}
		b.mu.Lock()
		gone := b.gone
		b.gone = nil
		b.mu.Unlock()
		err := retry.RetryOnConflict(conflictBackoff, func() error {
			budget := &policyv1.PodDisruptionBudget{}
			if err := c.Get(ctx, client.ObjectKeyFromObject(b.object), budget); err != nil {
				return err
			}
			replaced(budget, gone)
			return c.Status().Update(ctx, budget)
		})
		if err != nil {
			return fmt.Errorf("cannot update the disruption budget %s: %w", b.object.Name, err)
		}
	}
}

// conflictBackoff does not give up before the phase times out, because evictions write the status, too. It has no Cap:
// retries end as soon as the delay reaches that.
var conflictBackoff = wait.Backoff{Duration: 20 * time.Millisecond, Jitter: 1, Steps: math.MaxInt}

// replaced records in the status of a budget that pods have been replaced by healthy ones.
func replaced(budget *policyv1.PodDisruptionBudget, pods []string) {
	for _, name := range pods {
		delete(budget.Status.DisruptedPods, name)
	}
	budget.Status.DisruptionsAllowed = min(budget.Spec.MaxUnavailable.IntVal-int32(len(budget.Status.DisruptedPods)), budget.Status.DisruptionsAllowed+int32(len(pods)))
}
