package metrics

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
)

// works returns a Work on objects, its clock, and a function that returns the exported series.
func works(t *testing.T, objects ...client.Object) (*Work, *clocktesting.FakePassiveClock, func() []string) {
	t.Helper()
	c, _ := collect(t, interceptor.Funcs{}, objects...)
	clock, registry := clocktesting.NewFakePassiveClock(noon), prometheus.NewPedanticRegistry()
	w := NewWork(Options{Reader: c.Reader, Clock: clock, Registerer: registry})
	return w, clock, func() []string { return series(t, registry) }
}

// callAll creates, initializes, drains and deletes the instance of a Machine.
func callAll(t *testing.T, w *Work, machine *v1alpha1.Machine, class *v1alpha1.MachineClass) {
	t.Helper()
	machine = machine.DeepCopy()
	machine.Spec.ProviderID = "" // the fake driver gives it another one
	d := w.Driver(fake.New(fake.Config{RequireInitialize: true}))
	_, created := d.CreateMachine(t.Context(), &driver.CreateMachineRequest{Machine: machine, MachineClass: class})
	_, initialized := d.(driver.Initializer).InitializeMachine(t.Context(), &driver.InitializeMachineRequest{Machine: machine, MachineClass: class})
	_, drained := w.Drainer(&script{report: drain.Report{Done: true}}).Drain(t.Context(), drain.Request{Machine: client.ObjectKeyFromObject(machine)})
	_, deleted := d.DeleteMachine(t.Context(), &driver.DeleteMachineRequest{Machine: machine, MachineClass: class})
	if err := errors.Join(created, initialized, drained, deleted); err != nil {
		t.Fatal(err)
	}
}

