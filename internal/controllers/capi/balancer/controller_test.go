package balancer

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/workqueue"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/loadbalancer"
	"github.com/millwright-dev/millwright/test/support/memnet"
)

// given is a management cluster with a load balancer of the ports 100 to 102.
type given struct {
	*Controller
	t      *testing.T
	client client.Client

	mu      sync.Mutex
	ports   map[int32]*memnet.Network
	refused map[int32]error
	dialed  map[string]bool
	healthy loadbalancer.Health

	limit, connections int
	lock               resourcelock.Interface
	live               client.Reader
	ready              atomic.Bool
}

func newGiven(t *testing.T, objects ...client.Object) *given {
	scheme := runtime.NewScheme()
	core.AddToScheme(scheme, core.V1Beta2)
	if err := infrav1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	g := &given{t: t, ports: map[int32]*memnet.Network{}, refused: map[int32]error{}, dialed: map[string]bool{}}
	g.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&infrav1.MillwrightCluster{}).Build()
	g.start()
	return g
}

// start starts a load balancer, again if one has run.
func (g *given) start() {
	if g.Controller != nil {
		g.Close()
	}
	g.Controller = New(Options{
		Client: g.client, Live: cmp.Or[client.Reader](g.live, g.client), Lock: g.lock, Clock: testingclock.NewFakePassiveClock(time.Unix(1, 0)), Name: "default", Host: "lb.example.com", FirstPort: 100, LastPort: 102,
		Listen: g.listenAt, MaxPerNamespace: g.limit, Ready: func() { g.ready.Store(true) },
		Balancer: loadbalancer.Options{
			Log: slog.New(slog.NewTextHandler(g.t.Output(), nil)), MaxConnections: g.connections,
			Dial: func(_ context.Context, address string) (net.Conn, error) {
				g.mu.Lock()
				defer g.mu.Unlock()
				g.dialed[address] = true
				here, there := net.Pipe()
				_ = there.Close()
				return here, nil
			},
			Check: func(context.Context, net.Conn) (loadbalancer.Health, error) {
				g.mu.Lock()
				defer g.mu.Unlock()
				return g.healthy, nil
			},
		},
	})
	g.t.Cleanup(g.Close)
}

func (g *given) listenAt(port int32) (net.Listener, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.refused[port]; err != nil {
		return nil, err
	}
	g.Controller.mu.Lock()
	defer g.Controller.mu.Unlock()
	for _, e := range g.open {
		if e.port == port {
			return nil, &net.OpError{Op: "listen", Err: syscall.EADDRINUSE}
		}
	}
	g.ports[port] = memnet.New()
	return g.ports[port], nil
}

// reconciles takes passes until nothing is written any more, and returns the object.
func (g *given) reconciles(name string) *infrav1.MillwrightCluster {
	g.t.Helper()
	key := client.ObjectKey{Namespace: "ns", Name: name}
	infra := &infrav1.MillwrightCluster{}
	for range 3 {
		before := infra.ResourceVersion
		if _, err := g.Reconcile(g.t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
			g.t.Fatal(err)
		}
		if err := g.client.Get(g.t.Context(), key, infra); err != nil {
			g.t.Fatal(err)
		}
		if infra.ResourceVersion == before {
			return infra
		}
	}
	g.t.Fatal("it writes and writes")
	return nil
}

// isOpen checks which port a MillwrightCluster has; 0 for none.
func (g *given) isOpen(name string, want int32) {
	g.t.Helper()
	got := int32(0)
	if e := g.find(client.ObjectKey{Namespace: "ns", Name: name}); e != nil {
		got = e.port
	}
	if got != want {
		g.t.Errorf("%s has port %d, want %d", name, got, want)
	}
}

// has checks endpoint and condition.
func (g *given) has(infra *infrav1.MillwrightCluster, want *infrav1.APIEndpoint, reason string) {
	g.t.Helper()
	got := infra.Spec.ControlPlaneEndpoint
	if (got == nil) != (want == nil) || got != nil && *got != *want {
		g.t.Errorf("%s has the endpoint %v, want %v", infra.Name, got, want)
	}
	condition := meta.FindStatusCondition(infra.Status.Conditions, infrav1.ConditionLoadBalancerReady)
	if condition == nil {
		condition = &metav1.Condition{}
	}
	if condition.Reason != reason || (condition.Status == metav1.ConditionTrue) != (reason == infrav1.ReasonForwarding) {
		g.t.Errorf("the condition of %s is %+v, want the reason %s", infra.Name, condition, reason)
	}
}

// wakes starts to note who is woken; it returns their names.
func (g *given) wakes() func() []string {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	g.t.Cleanup(queue.ShutDown)
	if err := g.waker.Start(g.t.Context(), queue); err != nil {
		g.t.Fatal(err)
	}
	woken := func() []string {
		var names []string
		for queue.Len() > 0 {
			request, _ := queue.Get()
			names = append(names, request.Name)
			queue.Done(request)
		}
		slices.Sort(names)
		return names
	}
	woken() // those of before
	return woken
}

