package balancer

import (
	"cmp"
	"context"
	"errors"
	"io"
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

// harness is a management cluster with a load balancer that has the ports 100 to 102.
type harness struct {
	*Controller
	t      *testing.T
	client client.Client

	mu           sync.Mutex
	ports        map[int32]*memnet.Network
	listenErrors map[int32]error
	dialed       map[string]bool
	health       loadbalancer.Health
	// accepts means that servers keep connections open.
	accepts bool

	limit, connections int
	lock               resourcelock.Interface
	live               client.Reader
	ready              atomic.Bool
}

func newHarness(t *testing.T, objects ...client.Object) *harness {
	scheme := runtime.NewScheme()
	core.AddToScheme(scheme, core.V1Beta2)
	if err := infrav1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	h := &harness{t: t, ports: map[int32]*memnet.Network{}, listenErrors: map[int32]error{}, dialed: map[string]bool{}}
	h.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&infrav1.MillwrightCluster{}).Build()
	h.start()
	return h
}

// start starts a load balancer, after it has closed an earlier one.
func (h *harness) start() {
	if h.Controller != nil {
		h.Close()
	}
	h.Controller = New(Options{
		Client: h.client, Live: cmp.Or[client.Reader](h.live, h.client), Lock: h.lock, Clock: testingclock.NewFakePassiveClock(time.Unix(1, 0)), Name: "default", Host: "lb.example.com", FirstPort: 100, LastPort: 102,
		Listen: h.listenAt, MaxPerNamespace: h.limit, Ready: func() { h.ready.Store(true) },
		Balancer: loadbalancer.Options{
			Log: slog.New(slog.NewTextHandler(h.t.Output(), nil)), MaxConnections: h.connections,
			Dial: func(_ context.Context, address string) (net.Conn, error) {
				h.mu.Lock()
				defer h.mu.Unlock()
				h.dialed[address] = true
				local, remote := net.Pipe()
				if h.accepts {
					go func() { _, _ = io.Copy(io.Discard, remote) }()
				} else {
					_ = remote.Close()
				}
				return local, nil
			},
			Check: func(context.Context, net.Conn) (loadbalancer.Health, error) {
				h.mu.Lock()
				defer h.mu.Unlock()
				return h.health, nil
			},
		},
	})
	h.t.Cleanup(h.Close)
}

func (h *harness) listenAt(port int32) (net.Listener, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.listenErrors[port]; err != nil {
		return nil, err
	}
	h.Controller.mu.Lock()
	defer h.Controller.mu.Unlock()
	for _, e := range h.open {
		if e.port == port {
			return nil, &net.OpError{Op: "listen", Err: syscall.EADDRINUSE}
		}
	}
	h.ports[port] = memnet.New()
	return h.ports[port], nil
}

// settle reconciles a MillwrightCluster until nothing is written anymore, and returns it.
func (h *harness) settle(name string) *infrav1.MillwrightCluster {
	h.t.Helper()
	key := client.ObjectKey{Namespace: "ns", Name: name}
	infra := &infrav1.MillwrightCluster{}
	for range 3 {
		before := infra.ResourceVersion
		if _, err := h.Reconcile(h.t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
			h.t.Fatal(err)
		}
		if err := h.client.Get(h.t.Context(), key, infra); err != nil {
			h.t.Fatal(err)
		}
		if infra.ResourceVersion == before {
			return infra
		}
	}
	h.t.Fatal("every reconcile writes")
	return nil
}

// wantPort checks which port is open for a MillwrightCluster; 0 means none.
func (h *harness) wantPort(name string, want int32) {
	h.t.Helper()
	got := int32(0)
	if e := h.find(client.ObjectKey{Namespace: "ns", Name: name}); e != nil {
		got = e.port
	}
	if got != want {
		h.t.Errorf("the open port of %s is %d, want %d", name, got, want)
	}
}

// wantStatus checks the endpoint and the condition.
func (h *harness) wantStatus(infra *infrav1.MillwrightCluster, want *infrav1.APIEndpoint, reason string) {
	h.t.Helper()
	got := infra.Spec.ControlPlaneEndpoint
	if (got == nil) != (want == nil) || got != nil && *got != *want {
		h.t.Errorf("%s has the endpoint %v, want %v", infra.Name, got, want)
	}
	condition := meta.FindStatusCondition(infra.Status.Conditions, infrav1.ConditionLoadBalancerReady)
	if condition == nil {
		condition = &metav1.Condition{}
	}
	if condition.Reason != reason || (condition.Status == metav1.ConditionTrue) != (reason == infrav1.ReasonForwarding) {
		h.t.Errorf("the condition of %s is %+v, want the reason %s", infra.Name, condition, reason)
	}
}