// TestCreateAndDeleteDuration checks that durations last from the timestamp of the object until the
// driver returns.
func TestCreateAndDeleteDuration(t *testing.T) {
	class, machine, _, _ := fleet()
	machine.CreationTimestamp, machine.DeletionTimestamp = metav1.NewTime(noon), &metav1.Time{Time: noon.Add(time.Hour)}
	undeleted := machine.DeepCopy()
	undeleted.DeletionTimestamp = nil
	for reason, test := range map[string]struct {
		machine *v1alpha1.Machine
		err     error
		want    []string
	}{
		"it succeeds": {machine, nil, []string{
			"gauge mcm_machine_create_duration_seconds{instance_type=m1,machine_deployment=pool,namespace=shop,zone=z1} 20",
			"gauge mcm_machine_delete_duration_seconds{instance_type=m1,machine_deployment=pool,namespace=shop,zone=z1} 30",
		}},
		"a VM is replaced": {undeleted, nil, []string{
			"gauge mcm_machine_create_duration_seconds{instance_type=m1,machine_deployment=pool,namespace=shop,zone=z1} 20",
		}},
		"it fails":      {machine, status.Error(codes.Internal, "no"), nil},
		"of no Machine": {nil, nil, nil},
	} {
		t.Run(reason, func(t *testing.T) {
			w, clock, exported := works(t)
			slow := fake.New(fake.Config{})
			slow.OnCreate(func(context.Context, *driver.CreateMachineRequest, func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
				clock.SetTime(noon.Add(20 * time.Second))
				return &driver.CreateMachineResponse{}, test.err
			})
			slow.OnDelete(func(context.Context, *driver.DeleteMachineRequest, func() (*driver.DeleteMachineResponse, error)) (*driver.DeleteMachineResponse, error) {
				clock.SetTime(noon.Add(time.Hour + 30*time.Second))
				return &driver.DeleteMachineResponse{}, test.err
			})
			d := w.Driver(slow)
			created, err := d.CreateMachine(t.Context(), &driver.CreateMachineRequest{Machine: test.machine, MachineClass: class})
			if created == nil || !errors.Is(err, test.err) {
				t.Errorf("creation returned %v, %v", created, err)
			}
			deleted, err := d.DeleteMachine(t.Context(), &driver.DeleteMachineRequest{Machine: test.machine, MachineClass: class})
			if deleted == nil || !errors.Is(err, test.err) {
				t.Errorf("deletion returned %v, %v", deleted, err)
			}
			if diff := cmp.Diff(test.want, exported()); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

func TestInitializeDuration(t *testing.T) {
	class, machine, _, _ := fleet()
	anonymous := machine.DeepCopy()
	anonymous.Labels = nil
	for reason, test := range map[string]struct {
		req  driver.InitializeMachineRequest
		err  error
		want []string
	}{
		"it succeeds":             {driver.InitializeMachineRequest{Machine: machine, MachineClass: class}, nil, []string{"gauge mcm_machine_initialize_duration_seconds{instance_type=m1,machine_deployment=pool,namespace=shop,zone=z1} 7"}},
		"without a class":         {driver.InitializeMachineRequest{Machine: machine}, nil, []string{"gauge mcm_machine_initialize_duration_seconds{instance_type=,machine_deployment=pool,namespace=shop,zone=z1} 7"}},
		"of no deployment":        {driver.InitializeMachineRequest{Machine: anonymous, MachineClass: class}, nil, nil},
		"it fails":                {driver.InitializeMachineRequest{Machine: machine, MachineClass: class}, status.Error(codes.Internal, "no"), nil},
		"there is nothing of its": {driver.InitializeMachineRequest{}, nil, nil},
	} {
		t.Run(reason, func(t *testing.T) {
			w, clock, exported := works(t)
			slow := fake.New(fake.Config{})
			slow.OnInitialize(func(context.Context, *driver.InitializeMachineRequest, func() (*driver.InitializeMachineResponse, error)) (*driver.InitializeMachineResponse, error) {
				clock.SetTime(noon.Add(7 * time.Second))
				return &driver.InitializeMachineResponse{}, test.err
			})
			d := w.Driver(slow)
			resp, err := d.(driver.Initializer).InitializeMachine(t.Context(), &test.req)
			if resp == nil || !errors.Is(err, test.err) {
				t.Errorf("returned %v, %v", resp, err)
			}
			if diff := cmp.Diff(test.want, exported()); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

// able is a driver with every optional interface.
type able interface {
	driver.Driver
	driver.Initializer
	driver.VolumeIdentifier
	driver.ClassMigrator
	driver.KindMigrator
	driver.FailureDomains
	driver.APIGroupSeparator
	driver.Locator
	driver.Updater
}

// TestDriver_KeepsOptionalInterfacesWhenTimed checks that the decorator does not hide optional interfaces.
func TestDriver_KeepsOptionalInterfacesWhenTimed(t *testing.T) {
	w, _, _ := works(t)
	timed := w.Driver(struct{ able }{})
	for name, kept := range map[string]bool{
		"Initializer": has[driver.Initializer](timed), "VolumeIdentifier": has[driver.VolumeIdentifier](timed),
		"ClassMigrator": has[driver.ClassMigrator](timed), "KindMigrator": has[driver.KindMigrator](timed),
		"FailureDomains": has[driver.FailureDomains](timed), "APIGroupSeparator": has[driver.APIGroupSeparator](timed),
		"Locator": has[driver.Locator](timed), "Updater": has[driver.Updater](timed),
	} {
		if !kept {
			t.Errorf("the decorated driver has no %s", name)
		}
	}
	if initializer, _ := driver.As[driver.Initializer](timed); any(initializer) != any(timed) {
		t.Error("initializations are not measured")
	}
}

func has[Ability any](d driver.Driver) bool {
	_, found := driver.As[Ability](d)
	return found
}

// TestDriver_WithoutInitializeIsNotTimed checks that callers still get Unimplemented.
func TestDriver_WithoutInitializeIsNotTimed(t *testing.T) {
	w, _, exported := works(t)
	var bare struct{ driver.Driver }
	_, err := w.Driver(bare).(driver.Initializer).InitializeMachine(t.Context(), &driver.InitializeMachineRequest{})
	if status.Code(err) != codes.Unimplemented || len(exported()) > 0 {
		t.Errorf("returned %v, exported %q", err, exported())
	}
}

// script is a Drainer that returns predefined reports.
type script struct {
	drain.Interface
	report drain.Report
	err    error
	forgot []types.NamespacedName
}

func (s *script) Drain(context.Context, drain.Request) (drain.Report, error) { return s.report, s.err }
func (s *script) Forget(machine types.NamespacedName)                        { s.forgot = append(s.forgot, machine) }

// TestDrainDuration drains one node, pass by pass.
func TestDrainDuration(t *testing.T) {
	_, machine, _, _ := fleet()
	key := client.ObjectKeyFromObject(machine)
	type pass struct {
		at     time.Duration
		report drain.Report
		err    error
		want   string // the duration exported so far
	}
	waits, done := drain.Report{}, drain.Report{Done: true}
	for reason, passes := range map[string][]pass{
		"it takes a while, and is looked at afterwards": {{0, waits, nil, ""}, {20 * time.Second, waits, nil, ""}, {30 * time.Second, done, nil, "30"}, {90 * time.Second, done, nil, "30"}},
		"a process takes over in the middle":            {{20 * time.Second, waits, nil, ""}, {30 * time.Second, done, nil, "30"}},
		"the node was empty":                            {{20 * time.Second, done, nil, "0"}, {30 * time.Second, done, nil, "0"}},
		"a pass fails":                                  {{0, waits, nil, ""}, {10 * time.Second, done, errors.New("away"), ""}, {20 * time.Second, done, nil, "20"}},
		"the node is gone":                              {{0, drain.Report{Done: true, NodeGone: true}, nil, ""}},
	} {
		t.Run(reason, func(t *testing.T) {
			w, clock, exported := works(t, machine)
			s := &script{}
			d := w.Drainer(s)
			for _, p := range passes {
				clock.SetTime(noon.Add(p.at))
				s.report, s.err = p.report, p.err
				report, err := d.Drain(t.Context(), drain.Request{Machine: key, Since: noon})
				if !cmp.Equal(report, p.report) || !errors.Is(err, p.err) {
					t.Errorf("%s: returned %+v, %v", p.at, report, err)
				}
				want := ""
				if p.want != "" {
					want = "gauge mcm_machine_drain_duration_seconds{machine_deployment=pool,namespace=shop} " + p.want
				}
				if got := strings.Join(exported(), "\n"); got != want {
					t.Errorf("%s: exported %q, want %q", p.at, got, want)
				}
			}
			d.Forget(key)
			if len(s.forgot) != 1 || len(d.(*timedDrainer).drains) != 0 {
				t.Errorf("forgotten: %v, left: %v", s.forgot, d.(*timedDrainer).drains)
			}
		})
	}
}

// TestDrainDuration_OfUnknownMachine checks that nothing is exported without a deployment.
func TestDrainDuration_OfUnknownMachine(t *testing.T) {
	_, machine, _, _ := fleet()
	machine.Labels = nil
	w, _, exported := works(t, machine)
	d := w.Drainer(&script{report: drain.Report{Done: true}})
	for _, name := range []string{machine.Name, "gone"} {
		if _, err := d.Drain(t.Context(), drain.Request{Machine: types.NamespacedName{Namespace: machine.Namespace, Name: name}}); err != nil {
			t.Error(err)
		}
	}
	if len(exported()) > 0 {
		t.Errorf("exported %q", exported())
	}
}

// TestManager_SharesMetricsWithinProcess checks that several managers can run in one process.
func TestManager_SharesMetricsWithinProcess(t *testing.T) {
	_, clock, _ := works(t)
	registry := prometheus.NewPedanticRegistry()
	first, second := NewWork(Options{Clock: clock, Registerer: registry}), NewWork(Options{Clock: clock, Registerer: registry})
	if first.drain != second.drain || first.initialize != second.initialize {
		t.Error("the second manager does not share the metrics")
	}
}
