package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	clientmetrics "k8s.io/client-go/tools/metrics"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	ctrlfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	driverfake "github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/instrument"
	"github.com/millwright-dev/millwright/internal/controllers/capi/balancer"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/orphans"
	"github.com/millwright-dev/millwright/internal/loadbalancer"
	_ "github.com/millwright-dev/millwright/internal/manager" // registers the request latency
	"github.com/millwright-dev/millwright/internal/observe/metrics"
	"github.com/millwright-dev/millwright/internal/pluginserver"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/memnet"
)

// drained is a Drainer whose nodes are empty.
type drained struct{ drain.Interface }

func (drained) Drain(context.Context, drain.Request) (drain.Report, error) {
	return drain.Report{Done: true}, nil
}

// everything makes the program record each of its metrics, and gathers them as they are served.
func everything(t *testing.T) []*dto.MetricFamily {
	t.Helper()
	registry := prometheus.NewPedanticRegistry() // rejects undescribed metrics
	class, machine, set, deployment := fixture.Fleet(time.Now())
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, vmv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	vm := &vmv1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pool-1"}}
	vm.Status.Migration = &vmv1alpha1.VirtualMachineMigration{Phase: vmv1alpha1.MigrationSucceeded, Downtime: &metav1.Duration{Duration: time.Second}}
	vm.Annotations = map[string]string{vmv1alpha1.AnnotationController: "vms/millwright-vm-controller"}
	reader := ctrlfake.NewClientBuilder().WithScheme(scheme).WithObjects(class, machine, set, deployment, vm).Build()
	options := metrics.Options{Reader: reader, Clock: clock.RealClock{}, Registerer: registry, Informers: &informertest.FakeInformers{Scheme: scheme}}
	work := metrics.NewWork(options)
	options.Work = work
	runs(t, metrics.New(options).Start)
	runs(t, (&metrics.VMs{Reader: reader, Registerer: registry}).Start)
	authority := metrics.VMAuthorityState{Phase: "None", Expires: time.Now()}
	runs(t, (&metrics.VMAuthority{State: func() metrics.VMAuthorityState { return authority }, Registerer: registry}).Start)
	orphans.New(orphans.Options{Registerer: registry})
	balance(t, registry)
	lead(registry)
	plug(t, registry)
	call(t, registry, work, machine, class)
	library(t)
	gather(t, registry, "mcm_machine_items_total") // it is registered after its watch
	happen(t, options.Informers.(*informertest.FakeInformers), machine)
	return gather(t, registry, "mcm_machine_num_failed_join", "millwright_virtual_machine_ready", "millwright_virtual_machine_authority_rotation", "mcm_workqueue_depth", "millwright_driver_ignored_results_total")
}

// gather gathers metrics as they are served, once all given names are among them.
func gather(t *testing.T, registry prometheus.Gatherer, awaited ...any) (families []*dto.MetricFamily) {
	t.Helper()
	gomega.NewWithT(t).Eventually(func() ([]string, error) {
		var err error
		families, err = metrics.Gatherer(prometheus.Gatherers{registry, ctrlmetrics.Registry}).Gather()
		var names []string
		for _, family := range families {
			if !grouped(family.GetName()) {
				names = append(names, family.GetName())
			}
		}
		return names, err
	}).WithTimeout(time.Minute).Should(gomega.ContainElements(awaited...))
	return families
}