// watchWakeups returns a function that returns the names of the objects that were triggered since its last call.
func (h *harness) watchWakeups() func() []string {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	h.t.Cleanup(queue.ShutDown)
	if err := h.waker.Start(h.t.Context(), queue); err != nil {
		h.t.Fatal(err)
	}
	triggered := func() []string {
		var names []string
		for queue.Len() > 0 {
			request, _ := queue.Get()
			names = append(names, request.Name)
			queue.Done(request)
		}
		slices.Sort(names)
		return names
	}
	triggered() // drops earlier ones
	return triggered
}

func at(port int32) *infrav1.APIEndpoint {
	return &infrav1.APIEndpoint{Host: "lb.example.com", Port: port}
}

// clusterOf returns a Cluster and its MillwrightCluster, which requests the load balancer.
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

// machineOf returns a control plane machine of a Cluster.
func machineOf(cluster, name string, addresses ...infrav1.MachineAddress) *infrav1.MillwrightMachine {
	machine := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, Labels: map[string]string{core.LabelCluster: cluster, core.LabelControlPlane: ""},
	}}
	machine.Status.Addresses = addresses
	return machine
}

func TestPort_BecomesEndpoint(t *testing.T) {
	h := newHarness(t, append(clusterOf("a"), clusterOf("b")...)...)
	h.wantStatus(h.settle("a"), at(100), infrav1.ReasonNoHealthyMachine)
	h.wantStatus(h.settle("b"), at(101), infrav1.ReasonNoHealthyMachine)
	h.wantPort("a", 100)

	// After a restart both keep their ports, whichever is reconciled first.
	h.start()
	h.wantStatus(h.settle("b"), at(101), infrav1.ReasonNoHealthyMachine)
	h.wantStatus(h.settle("a"), at(100), infrav1.ReasonNoHealthyMachine)
	h.wantPort("b", 101)
}

func TestPort_InUseIsNotAssigned(t *testing.T) {
	h := newHarness(t, clusterOf("a")...)
	h.listenErrors[100] = &net.OpError{Op: "listen", Err: syscall.EADDRINUSE}
	h.wantStatus(h.settle("a"), at(101), infrav1.ReasonNoHealthyMachine)
	h.listenErrors[101], h.listenErrors[102] = h.listenErrors[100], h.listenErrors[100]
	h.start()
	h.wantStatus(h.settle("a"), at(101), infrav1.ReasonListenFailed) // the endpoint stays because machines use it
	h.wantPort("a", 0)
	delete(h.listenErrors, 101)
	h.wantStatus(h.settle("a"), at(101), infrav1.ReasonNoHealthyMachine)
}

func TestPort_NoneCanBeOpened(t *testing.T) {
	for name, err := range map[string]error{"all ports are in use": syscall.EADDRINUSE, "no such address": errors.New("cannot assign")} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, clusterOf("a")...)
			for port := range int32(3) {
				h.listenErrors[100+port] = err
			}
			h.wantStatus(h.settle("a"), nil, infrav1.ReasonListenFailed)
		})
	}
}

func TestEndpoint_OfUserIsKept(t *testing.T) {
	withPort := func(port int32) func(*infrav1.MillwrightCluster, *core.Cluster) {
		return func(infra *infrav1.MillwrightCluster, _ *core.Cluster) {
			infra.Spec.ControlPlaneEndpoint = &infrav1.APIEndpoint{Host: "a.example.com", Port: port}
		}
	}
	h := newHarness(t, slices.Concat(clusterOf("a", withPort(102)), clusterOf("b", withPort(443)), clusterOf("c", withPort(102)),
		clusterOf("d", func(_ *infrav1.MillwrightCluster, cluster *core.Cluster) {
			cluster.Spec.ControlPlaneEndpoint = core.Endpoint{Host: "d.example.com", Port: 101}
		}))...)
	h.wantRefused("c", 102, infrav1.ReasonPortTaken) // used by a, the first by name, as both have the same age
	h.wantRefused("b", 443, infrav1.ReasonPortNotAllowed)
	h.wantStatus(h.settle("d"), nil, infrav1.ReasonNoHealthyMachine)
	h.wantPort("d", 101)
}

func (h *harness) wantRefused(name string, port int32, reason string) {
	h.t.Helper()
	h.wantStatus(h.settle(name), &infrav1.APIEndpoint{Host: "a.example.com", Port: port}, reason)
	h.wantPort(name, 0)
}

