package machine

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity/capacity"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

const (
	fallbackAfter  = 5 * time.Second
	fallbackMemory = 5 * time.Minute
)

// scarce is a harness with two more classes, some of which have no capacity.
type scarce struct {
	*harness
	// full contains the classes without capacity. If left is true, a creation that fails nevertheless creates a
	// VM.
	full map[string]bool
	left bool
}

func newScarce(t *testing.T, full ...string) *scarce {
	t.Helper()
	s := &scarce{harness: newHarness(t, otherClass("medium"), otherClass("large")), full: map[string]bool{}}
	for _, name := range full {
		s.full[name] = true
	}
	s.Driver.OnCreate(func(_ context.Context, req *driver.CreateMachineRequest, do func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
		if !s.full[req.MachineClass.Name] {
			return do()
		}
		if s.left {
			_, _ = do()
		}
		return nil, status.Error(codes.ResourceExhausted, req.MachineClass.Name+" is full")
	})
	s.remember()
	return s
}

// otherClass returns a class with the specification of the Machine's class.
func otherClass(name string, changes ...func(*v1alpha1.MachineClass)) *v1alpha1.MachineClass {
	class := fixture.Named(name, newClass(namespace))
	for _, change := range changes {
		change(class)
	}
	return class
}

// remember gives the controller an empty capacity memory, like that of a new process.
func (s *scarce) remember() {
	s.controller.Capacity = capacity.New(capacity.Options{After: fallbackAfter, Memory: fallbackMemory, Clock: s.Clock})
}

func choosing(names ...string) func(*v1alpha1.Machine) {
	return func(machine *v1alpha1.Machine) {
		machine.Annotations = map[string]string{v1alpha1.AnnotationKeyClassChoices: strings.Join(names, ",")}
	}
}

// requested returns the classes of the requests to create a VM, in order.
func (s *scarce) requested() []string {
	var names []string
	for _, request := range fake.Requests[*driver.CreateMachineRequest](s.Driver) {
		names = append(names, request.MachineClass.Name)
	}
	return names
}

// wantVM checks that there is one VM, that it has this class, and that the Machine names both.
func (s *scarce) wantVM(class string) {
	s.Helper()
	vms := s.Driver.VMs()
	if len(vms) != 1 || vms[0].Class != namespace+"/"+class {
		s.Errorf("the VMs are %+v, want one of class %s", vms, class)
	}
	if machine := s.machine(); machine.Spec.Class.Name != class || machine.Spec.ProviderID == "" {
		s.Errorf("the Machine has class %q and VM %q, want class %s", machine.Spec.Class.Name, machine.Spec.ProviderID, class)
	}
}

// TestFallback_UsesNextClass checks that the next class is used after a short time, and that there is no error code
// for autoscalers until then.
func TestFallback_UsesNextClass(t *testing.T) {
	s := newScarce(t, className)
	s.declare(choosing(className, "medium", "large"))
	s.Settle()
	if last := s.machine().Status.LastOperation; last.ErrorCode != "" || last.State != v1alpha1.MachineStateProcessing || s.machine().Spec.Class.Name != className {
		t.Errorf("last operation %+v while another class can be used", last)
	}
	s.SettleAfter(fallbackAfter)
	s.wantVM("medium")
	if got := s.machine().Annotations[v1alpha1.AnnotationKeyClassReason]; got != v1alpha1.CauseNoCapacity {
		t.Errorf("reason %q", got)
	}
	if events := s.takeEvents(); !slices.ContainsFunc(events, func(event string) bool {
		return strings.Contains(event, "FellBack") && strings.Contains(event, "class medium because class small has no capacity")
	}) {
		t.Errorf("events %q, want one about the fallback", events)
	}
	if got := s.requested(); !slices.Equal(got, []string{className, "medium"}) {
		t.Errorf("requested classes %v", got)
	}
}