// runs runs a function until the end of the test.
func runs(t *testing.T, start func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// lead records the metrics of a fleet.
func lead(registry prometheus.Registerer) {
	fleet := metrics.NewFleet(func() map[string]string { return map[string]string{"shop": "serving"} })
	fleet.Replicas(1)
	fleet.Problem("shop", "ManagerPanicked")
	fleet.Panic("shop")
	registry.MustRegister(fleet)
}

// balance starts a load balancer with a port.
func balance(t *testing.T, registry prometheus.Registerer) {
	t.Helper()
	kinds := runtime.NewScheme()
	core.AddToScheme(kinds, core.V1Beta2)
	if err := infrav1.AddToScheme(kinds); err != nil {
		t.Fatal(err)
	}
	key := types.NamespacedName{Namespace: "shop", Name: "demo"}
	cluster := &core.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	infra := &infrav1.MillwrightCluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	infra.OwnerReferences = []metav1.OwnerReference{{APIVersion: core.V1Beta2.String(), Kind: core.ClusterKind, Name: key.Name, UID: "u"}}
	infra.Spec.ControlPlaneLoadBalancer = &infrav1.ControlPlaneLoadBalancer{}
	objects := ctrlfake.NewClientBuilder().WithScheme(kinds).WithObjects(cluster, infra).WithStatusSubresource(infra).Build()
	balancers := balancer.New(balancer.Options{
		Client: objects, Live: objects, Clock: clock.RealClock{}, Name: infrav1.DefaultLoadBalancer, Host: "lb.example.com", FirstPort: 1, LastPort: 1,
		Listen:   func(int32) (net.Listener, error) { return memnet.New(), nil },
		Balancer: loadbalancer.Options{Log: slog.New(slog.DiscardHandler)},
	})
	t.Cleanup(balancers.Close)
	if _, err := balancers.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
	registry.MustRegister(balancers)
}

// plug registers a driver of another process, which sends an unexpected result.
func plug(t *testing.T, registry prometheus.Registerer) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	endpoint, err := pluginserver.Socket(socket)
	if err != nil {
		t.Fatal(err)
	}
	drivers := pluginserver.New(pluginserver.Options{Registerer: registry, Add: func(string, *pluginserver.Driver) error { return nil }})
	runs(t, func(ctx context.Context) error { return drivers.Serve(ctx, endpoint) })
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := driverpb.NewInfraClient(conn).Register(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, message := range []*driverpb.DriverSide{
		{Content: &driverpb.DriverSide_Registration{Registration: &driverpb.Registration{
			Kind: "plugged", ApiVersion: v1alpha1.SchemeGroupVersion.String(), Instance: "0123456789abcdef",
			Operations: []driverpb.OperationType{driverpb.OperationType_OT_CREATE_MACHINE, driverpb.OperationType_OT_DELETE_MACHINE},
		}}},
		{Content: &driverpb.DriverSide_Result{Result: &driverpb.OperationResult{OperationId: "unknown"}}},
	} {
		if err := stream.Send(message); err != nil {
			t.Fatal(err)
		}
	}
}

// happen makes one Machine join, and another one fail to join.
func happen(t *testing.T, informers *informertest.FakeInformers, machine *v1alpha1.Machine) {
	t.Helper()
	informer, err := informers.FakeInformerFor(t.Context(), &v1alpha1.Machine{})
	if err != nil {
		t.Fatal(err)
	}
	phase := func(phase v1alpha1.MachinePhase) *v1alpha1.Machine {
		changed := machine.DeepCopy()
		changed.Status.CurrentStatus.Phase, changed.Status.LastOperation.Type = phase, v1alpha1.MachineOperationCreate
		return changed
	}
	gomega.NewWithT(t).Eventually(informer.HasSynced).WithTimeout(time.Minute).Should(gomega.BeTrue())
	informer.Update(phase(v1alpha1.MachinePending), phase(v1alpha1.MachineRunning))
	informer.Update(phase(v1alpha1.MachinePending), phase(v1alpha1.MachineFailed))
}

// call calls all methods of the drivers once, including one that fails.
func call(t *testing.T, registry prometheus.Registerer, work *metrics.Work, machine *v1alpha1.Machine, class *v1alpha1.MachineClass) {
	t.Helper()
	machine = machine.DeepCopy()
	machine.Spec.ProviderID, machine.DeletionTimestamp = "", &metav1.Time{Time: time.Now()}
	d := work.Driver(instrument.Wrap(driverfake.New(driverfake.Config{RequireInitialize: true}), instrument.Options{Provider: "fake", Registerer: registry}))
	_, created := d.CreateMachine(t.Context(), &driver.CreateMachineRequest{Machine: machine, MachineClass: class})
	_, initialized := d.(driver.Initializer).InitializeMachine(t.Context(), &driver.InitializeMachineRequest{Machine: machine, MachineClass: class})
	_, emptied := work.Drainer(drained{}).Drain(t.Context(), drain.Request{Machine: types.NamespacedName{Namespace: machine.Namespace, Name: machine.Name}})
	_, deleted := d.DeleteMachine(t.Context(), &driver.DeleteMachineRequest{Machine: machine, MachineClass: class})
	if err := errors.Join(created, initialized, emptied, deleted); err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.CreateMachine(cancelled, &driver.CreateMachineRequest{Machine: machine, MachineClass: class}); err == nil {
		t.Fatal("a cancelled creation succeeds")
	}
}

// library makes client-go and controller-runtime record metrics.
func library(t *testing.T) {
	t.Helper()
	queue := priorityqueue.New[string]("metrics")
	t.Cleanup(queue.ShutDown)
	queue.Add("done")
	done, _ := queue.Get()
	queue.Done(done)
	queue.Add("waiting")
	clientmetrics.RequestResult.Increment(t.Context(), "200", "GET", "example.com")
	clientmetrics.RequestLatency.Observe(t.Context(), "GET", url.URL{Host: "example.com"}, time.Second)
	lock := &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: "shop", Name: "lease"}, Client: fake.NewClientset().CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: "me"}}
	if _, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: "lease", LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: time.Second,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	}); err != nil {
		t.Fatal(err)
	}
}

// row is a metric in the list.
type row struct{ name, kind, labels, help string }

// rowOf describes a metric, without the series that a histogram adds.
func rowOf(family *dto.MetricFamily) row {
	var labels []string
	for _, metric := range family.Metric {
		for _, label := range metric.Label {
			if !slices.Contains(labels, label.GetName()) {
				labels = append(labels, label.GetName())
			}
		}
	}
	slices.Sort(labels)
	return row{family.GetName(), strings.ToLower(family.GetType().String()), strings.Join(labels, " "), family.GetHelp()}
}

func (r row) String() string {
	return fmt.Sprintf("%s\t%s\t%s\t%s\n", r.name, r.kind, r.labels, r.help)
}