func at(port int32) *infrav1.APIEndpoint {
	return &infrav1.APIEndpoint{Host: "lb.example.com", Port: port}
}

// clusterOf is a Cluster with its MillwrightCluster, which asks for the load balancer.
func clusterOf(name string, change ...func(*infrav1.MillwrightCluster, *core.Cluster)) []client.Object {
	infra := &infrav1.MillwrightCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	infra.OwnerReferences = []metav1.OwnerReference{{APIVersion: core.V1Beta2.String(), Kind: core.ClusterKind, Name: name, UID: "u"}}
	infra.Spec.ControlPlaneLoadBalancer = &infrav1.ControlPlaneLoadBalancer{}
	cluster := &core.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	cluster.Spec.InfrastructureRef = core.Reference{APIGroup: infrav1.GroupName, Kind: infrav1.MillwrightClusterKind, Name: name}
	for _, change := range change {
		change(infra, cluster)
	}
	return []client.Object{infra, cluster}
}

// machineOf is a control plane machine of a Cluster.
func machineOf(cluster, name string, addresses ...infrav1.MachineAddress) *infrav1.MillwrightMachine {
	machine := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, Labels: map[string]string{core.LabelCluster: cluster, core.LabelControlPlane: ""},
	}}
	machine.Status.Addresses = addresses
	return machine
}

func TestAPortIsTheEndpoint(t *testing.T) {
	g := newGiven(t, append(clusterOf("a"), clusterOf("b")...)...)
	g.has(g.reconciles("a"), at(100), infrav1.ReasonNoHealthyMachine)
	g.has(g.reconciles("b"), at(101), infrav1.ReasonNoHealthyMachine)
	g.isOpen("a", 100)

	// After a restart everything is as it was, whichever comes first.
	g.start()
	g.has(g.reconciles("b"), at(101), infrav1.ReasonNoHealthyMachine)
	g.has(g.reconciles("a"), at(100), infrav1.ReasonNoHealthyMachine)
	g.isOpen("b", 101)
}

func TestAPortThatAnotherProcessHasIsNotGiven(t *testing.T) {
	g := newGiven(t, clusterOf("a")...)
	g.refused[100] = &net.OpError{Op: "listen", Err: syscall.EADDRINUSE}
	g.has(g.reconciles("a"), at(101), infrav1.ReasonNoHealthyMachine)
	g.refused[101], g.refused[102] = g.refused[100], g.refused[100]
	g.start()
	g.has(g.reconciles("a"), at(101), infrav1.ReasonListenFailed) // the endpoint stays: machines have it
	g.isOpen("a", 0)
	delete(g.refused, 101)
	g.has(g.reconciles("a"), at(101), infrav1.ReasonNoHealthyMachine)
}

func TestNoPortCanBeOpened(t *testing.T) {
	for name, why := range map[string]error{"all are taken": syscall.EADDRINUSE, "no such address": errors.New("cannot assign")} {
		t.Run(name, func(t *testing.T) {
			g := newGiven(t, clusterOf("a")...)
			for port := range int32(3) {
				g.refused[100+port] = why
			}
			g.has(g.reconciles("a"), nil, infrav1.ReasonListenFailed)
		})
	}
}

func TestWhatIsGivenStays(t *testing.T) {
	of := func(port int32) func(*infrav1.MillwrightCluster, *core.Cluster) {
		return func(infra *infrav1.MillwrightCluster, _ *core.Cluster) {
			infra.Spec.ControlPlaneEndpoint = &infrav1.APIEndpoint{Host: "a.example.com", Port: port}
		}
	}
	g := newGiven(t, slices.Concat(clusterOf("a", of(102)), clusterOf("b", of(443)), clusterOf("c", of(102)),
		clusterOf("d", func(_ *infrav1.MillwrightCluster, cluster *core.Cluster) {
			cluster.Spec.ControlPlaneEndpoint = core.Endpoint{Host: "d.example.com", Port: 101}
		}))...)
	g.isGiven("c", 102, infrav1.ReasonPortTaken) // by a, the first by name, as both are as old
	g.isGiven("b", 443, infrav1.ReasonPortNotAllowed)
	g.has(g.reconciles("d"), nil, infrav1.ReasonNoHealthyMachine)
	g.isOpen("d", 101)
}

func (g *given) isGiven(name string, port int32, reason string) {
	g.t.Helper()
	g.has(g.reconciles(name), &infrav1.APIEndpoint{Host: "a.example.com", Port: port}, reason)
	g.isOpen(name, 0)
}

