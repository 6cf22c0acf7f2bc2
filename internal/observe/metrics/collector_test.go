package metrics

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/golden"
)

// noon is the time at which tests run.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// waitTimeout limits waits that normally take milliseconds.
const waitTimeout = 5 * time.Minute

// fleet returns one object of each kind, with all fields set.
func fleet() (*v1alpha1.MachineClass, *v1alpha1.Machine, *v1alpha1.MachineSet, *v1alpha1.MachineDeployment) {
	return fixture.Fleet(noon.Add(-time.Minute))
}

// collect returns a Collector of the objects, registered but not yet scraped.
func collect(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) (*Collector, *prometheus.Registry) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry() // refuses what was not described
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(funcs).Build()
	c := New(Options{Reader: reader, Clock: clocktesting.NewFakePassiveClock(noon), Registerer: registry})
	for _, part := range c.parts() {
		if err := registry.Register(part); err != nil {
			t.Fatal(err)
		}
	}
	return c, registry
}

// series returns the gathered series, one per line.
func series(t *testing.T, registry *prometheus.Registry) []string {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, family := range families {
		for _, metric := range family.Metric {
			var labels []string
			for _, label := range metric.Label {
				labels = append(labels, label.GetName()+"="+label.GetValue())
			}
			value := metric.GetGauge().GetValue()
			if family.GetType() == dto.MetricType_COUNTER {
				value = metric.GetCounter().GetValue()
			}
			lines = append(lines, fmt.Sprintf("%s %s{%s} %v", strings.ToLower(family.GetType().String()), family.GetName(), strings.Join(labels, ","), value))
		}
	}
	slices.Sort(lines)
	return lines
}

// inPhase returns the Machine in a phase.
func inPhase(machine *v1alpha1.Machine, phase v1alpha1.MachinePhase) *v1alpha1.Machine {
	machine = machine.DeepCopy()
	machine.Status.CurrentStatus.Phase = phase
	return machine
}

func pending(machine *v1alpha1.Machine) *v1alpha1.Machine {
	return inPhase(machine, v1alpha1.MachinePending)
}

// joined returns the Machine when it is Running for the first time.
func joined(machine *v1alpha1.Machine) *v1alpha1.Machine {
	machine = inPhase(machine, v1alpha1.MachineRunning)
	machine.Status.LastOperation.Type = v1alpha1.MachineOperationCreate
	return machine
}

// stale returns the Machine after it was unhealthy for too long. replaced returns it when it is
// then deleted.
func stale(machine *v1alpha1.Machine) *v1alpha1.Machine {
	machine = inPhase(machine, v1alpha1.MachineFailed)
	machine.Status.LastOperation.Type = v1alpha1.MachineOperationHealthCheck
	return machine
}

func replaced(machine *v1alpha1.Machine) *v1alpha1.Machine {
	machine = stale(machine)
	machine.DeletionTimestamp = &metav1.Time{Time: noon.Add(-30 * time.Second)}
	return machine
}

// TestCollector_MatchesGoldenSeries checks every metric. Users rely on the names and labels.
func TestCollector_MatchesGoldenSeries(t *testing.T) {
	class, machine, set, deployment := fleet()
	c, registry := collect(t, interceptor.Funcs{}, class, machine, set, deployment)
	c.Work = NewWork(Options{Reader: c.Reader, Clock: c.Clock, Registerer: registry})
	unhealthy := inPhase(machine, v1alpha1.MachineUnknown)
	c.changed(t.Context(), pending(machine), joined(machine))
	c.changed(t.Context(), pending(machine), inPhase(machine, v1alpha1.MachineFailed))
	c.changed(t.Context(), unhealthy, stale(machine))
	c.changed(t.Context(), stale(machine), replaced(machine))
	c.changed(t.Context(), replaced(machine), replaced(machine))
	c.changed(t.Context(), joined(machine), joined(machine))
	callAll(t, c.Work, replaced(machine), class)

	got := strings.Join(series(t, registry), "\n") + "\n"
	golden.Compare(t, "testdata/series.golden", got)
	for _, d := range described {
		name, _, _ := strings.Cut(strings.TrimPrefix(d.String(), `Desc{fqName: "`), `"`)
		if !strings.Contains(got, " "+name+"{") {
			t.Errorf("%s is described and not in the golden file", name)
		}
	}
}

// TestCollector_HandlesEmptyObjects checks that objects without optional fields work, and that unset fields have no
// series.
func TestCollector_HandlesEmptyObjects(t *testing.T) {
	c, registry := collect(t, interceptor.Funcs{},
		&v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, &v1alpha1.MachineSet{ObjectMeta: metav1.ObjectMeta{Name: "s"}},
		&v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: v1alpha1.MachineDeploymentSpec{
			Strategy: v1alpha1.MachineDeploymentStrategy{RollingUpdate: &v1alpha1.RollingUpdateMachineDeployment{
				UpdateConfiguration: v1alpha1.UpdateConfiguration{MaxSurge: ptr.To(intstr.FromString("nonsense"))},
			}},
		}},
		&v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Name: "bare"}},
	)
	pending := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m", Labels: map[string]string{"name": "pool"}}}
	pending.Status.CurrentStatus.Phase = v1alpha1.MachinePending
	failed := pending.DeepCopy()
	failed.Status.CurrentStatus.Phase = v1alpha1.MachineFailed
	c.changed(t.Context(), pending, failed) // no class
	failed.Spec.Class.Name = "bare"
	c.changed(t.Context(), pending, failed) // no node template
	lines := series(t, registry)
	for _, part := range []string{"max_surge", "history", "deadline", "rollback", "collision", "condition", "failed_machines", "machine_delete"} {
		if at := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, part) }); at >= 0 {
			t.Errorf("unexpected series: %s", lines[at])
		}
	}
	if !slices.ContainsFunc(lines, func(line string) bool {
		return line == "counter mcm_machine_num_failed_join{instance_type=,machine_deployment=pool,namespace=,zone=} 2"
	}) {
		t.Errorf("a class without node template keeps a failure from being counted: %q", lines)
	}
}