func TestCluster_OfOthersIsUnchanged(t *testing.T) {
	for name, change := range map[string]func(*infrav1.MillwrightCluster, *core.Cluster){
		"no load balancer": func(infra *infrav1.MillwrightCluster, _ *core.Cluster) { infra.Spec.ControlPlaneLoadBalancer = nil },
		"another load balancer": func(infra *infrav1.MillwrightCluster, _ *core.Cluster) {
			infra.Spec.ControlPlaneLoadBalancer.Name = "other"
		},
		"externally managed": func(infra *infrav1.MillwrightCluster, _ *core.Cluster) {
			infra.Annotations = map[string]string{core.KeyManagedBy: ""}
		},
		"managed by label": func(infra *infrav1.MillwrightCluster, _ *core.Cluster) {
			infra.Labels = map[string]string{core.KeyManagedBy: ""}
		},
		"watch filter": func(infra *infrav1.MillwrightCluster, _ *core.Cluster) {
			infra.Labels = map[string]string{core.LabelWatchFilter: "theirs"}
		},
		"no owner":            func(infra *infrav1.MillwrightCluster, _ *core.Cluster) { infra.OwnerReferences = nil },
		"paused, no endpoint": func(_ *infrav1.MillwrightCluster, cluster *core.Cluster) { cluster.Spec.Paused = true },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, clusterOf("a", change)...)
			h.WatchFilter = map[string]string{"watch filter": "ours"}[name]
			h.wantStatus(h.settle("a"), nil, "")
			h.wantPort("a", 0)
		})
	}
}

// A paused Cluster, for example during a move, still needs its API server.
func TestPort_PausedClusterKeepsIt(t *testing.T) {
	h := newHarness(t, clusterOf("a")...)
	h.settle("a")
	cluster := &core.Cluster{}
	if err := h.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "a"}, cluster); err != nil {
		t.Fatal(err)
	}
	cluster.Spec.Paused = true
	if err := h.client.Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	h.settle("a")
	h.wantPort("a", 100)
	h.start()
	h.settle("a")
	h.wantPort("a", 100)
}

func TestPort_IsClosed(t *testing.T) {
	for name, end := range map[string]func(*harness, *infrav1.MillwrightCluster) error{
		"object deleted": func(h *harness, infra *infrav1.MillwrightCluster) error { return h.client.Delete(h.t.Context(), infra) },
		"port changed": func(h *harness, infra *infrav1.MillwrightCluster) error {
			infra.Spec.ControlPlaneEndpoint.Port = 102
			return h.client.Update(h.t.Context(), infra)
		},
		"load balancer removed": func(h *harness, infra *infrav1.MillwrightCluster) error {
			infra.Spec.ControlPlaneLoadBalancer = nil
			return h.client.Update(h.t.Context(), infra)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, append(clusterOf("a"), clusterOf("b")...)...)
			infra := h.settle("a")
			if err := end(h, infra); err != nil {
				t.Fatal(err)
			}
			if _, err := h.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(infra)}); err != nil {
				t.Fatal(err)
			}
			h.wantPort("a", map[string]int32{"port changed": 102}[name])
			if _, err := h.ports[100].Dial(t.Context(), ""); err == nil {
				t.Error("the port is open")
			}
			if name == "object deleted" {
				h.wantStatus(h.settle("b"), at(100), infrav1.ReasonNoHealthyMachine)
			}
		})
	}
}

// The servers are the current control plane machines of the Cluster.
func TestServers_FollowMachines(t *testing.T) { synctest.Test(t, serversFollowTheMachines) }

func serversFollowTheMachines(t *testing.T) {
	internal := func(address string) infrav1.MachineAddress {
		return infrav1.MachineAddress{Type: corev1.NodeInternalIP, Address: address}
	}
	external := infrav1.MachineAddress{Type: corev1.NodeExternalIP, Address: "192.0.2.1"}
	worker := machineOf("a", "worker", internal("10.0.0.7"))
	delete(worker.Labels, core.LabelControlPlane)
	leaving := machineOf("a", "leaving", internal("10.0.0.8"))
	leaving.Finalizers, leaving.DeletionTimestamp = []string{"example.com/stays"}, &metav1.Time{Time: time.Unix(1, 0)}
	h := newHarness(t, append(clusterOf("a", func(infra *infrav1.MillwrightCluster, _ *core.Cluster) { infra.Spec.ControlPlanePort = 6444 }),
		machineOf("a", "one", external, internal("10.0.0.1")), machineOf("a", "six", internal("fd77::1")), machineOf("a", "starting"),
		worker, leaving, machineOf("b", "other", internal("10.0.0.9")))...)
	h.mu.Lock()
	h.health = loadbalancer.Ready
	h.mu.Unlock()
	h.settle("a")
	synctest.Wait() // until the servers have been checked
	h.wantStatus(h.settle("a"), at(100), infrav1.ReasonForwarding)
	h.mu.Lock()
	if len(h.dialed) != 2 || !h.dialed["10.0.0.1:6444"] || !h.dialed["[fd77::1]:6444"] {
		t.Errorf("dialed %v", h.dialed)
	}
	h.mu.Unlock()
	for _, name := range []string{"one", "six"} {
		if err := h.client.Delete(t.Context(), machineOf("a", name)); err != nil {
			t.Fatal(err)
		}
	}
	h.wantStatus(h.settle("a"), at(100), infrav1.ReasonNoHealthyMachine)
}
