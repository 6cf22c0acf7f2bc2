package orphans

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/test/support/fakeclient"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

const namespace = "default"

// period is both the time between passes in the tests and the grace period.
const period = 15 * time.Minute

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// harness contains a Collector with a driver, an API server and a cache.
type harness struct {
	*Collector
	clock *clocktesting.FakeClock
	// cache and server are independent of each other.
	cache, server client.WithWatch
	driver        *fake.Driver
	// lists maps class names to the errors of ListMachines.
	lists map[string]error
	// listed, if set, is called after each list.
	listed func()
	// deletes, if set, is called before a VM is removed.
	deletes  func(*driver.DeleteMachineRequest) error
	events   *recorder
	registry *prometheus.Registry
	// away is the error of reads from the API server.
	away error
	// others are the APIs other than that of Machines.
	others []API
	// missing is the reason why the Secret of a class cannot be used.
	missing string
}

// newHarness returns a harness with classes of these names.
func newHarness(t *testing.T, classes ...string) *harness {
	t.Helper()
	h := &harness{
		driver: fake.New(fake.Config{}), clock: clocktesting.NewFakeClock(noon), lists: map[string]error{},
		cache: newClient(t), server: newClient(t), events: &recorder{}, registry: prometheus.NewRegistry(),
	}
	h.driver.OnList(func(_ context.Context, req *driver.ListMachinesRequest, do func() (*driver.ListMachinesResponse, error)) (*driver.ListMachinesResponse, error) {
		if err := h.lists[req.MachineClass.Name]; err != nil {
			return nil, err
		}
		response, err := do()
		if h.listed != nil {
			h.listed()
		}
		return response, err
	})
	h.driver.OnDelete(func(_ context.Context, req *driver.DeleteMachineRequest, do func() (*driver.DeleteMachineResponse, error)) (*driver.DeleteMachineResponse, error) {
		if h.deletes != nil {
			if err := h.deletes(req); err != nil {
				return nil, err
			}
		}
		return do()
	})
	for _, name := range classes {
		h.put(t, fixture.Named(name, fixture.MachineClass()))
	}
	h.restart(Options{})
	return h
}

func newClient(t *testing.T) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fakeclient.NewBuilder(scheme).Build()
}

// restart replaces the Collector, as a new process does. Only the mode and the limit of the options are used.
func (h *harness) restart(options Options) {
	options.Driver = h.driver
	machines := Machines{Cache: h.cache, Namespace: namespace}
	machines.Live = interceptor.NewClient(h.server, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			if h.away != nil {
				return h.away
			}
			return c.Get(ctx, key, object, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if h.away != nil {
				return h.away
			}
			return c.List(ctx, list, opts...)
		},
	})
	machines.Secret = func(context.Context, *v1alpha1.MachineClass) (*corev1.Secret, string, error) {
		return &corev1.Secret{}, h.missing, nil
	}
	options.APIs = append([]API{machines}, h.others...)
	options.Period, options.Events, options.Clock, options.Log = period, h.events, h.clock, logr.Discard()
	h.registry = prometheus.NewRegistry()
	options.Registerer = h.registry
	h.Collector = New(options)
}

// put writes an object to the server and to the cache.
func (h *harness) put(t *testing.T, object client.Object) {
	t.Helper()
	object.SetNamespace(namespace)
	for _, c := range []client.Client{h.server, h.cache} {
		if err := c.Create(t.Context(), object.DeepCopyObject().(client.Object)); err != nil {
			t.Fatal(err)
		}
	}
}

// machine returns a Running Machine of a class with a stored provider ID.
func machine(class, name, providerID string) *v1alpha1.Machine {
	return fixture.Named(name, fixture.Machine(func(m *v1alpha1.Machine) {
		m.Namespace, m.Spec.Class.Name, m.Spec.ProviderID = namespace, class, providerID
		m.Status.CurrentStatus.Phase = v1alpha1.MachineRunning
	}))
}

// vm creates a VM of a class for the Machine of that name and returns its ID.
func (h *harness) vm(class, name string) string {
	return h.driver.Add(fake.VM{Namespace: namespace, Machine: name, Class: namespace + "/" + class, Initialized: true}).ProviderID
}

// fleet creates n Machines of a class with their VMs.
func (h *harness) fleet(t *testing.T, class string, n int) {
	t.Helper()
	for i := range n {
		name := fmt.Sprintf("%s-%d", class, i)
		h.put(t, machine(class, name, h.vm(class, name)))
	}
}

// pass advances the clock and makes a pass.
func (h *harness) pass(t *testing.T, after time.Duration) {
	t.Helper()
	h.clock.Step(after)
	if err := h.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// left returns the sorted machine names of the existing VMs.
func (h *harness) left() []string {
	var names []string
	for _, vm := range h.driver.VMs() {
		names = append(names, vm.Machine)
	}
	slices.Sort(names)
	return names
}

// has reports whether the VM with this ID exists.
func (h *harness) has(id string) bool {
	return slices.ContainsFunc(h.driver.VMs(), func(vm fake.VM) bool { return vm.ProviderID == id })
}

// value returns the value of a metric without labels.
func (h *harness) value(t *testing.T, name string) float64 {
	t.Helper()
	families, err := h.registry.Gather()
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

// recorder records events as "class reason: text".
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

// count returns the number of events that begin with the prefix.
func (r *recorder) count(prefix string) int {
	n := 0
	for _, line := range r.lines {
		if strings.HasPrefix(line, prefix) {
			n++
		}
	}
	return n
}
