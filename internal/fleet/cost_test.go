package fleet

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// Sizes of the clusters of TestFleet_CostOfCluster.
const (
	costMachines = 20
	costPods     = 30 // of each node
	costImages   = 50 // of each node, the default of kubelets
)

// maxCost is the memory for a cluster of that size, in bytes: one and a half times what was measured.
const maxCost = 5 << 19

// TestFleet_CostOfCluster checks how much memory each further cluster needs, and that a cluster in which nothing happens
// causes no requests except those for leases and watches. All namespaces have the same target, and their Machines have the
// same nodes, because an API server for each would need more memory than the tests have.
func TestFleet_CostOfCluster(t *testing.T) {
	tier.All(t)
	w := newWorld(t)
	target := env.New(t, env.WithOwn()).Cluster
	requests := &counter{counts: map[string]int{}}
	w.access.Wrap(requests.wrap("seed"))
	cloud, kubelets := sim.NewCloud(sim.CloudOptions{}), sync.Once{}
	nodes, err := client.New(target.Admin, client.Options{Scheme: env.NewScheme()})
	if err != nil {
		t.Fatal(err)
	}
	cfg := w.config()
	cfg.Log = logr.Discard() // the log of a test stays in memory
	cfg.Configure = func(namespace string, _ map[string]string) (Settings, error) {
		settings := w.settings(namespace)
		settings.Open = func(_ context.Context, config *manager.Config) (func(), error) {
			simulated := sim.New(sim.Config{Cloud: cloud, Nodes: nodes})
			kubelets.Do(func() { config.Runnables = append(config.Runnables, simulated) })
			config.Drivers = registry.Only("sim", simulated)
			config.Target.Wrap(requests.wrap("target"))
			return func() {}, nil
		}
		return settings, nil
	}
	w.start(cfg)
	var used []usage
	count := 0
	for _, clusters := range []int{1, 10, 30} {
		for ; count < clusters; count++ {
			w.costs(fmt.Sprintf("c%d", count), target)
		}
		w.awaitRunning(clusters * costMachines)
		if clusters == 1 {
			fillTarget(t, target)
		}
		requests.awaitNone(t)
		used = append(used, usageNow(clusters))
		t.Logf("%+v", used[len(used)-1])
	}
	first, last := used[1], used[2]
	each := (last.memory() - first.memory()) / (last.clusters - first.clusters)
	t.Logf("each further cluster: %d KiB, of which stacks %d KiB, %d goroutines; resident %d KiB",
		each>>10, (last.stacks-first.stacks)/(last.clusters-first.clusters)>>10, (last.goroutines-first.goroutines)/(last.clusters-first.clusters),
		(last.resident-first.resident)/(last.clusters-first.clusters)>>10)
	if each > maxCost {
		t.Errorf("each further cluster needs %d bytes, more than %d", each, maxCost)
	}
}

// costs creates a namespace with Machines whose names are the same in all namespaces.
func (w *world) costs(name string, target *env.Cluster) {
	w.Helper()
	namespace := w.namespace(name, target, 0)
	for i := range costMachines {
		machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("machine-%d", i)}}
		machine.Spec.Class = v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "pool"}
		w.create(machine)
	}
}

// awaitRunning waits until that many Machines of all namespaces are Running.
func (w *world) awaitRunning(want int) {
	w.Helper()
	gomega.NewWithT(w.T).Eventually(func() (running int, err error) {
		list := &v1alpha1.MachineList{}
		err = w.seed.Client.List(w.Context(), list)
		for _, machine := range list.Items {
			if strings.HasPrefix(machine.Namespace, w.seed.Namespace) && machine.Status.CurrentStatus.Phase == v1alpha1.MachineRunning {
				running++
			}
		}
		return running, err
	}).WithTimeout(5 * waitTimeout).WithPolling(time.Second).Should(gomega.Equal(want))
}

// fillTarget gives the nodes of a target the size of real ones.
func fillTarget(t *testing.T, target *env.Cluster) {
	t.Helper()
	nodes := &corev1.NodeList{}
	if err := target.Client.List(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
	var group errgroup.Group
	group.SetLimit(8)
	for i := range nodes.Items {
		node := &nodes.Items[i]
		before := client.StrategicMergeFrom(node.DeepCopy())
		for i := range costImages {
			name := fmt.Sprintf("registry.example.com/a-project/a-component-%d", i)
			node.Status.Images = append(node.Status.Images, corev1.ContainerImage{
				Names: []string{name + "@sha256:" + strings.Repeat("0123456789abcdef", 4), name + ":v1.2.3"}, SizeBytes: 123456789,
			})
		}
		if err := target.Client.Status().Patch(t.Context(), node, before); err != nil {
			t.Fatal(err)
		}
		for i := range costPods {
			group.Go(func() error { return target.Client.Create(t.Context(), podOf(target.Namespace, node.Name, i)) })
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// podOf returns a Pod of a typical size.
func podOf(namespace, node string, number int) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: fmt.Sprintf("an-application-%d-%s", number, node),
		Labels:      map[string]string{"app.kubernetes.io/name": "an-application", "app.kubernetes.io/instance": node, "pod-template-hash": "5d8f9c7b6d"},
		Annotations: map[string]string{"checksum/config": strings.Repeat("0123456789abcdef", 4)},
	}}
	pod.Spec.NodeName = node
	for i := range 2 {
		container := corev1.Container{Name: fmt.Sprintf("container-%d", i), Image: "registry.example.com/a-project/a-component:v1.2.3", Args: []string{"--one=1", "--two=2"}}
		container.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")}
		for i := range 10 {
			container.Env = append(container.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", i), Value: "a value of some length"})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, container)
	}
	return pod
}

// usage is what the process of the test uses. Memory is in bytes.
type usage struct {
	clusters, goroutines, heap, stacks, resident int
}

func (u usage) memory() int { return u.heap + u.stacks }

func usageNow(clusters int) usage {
	runtime.GC()
	debug.FreeOSMemory()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	resident := 0
	if text, err := os.ReadFile("/proc/self/statm"); err == nil {
		_, _ = fmt.Sscan(string(text), new(int), &resident)
	}
	return usage{clusters, runtime.NumGoroutine(), int(stats.HeapAlloc), int(stats.StackInuse), resident * os.Getpagesize()}
}

// counter counts requests except those for leases and watches. Each watch is renewed after 5 to 10 minutes, so many of them
// cause a request every few seconds.
type counter struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *counter) wrap(cluster string) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			if !strings.Contains(request.URL.Path, "/leases") && !request.URL.Query().Has("watch") {
				c.mu.Lock()
				c.counts[cluster+" "+request.Method+" "+request.URL.Path]++
				c.mu.Unlock()
			}
			return next.RoundTrip(request)
		})
	}
}

// take returns the counts since the last call.
func (c *counter) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := c.counts
	c.counts = map[string]int{}
	return counts
}

// awaitNone waits until no requests are sent for a while.
func (c *counter) awaitNone(t *testing.T) {
	t.Helper()
	c.take()
	gomega.NewWithT(t).Eventually(c.take).WithTimeout(2 * waitTimeout).WithPolling(20 * time.Second).Should(gomega.BeEmpty())
}