// TestFallback_DeletesOrAdoptsLateVM checks a VM that a failed creation leaves behind. The Machine adopts it if there is
// time; otherwise it is deleted before the next class is used.
func TestFallback_DeletesOrAdoptsLateVM(t *testing.T) {
	for name, test := range map[string]struct {
		after time.Duration
		want  string
	}{"after a delay": {fallbackAfter, className}, "immediately": {0, "medium"}} {
		t.Run(name, func(t *testing.T) {
			s := newScarce(t, className)
			s.controller.Capacity = capacity.New(capacity.Options{After: test.after, Clock: s.Clock})
			s.left = true
			s.declare(choosing(className, "medium"))
			s.Settle()
			s.SettleAfter(fallbackAfter)
			s.wantVM(test.want)
		})
	}
}

// TestFallback_ReportsExhaustionOfAllClasses checks that autoscalers see the error code as soon as no class has capacity, and that the
// first class that has capacity again is used.
func TestFallback_ReportsExhaustionOfAllClasses(t *testing.T) {
	s := newScarce(t, className, "medium", "large")
	s.declare(choosing(className, "medium", "large"))
	s.Settle()
	for range 3 {
		s.SettleAfter(fallbackAfter)
	}
	wantStatus(t, s.machine(), statusFields{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "large is full"})
	if code := s.machine().Status.LastOperation.ErrorCode; code != codes.ResourceExhausted.String() {
		t.Errorf("error code %q", code)
	}
	s.Driver.ForgetCalls()
	s.SettleAfter(time.Minute)
	if got := s.requested(); len(got) > 0 {
		t.Errorf("requested classes %v, want none", got)
	}
	delete(s.full, className)
	s.SettleAfter(fallbackMemory)
	s.SettleAfter(fallbackAfter)
	s.wantVM(className)
	if _, noted := s.machine().Annotations[v1alpha1.AnnotationKeyClassReason]; noted {
		t.Error("the first choice has a reason annotation")
	}
	if !slices.ContainsFunc(s.takeEvents(), func(event string) bool { return strings.Contains(event, "Class small has capacity again") }) {
		t.Error("there is no event that the class has capacity again")
	}
}

// TestFallback_SkipsExhaustedClass checks that a new Machine uses what is known about the capacity of classes.
func TestFallback_SkipsExhaustedClass(t *testing.T) {
	s := newScarce(t, className)
	s.declare(choosing(className, "medium"))
	s.Settle()
	s.SettleAfter(fallbackAfter)
	s.Driver.ForgetCalls()
	s.Key.Name = "m2"
	second := newMachine(namespace, s.Clock.Now())
	second.Name, second.UID = "m2", "m2"
	choosing(className, "medium")(second)
	s.create(second)
	s.controller.Capacity.Untouched(s.machine(), newClass(namespace))
	s.Settle()
	if got := s.requested(); !slices.Equal(got, []string{"medium"}) {
		t.Errorf("requested classes %v", got)
	}
	if n := len(s.Driver.VMs()); n != 2 {
		t.Errorf("%d VMs", n)
	}
}

// TestFallback_KeepsVMOfLostResponse checks that a VM that may have been created is not left behind when the response
// is lost.
func TestFallback_KeepsVMOfLostResponse(t *testing.T) {
	s := newScarce(t)
	s.declare(choosing(className, "medium"))
	s.Driver.FailAfter(fake.CreateMachine, codes.DeadlineExceeded)
	s.UntilCalled(fake.CreateMachine)
	s.restart()
	s.remember()
	s.full[className] = true
	s.Settle()
	s.SettleAfter(time.Minute)
	s.wantVM(className)
}

// TestFallback_SurvivesRestartAtAnyStep checks that a process may terminate after any call or write: there is one VM after the
// creation, and none after the deletion.
func TestFallback_SurvivesRestartAtAnyStep(t *testing.T) {
	for steps := range 14 {
		s := newScarce(t, className)
		s.declare(choosing(className, "medium"))
		for step := range steps {
			s.Pass()
			s.Call()
			if step > 4 {
				s.Clock.Step(fallbackAfter)
			}
		}
		s.restart()
		s.remember()
		s.Settle()
		s.SettleAfter(fallbackAfter)
		s.SettleAfter(time.Minute)
		s.wantVM("medium")
		s.delete()
		s.Settle()
		if !s.gone() || len(s.Driver.VMs()) > 0 {
			t.Fatalf("after %d passes and calls: gone %v, VMs %v", steps, s.gone(), s.Driver.VMs())
		}
	}
}