// TestCollector_DropsSeriesOfDeletedObjects checks that series disappear as soon as the cache lacks the object.
func TestCollector_DropsSeriesOfDeletedObjects(t *testing.T) {
	_, machine, _, _ := fleet()
	c, registry := collect(t, interceptor.Funcs{}, machine)
	before := len(series(t, registry))
	if err := c.Reader.(client.Client).Delete(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	for _, line := range series(t, registry) {
		if strings.Contains(line, "pool-1") {
			t.Errorf("left: %s (of %d lines before)", line, before)
		}
	}
}

// TestPool_SeriesAreDeletedWithPool checks that one more scrape has the last values of a deleted pool.
func TestPool_SeriesAreDeletedWithPool(t *testing.T) {
	class, machine, _, deployment := fleet()
	unlisted := false
	c, registry := collect(t, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, ok := list.(*v1alpha1.MachineList); ok && unlisted {
				return errors.New("no such luck")
			}
			return c.List(ctx, list, opts...)
		},
	}, class, machine, deployment)
	c.Work = NewWork(Options{Reader: c.Reader, Clock: c.Clock, Registerer: registry})
	pending, failed, deleted := machine.DeepCopy(), machine.DeepCopy(), machine.DeepCopy()
	pending.Status.CurrentStatus.Phase = v1alpha1.MachinePending
	failed.Status.CurrentStatus.Phase = v1alpha1.MachineFailed
	deleted.DeletionTimestamp = &metav1.Time{Time: noon}
	c.changed(t.Context(), pending, failed)
	callAll(t, c.Work, deleted, class)
	ofPool := func() (count int) {
		series(t, registry) // the order in which a scrape asks is open
		for _, line := range series(t, registry) {
			if strings.Contains(line, "machine_deployment=pool,namespace=shop") {
				count++
			}
		}
		return count
	}
	if got := ofPool(); got != 5 {
		t.Errorf("%d series of the pool, want 5", got)
	}
	remove := func(object client.Object) {
		if err := c.Reader.(client.Client).Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	remove(machine)
	if got := ofPool(); got != 5 {
		t.Errorf("%d series of a pool without machines, want 5", got)
	}
	unlisted = true
	remove(deployment)
	if got := ofPool(); got != 5 {
		t.Errorf("%d series while it is not known which machines there are, want 5", got)
	}
	unlisted = false
	c.drop(nil) // one scrape without the pool
	if got := ofPool(); got != 0 {
		t.Errorf("%d series of a pool that is gone", got)
	}
}

// TestCollector_ReportsUnreadableKind checks that the failure is counted and that other kinds are exported.
func TestCollector_ReportsUnreadableKind(t *testing.T) {
	_, machine, set, deployment := fleet()
	_, registry := collect(t, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, ok := list.(*v1alpha1.MachineSetList); ok {
				return errors.New("no such luck")
			}
			return c.List(ctx, list, opts...)
		},
	}, machine, set, deployment)
	lines := strings.Join(series(t, registry), "\n")
	for _, want := range []string{
		"gauge mcm_machine_items_total{} 1", "gauge mcm_machine_deployment_items_total{} 1",
		"counter mcm_misc_scrape_failure_total{binary=machine-controller-manager,kind=MachineSet} 1",
		"counter mcm_misc_scrape_failure_total{binary=machine-controller-manager-provider,kind=Machine} 0",
	} {
		if !strings.Contains(lines, want) {
			t.Errorf("missing series: %s; got\n%s", want, lines)
		}
	}
	if strings.Contains(lines, "mcm_machine_set_") {
		t.Errorf("unexpected series of sets: %s", lines)
	}
}

// TestCollector_Start checks that the metrics are registered while the Collector runs, which is while this
// process leads. A second Collector exports nothing.
func TestCollector_Start(t *testing.T) {
	g := gomega.NewWithT(t)
	registry := prometheus.NewRegistry()
	c, _ := collect(t, interceptor.Funcs{})
	informers := &informertest.FakeInformers{Scheme: c.Reader.(client.Client).Scheme()}
	c.Registerer, c.Informers = registry, informers
	if !c.NeedLeaderElection() {
		t.Error("a standby instance counts")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Start(ctx) }()
	g.Eventually(func() []string { return series(t, registry) }).WithTimeout(waitTimeout).ShouldNot(gomega.BeEmpty())
	if err := New(c.Options).Start(t.Context()); err != nil {
		t.Errorf("the second one returned %v", err)
	}

	informer, err := informers.FakeInformerFor(ctx, &v1alpha1.Machine{})
	if err != nil {
		t.Fatal(err)
	}
	pending := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m", Namespace: "shop", Labels: map[string]string{"name": "pool"}}}
	pending.Status.CurrentStatus.Phase = v1alpha1.MachinePending
	failed := pending.DeepCopy()
	failed.Status.CurrentStatus.Phase = v1alpha1.MachineFailed
	lines := func() string { return strings.Join(series(t, registry), "\n") }
	const late = "mcm_machine_num_failed_join{instance_type=,machine_deployment=pool,namespace=shop,zone=} 1"
	informer.Update(pending, failed)
	if got := lines(); !strings.Contains(got, late) {
		t.Errorf("unexpected series: %s", got)
	}

	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if left := series(t, registry); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
