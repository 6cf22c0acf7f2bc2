package orphans

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/sim"
)

const namespace = "default"

// period is the time between passes of the tests, and their grace.
const period = 15 * time.Minute

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// world is a simulated cloud, an API server and a cache of it, and a Collector.
type world struct {
	*Collector
	cloud *sim.Cloud
	clock *clocktesting.FakeClock
	// cache and server have the objects, each by itself.
	cache, server client.WithWatch
	driver        *scripted
	events        *recorder
	registry      *prometheus.Registry
	// away is the error of reads from the API server.
	away error
	// others are APIs beside that of Machines.
	others []API
	// missing is what the Secret of a class is said to lack.
	missing string
}

// newWorld has the classes of these names.
func newWorld(t *testing.T, classes ...string) *world {
	t.Helper()
	w := &world{
		cloud: sim.NewCloud(sim.CloudOptions{}), clock: clocktesting.NewFakeClock(noon),
		cache: newClient(t), server: newClient(t), events: &recorder{}, registry: prometheus.NewRegistry(),
	}
	w.driver = &scripted{Driver: sim.New(sim.Config{Cloud: w.cloud}), lists: map[string]error{}}
	for _, name := range classes {
		w.put(t, &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	w.restart(Options{})
	return w
}

func newClient(t *testing.T) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).Build()
}

// restart is a new process. Of the options, mode and limit count.
func (w *world) restart(options Options) {
	options.Driver = w.driver
	machines := Machines{Cache: w.cache, Namespace: namespace}
	machines.Live = interceptor.NewClient(w.server, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			if w.away != nil {
				return w.away
			}
			return c.Get(ctx, key, object, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if w.away != nil {
				return w.away
			}
			return c.List(ctx, list, opts...)
		},
	})
	machines.Secret = func(context.Context, *v1alpha1.MachineClass) (*corev1.Secret, string, error) {
		return &corev1.Secret{}, w.missing, nil
	}
	options.APIs = append([]API{machines}, w.others...)
	options.Period, options.Events, options.Clock, options.Log = period, w.events, w.clock, logr.Discard()
	w.registry = prometheus.NewRegistry()
	options.Registerer = w.registry
	w.Collector = New(options)
}

// put writes an object to the server, and to the cache.
func (w *world) put(t *testing.T, object client.Object) {
	t.Helper()
	object.SetNamespace(namespace)
	for _, c := range []client.Client{w.server, w.cache} {
		if err := c.Create(t.Context(), object.DeepCopyObject().(client.Object)); err != nil {
			t.Fatal(err)
		}
	}
}

// machine is a Running Machine of a class that stores an ID.
func machine(class, name, providerID string) *v1alpha1.Machine {
	m := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	m.Spec.Class = v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: class}
	m.Spec.ProviderID = providerID
	m.Status.CurrentStatus.Phase = v1alpha1.MachineRunning
	return m
}

// vm makes a VM of a class for a machine of that name, and returns its ID.
func (w *world) vm(t *testing.T, class, name string) string {
	t.Helper()
	vm, err := w.cloud.Add(sim.VM{Namespace: namespace, Machine: name, Pool: namespace + "/" + class})
	if err != nil {
		t.Fatal(err)
	}
	return vm.ProviderID
}

// fleet makes n Machines of a class with their VMs.
func (w *world) fleet(t *testing.T, class string, n int) {
	t.Helper()
	for i := range n {
		name := fmt.Sprintf("%s-%d", class, i)
		w.put(t, machine(class, name, w.vm(t, class, name)))
	}
}

// pass makes a pass, some time after the last one.
func (w *world) pass(t *testing.T, after time.Duration) {
	t.Helper()
	w.clock.Step(after)
	if err := w.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// left are the machine names of the VMs that exist, in order.
func (w *world) left(t *testing.T) []string {
	t.Helper()
	vms, err := w.cloud.VMs()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, vm := range vms {
		if vm.GoneAt.IsZero() {
			names = append(names, vm.Machine)
		}
	}
	slices.Sort(names)
	return names
}

// has reports whether the VM with this ID exists.
func (w *world) has(t *testing.T, id string) bool {
	t.Helper()
	vms, err := w.cloud.VMs()
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(vms, func(vm sim.VM) bool { return vm.ProviderID == id && vm.GoneAt.IsZero() })
}

// value of a metric without labels.
func (w *world) value(t *testing.T, name string) float64 {
	t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			m := family.GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// scripted is a driver that fails as it is told.
type scripted struct {
	driver.Driver
	mu sync.Mutex
	// lists are the errors of ListMachines by class.
	lists map[string]error
	// deletes, if set, is asked before a VM is removed.
	deletes func(*driver.DeleteMachineRequest) error
	// listed is called after a list was made.
	listed func()
}

func (s *scripted) ListMachines(ctx context.Context, req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.lists[req.MachineClass.Name]; err != nil {
		return nil, err
	}
	answer, err := s.Driver.ListMachines(ctx, req)
	if s.listed != nil {
		s.listed()
	}
	return answer, err
}

func (s *scripted) DeleteMachine(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	if s.deletes != nil {
		if err := s.deletes(req); err != nil {
			return nil, err
		}
	}
	return s.Driver.DeleteMachine(ctx, req)
}

// recorder keeps events as "class reason: text".
type recorder struct {
	record.EventRecorder
	lines []string
}

func (r *recorder) Event(object runtime.Object, _, reason, message string) {
	r.lines = append(r.lines, object.(client.Object).GetName()+" "+reason+": "+message)
}

func (r *recorder) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	r.Event(object, kind, reason, fmt.Sprintf(format, args...))
}

// count counts the events that begin so.
func (r *recorder) count(prefix string) int {
	n := 0
	for _, line := range r.lines {
		if strings.HasPrefix(line, prefix) {
			n++
		}
	}
	return n
}