func TestOthersAreLeftAlone(t *testing.T) {
	for name, change := range map[string]func(*infrav1.MillwrightCluster, *core.Cluster){
		"does not ask": func(infra *infrav1.MillwrightCluster, _ *core.Cluster) { infra.Spec.ControlPlaneLoadBalancer = nil },
		"asks another": func(infra *infrav1.MillwrightCluster, _ *core.Cluster) {
			infra.Spec.ControlPlaneLoadBalancer.Name = "other"
		},
		"managed by another": func(infra *infrav1.MillwrightCluster, _ *core.Cluster) {
			infra.Annotations = map[string]string{core.AnnotationManagedBy: ""}
		},
		"another manager's": func(infra *infrav1.MillwrightCluster, _ *core.Cluster) {
			infra.Labels = map[string]string{core.LabelWatchFilter: "theirs"}
		},
		"no owner":            func(infra *infrav1.MillwrightCluster, _ *core.Cluster) { infra.OwnerReferences = nil },
		"paused, no endpoint": func(_ *infrav1.MillwrightCluster, cluster *core.Cluster) { cluster.Spec.Paused = true },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGiven(t, clusterOf("a", change)...)
			g.WatchFilter = map[string]string{"another manager's": "ours"}[name]
			g.has(g.reconciles("a"), nil, "")
			g.isOpen("a", 0)
		})
	}
}

// Whoever pauses a Cluster, as for a move, still needs its API server.
func TestAPausedClusterKeepsItsPort(t *testing.T) {
	g := newGiven(t, clusterOf("a")...)
	g.reconciles("a")
	cluster := &core.Cluster{}
	if err := g.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "a"}, cluster); err != nil {
		t.Fatal(err)
	}
	cluster.Spec.Paused = true
	if err := g.client.Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	g.reconciles("a")
	g.isOpen("a", 100)
	g.start()
	g.reconciles("a")
	g.isOpen("a", 100)
}

func TestAPortIsClosed(t *testing.T) {
	for name, end := range map[string]func(*given, *infrav1.MillwrightCluster) error{
		"the object is gone": func(g *given, infra *infrav1.MillwrightCluster) error { return g.client.Delete(g.t.Context(), infra) },
		"it has another port": func(g *given, infra *infrav1.MillwrightCluster) error {
			infra.Spec.ControlPlaneEndpoint.Port = 102
			return g.client.Update(g.t.Context(), infra)
		},
		"it asks no more": func(g *given, infra *infrav1.MillwrightCluster) error {
			infra.Spec.ControlPlaneLoadBalancer = nil
			return g.client.Update(g.t.Context(), infra)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGiven(t, append(clusterOf("a"), clusterOf("b")...)...)
			infra := g.reconciles("a")
			if err := end(g, infra); err != nil {
				t.Fatal(err)
			}
			if _, err := g.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(infra)}); err != nil {
				t.Fatal(err)
			}
			g.isOpen("a", map[string]int32{"it has another port": 102}[name])
			if _, err := g.ports[100].Dial(t.Context(), ""); err == nil {
				t.Error("the port is open")
			}
			if name == "the object is gone" {
				g.has(g.reconciles("b"), at(100), infrav1.ReasonNoHealthyMachine)
			}
		})
	}
}

// The servers are the control plane machines of the Cluster, as they are.
func TestServersFollowTheMachines(t *testing.T) { synctest.Test(t, serversFollowTheMachines) }

func serversFollowTheMachines(t *testing.T) {
	in := func(address string) infrav1.MachineAddress {
		return infrav1.MachineAddress{Type: corev1.NodeInternalIP, Address: address}
	}
	out := infrav1.MachineAddress{Type: corev1.NodeExternalIP, Address: "192.0.2.1"}
	worker := machineOf("a", "worker", in("10.0.0.7"))
	delete(worker.Labels, core.LabelControlPlane)
	leaving := machineOf("a", "leaving", in("10.0.0.8"))
	leaving.Finalizers, leaving.DeletionTimestamp = []string{"example.com/stays"}, &metav1.Time{Time: time.Unix(1, 0)}
	g := newGiven(t, append(clusterOf("a", func(infra *infrav1.MillwrightCluster, _ *core.Cluster) { infra.Spec.ControlPlanePort = 6444 }),
		machineOf("a", "one", out, in("10.0.0.1")), machineOf("a", "six", in("fd77::1")), machineOf("a", "starting"),
		worker, leaving, machineOf("b", "other", in("10.0.0.9")))...)
	g.mu.Lock()
	g.healthy = loadbalancer.Ready
	g.mu.Unlock()
	g.reconciles("a")
	synctest.Wait() // the servers have been checked
	g.has(g.reconciles("a"), at(100), infrav1.ReasonForwarding)
	g.mu.Lock()
	if len(g.dialed) != 2 || !g.dialed["10.0.0.1:6444"] || !g.dialed["[fd77::1]:6444"] {
		t.Errorf("asked were %v", g.dialed)
	}
	g.mu.Unlock()
	for _, name := range []string{"one", "six"} {
		if err := g.client.Delete(t.Context(), machineOf("a", name)); err != nil {
			t.Fatal(err)
		}
	}
	g.has(g.reconciles("a"), at(100), infrav1.ReasonNoHealthyMachine)
}
