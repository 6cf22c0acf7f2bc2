package target_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/internal/reconcile/target"
	"github.com/millwright-dev/millwright/test/support/tier"
)

const podByNode = "pod.node"

// newDemanding returns a Cluster that caches Pods on demand.
func newDemanding(t *testing.T, s *server, linger time.Duration) *target.Cluster {
	t.Helper()
	c, err := target.New(&rest.Config{Host: s.URL}, target.Options{
		Scheme: scheme.Scheme, Kinds: []client.Object{&corev1.Pod{}}, Linger: linger,
		Index: func(ctx context.Context, indexer client.FieldIndexer) error {
			return indexer.IndexField(ctx, &corev1.Pod{}, podByNode, func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} })
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// podsOf returns the names of the Pods of node-1 in the cache.
func podsOf(ctx context.Context, c *target.Cluster) (names []string, err error) {
	pods := &corev1.PodList{}
	err = c.Client().List(ctx, pods, client.MatchingFields{podByNode: "node-1"})
	for _, pod := range pods.Items {
		names = append(names, pod.Name)
	}
	return names, err
}

var user = types.NamespacedName{Namespace: "shop", Name: "machine-1"}

// TestCluster_CachesKindsWhileTheyAreUsed checks that Pods are listed only when they are used, cannot be read before they are
// listed completely, and are listed again after they were not used for a while.
func TestCluster_CachesKindsWhileTheyAreUsed(t *testing.T) {
	g := gomega.NewWithT(t)
	s := newServer(t)
	s.open.Store(true)
	c := newDemanding(t, s, time.Second)
	if filled, problem := c.Use(user, nil); filled || problem != nil {
		t.Errorf("before the start: filled %v, %v", filled, problem)
	}
	run(t, c)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	if err := c.Watch(&corev1.Pod{}, &handler.EnqueueRequestForObject{}).Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	g.Eventually(c.Ready).WithTimeout(waitTimeout).Should(gomega.BeTrue())
	if lists := s.podLists.Load(); lists != 0 {
		t.Errorf("%d lists of Pods before they were used", lists)
	}
	listed := map[string]bool{}
	for range 2 {
		if pods, err := podsOf(t.Context(), c); err == nil {
			t.Fatalf("read %v before they were used", pods)
		}
		woken := make(chan struct{}, 1)
		if filled, _ := c.Use(user, func() { woken <- struct{}{} }); filled {
			t.Error("filled without a list")
		}
		var pods []string
		g.Eventually(func() (err error) {
			c.Use(user, nil)
			pods, err = podsOf(t.Context(), c)
			return err
		}).WithTimeout(waitTimeout).Should(gomega.Succeed())
		g.Eventually(woken).WithTimeout(waitTimeout).Should(gomega.Receive())
		if len(pods) != 1 || listed[pods[0]] {
			t.Errorf("read %v, after %v was read earlier", pods, listed)
		}
		listed[pods[0]] = true
		g.Eventually(func() string {
			request, _ := queue.Get()
			queue.Done(request)
			return request.Name
		}).WithTimeout(waitTimeout).Should(gomega.Equal(pods[0]), "the event arrives")
		g.Eventually(func() error { _, err := podsOf(t.Context(), c); return err }).WithTimeout(waitTimeout).ShouldNot(gomega.Succeed())
		g.Eventually(s.podWatches.Load).WithTimeout(waitTimeout).Should(gomega.BeZero())
	}
	node := &corev1.Node{}
	if err := c.Client().Get(t.Context(), client.ObjectKey{Name: "node-1"}, node); err != nil {
		t.Errorf("reading a node: %v", err)
	}
}

// TestCluster_ReportsWhyKindsAreNotCached checks that missing permissions for a kind on demand do not affect Nodes, are
// reported, and can be granted later.
func TestCluster_ReportsWhyKindsAreNotCached(t *testing.T) {
	g := gomega.NewWithT(t)
	s := newServer(t)
	s.open.Store(true)
	s.hidden.Store(true)
	c := newDemanding(t, s, time.Hour)
	run(t, c)
	g.Eventually(c.Ready).WithTimeout(waitTimeout).Should(gomega.BeTrue())
	woken := make(chan struct{}, 1)
	g.Eventually(func() error {
		filled, problem := c.Use(user, func() { woken <- struct{}{} })
		if filled {
			t.Error("filled without a list")
		}
		return problem
	}).WithTimeout(waitTimeout).Should(gomega.MatchError(gomega.ContainSubstring("rejected")))
	s.hidden.Store(false)
	g.Eventually(woken).WithTimeout(waitTimeout).Should(gomega.Receive())
	if filled, problem := c.Use(user, nil); !filled || problem != nil {
		t.Errorf("woken, but filled %v, %v", filled, problem)
	}
}

// TestCluster_StoppedCachesLeaveNothing fills and stops the cache many times, and then counts goroutines.
func TestCluster_StoppedCachesLeaveNothing(t *testing.T) {
	tier.All(t)
	g := gomega.NewWithT(t)
	s := newServer(t)
	s.open.Store(true)
	c := newDemanding(t, s, 100*time.Millisecond)
	stop := run(t, c)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	if err := c.Watch(&corev1.Pod{}, &handler.EnqueueRequestForObject{}).Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	g.Eventually(c.Ready).WithTimeout(waitTimeout).Should(gomega.BeTrue())
	cycle := func() {
		g.Eventually(func() bool { filled, _ := c.Use(user, nil); return filled }).WithTimeout(waitTimeout).Should(gomega.BeTrue())
		g.Eventually(func() error { _, err := podsOf(t.Context(), c); return err }).WithTimeout(waitTimeout).ShouldNot(gomega.Succeed())
	}
	cycle()
	g.Eventually(s.podWatches.Load).WithTimeout(waitTimeout).Should(gomega.BeZero())
	before := runtime.NumGoroutine()
	for range 100 {
		cycle()
	}
	// Goroutines of connections and of watches that end come and go.
	g.Eventually(func() int { return runtime.NumGoroutine() - before }).WithTimeout(waitTimeout).Should(gomega.BeNumerically("<", 20), stacks)
	if lists := s.podLists.Load(); lists < 101 {
		t.Errorf("%d lists in 101 cycles", lists)
	}
	c.Use(user, nil)
	if err := stop(); err != nil {
		t.Errorf("Start: %v", err)
	}
	if filled, _ := c.Use(user, nil); filled {
		t.Error("filled after the end")
	}
}

func stacks() string {
	text := make([]byte, 1<<20)
	return string(text[:runtime.Stack(text, true)])
}