// TestFallback_SkipsUnfitClasses checks that an unfit class causes one event and no repeated writes, and that the next
// class is used.
func TestFallback_SkipsUnfitClasses(t *testing.T) {
	for name, test := range map[string]struct {
		other   client.Object
		message string
	}{
		"missing":          {nil, `Machines cannot fall back to class other: MachineClass "other" not found`},
		"another provider": {otherClass("other", func(c *v1alpha1.MachineClass) { c.Provider = "elsewhere" }), `has provider "elsewhere"`},
		"not valid":        {otherClass("other", func(c *v1alpha1.MachineClass) { c.NodeTemplate = &v1alpha1.NodeTemplate{} }), `"other" is not valid`},
		"no secret":        {otherClass("other", func(c *v1alpha1.MachineClass) { c.SecretRef.Name = "none" }), `of MachineClass "other" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScarce(t, className)
			if test.other != nil {
				s.create(test.other)
			}
			s.declare(choosing(className, "other"))
			s.Settle()
			s.SettleAfter(fallbackAfter)
			if events := s.takeEvents(); !slices.ContainsFunc(events, func(event string) bool { return strings.Contains(event, test.message) }) {
				t.Errorf("events do not contain %q: %q", test.message, events)
			}
			if code := s.machine().Status.LastOperation.ErrorCode; code != codes.ResourceExhausted.String() || s.machine().Spec.Class.Name != className {
				t.Errorf("error code %q, class %q", code, s.machine().Spec.Class.Name)
			}
			s.TakeWrites()
			s.Settle()
			if writes := s.TakeWrites(); len(writes) > 0 {
				t.Errorf("unexpected writes: %v", writes)
			}
			change(s.harness, s.machine(), func(m *v1alpha1.Machine) { choosing(className, "other", "large")(m) })
			s.Settle()
			s.SettleAfter(fallbackAfter)
			s.wantVM("large")
		})
	}
}

// TestFallback_UsesNewClass checks that a new class is used immediately, and triggers passes over the Machines that
// may fall back to it.
func TestFallback_UsesNewClass(t *testing.T) {
	s := newScarce(t, className)
	s.declare(choosing(className, "late"))
	s.Settle()
	s.SettleAfter(fallbackAfter)
	late := otherClass("late")
	s.create(late)
	woken := mapper{cache: s.Record(s.control, indexes)}.waitingForClass(t.Context(), late)
	if len(woken) != 1 || woken[0].NamespacedName != s.Key {
		t.Errorf("requests %v", woken)
	}
	s.Settle()
	s.wantVM("late")
}

// TestFallback_NoExtraCallsWithoutChoices checks that a Machine without fallback classes causes the same calls and
// writes with and without a capacity memory.
func TestFallback_NoExtraCallsWithoutChoices(t *testing.T) {
	var calls [2][]fake.Method
	var writes [2][]string
	for i := range 2 {
		s := newScarce(t, className)
		if i == 0 {
			s.controller.Capacity = nil
		}
		s.declare()
		s.Settle()
		delete(s.full, className)
		s.SettleAfter(20 * time.Minute)
		calls[i], writes[i] = s.methods(), s.TakeWrites()
	}
	if !slices.Equal(calls[0], calls[1]) || !slices.Equal(writes[0], writes[1]) {
		t.Errorf("calls with and without a memory: %v and %v, writes: %v and %v", calls[0], calls[1], writes[0], writes[1])
	}
}

// TestFallback_ChangesLocation checks that the location of the first class is removed when the Machine falls back, so that
// the driver may use the location of the next class.
func TestFallback_ChangesLocation(t *testing.T) {
	s := newScarce(t, className)
	s.accounts()
	s.lead("first")
	secret := fixture.Named("second", newSecret(namespace))
	secret.Data = maps.Clone(secret.Data)
	secret.Data["account"] = []byte("second")
	s.create(secret, otherClass("other", func(c *v1alpha1.MachineClass) { c.SecretRef.Name = "second" }))
	s.declare(choosing(className, "other"))
	s.Settle()
	if at := driver.Location(s.machine()); at != "account first" {
		t.Errorf("location %q", at)
	}
	s.SettleAfter(fallbackAfter)
	s.wantVM("other")
	if at := driver.Location(s.machine()); at != "account second" {
		t.Errorf("location %q", at)
	}
}
