package machine

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
)

// Provider specifications. Of the driver's VMs, tags can change, and other fields cannot.
const (
	specMade     = `{"size":"s","tags":{"team":"red"}}`
	specTags     = `{"size":"s","tags":{"team":"blue"}}`
	specSize     = `{"size":"m","tags":{"team":"red"}}`
	specTagsSize = `{"size":"m","tags":{"team":"blue"}}`
)

// runningOf makes a Machine with a VM of a specification that is Running.
func runningOf(t *testing.T, spec string) *harness {
	t.Helper()
	h := newHarness(t)
	h.editClass("", spec)
	h.declare()
	h.Settle()
	h.join(ready)
	h.Settle()
	h.TakeWrites()
	h.takeEvents()
	h.Driver.ForgetCalls()
	return h
}

// editClass changes the class as a user would.
func (h *harness) editClass(strategy liveupdate.Strategy, spec string) {
	h.Helper()
	class := newClass(h.Key.Namespace)
	change(h, class, func(class *v1alpha1.MachineClass) {
		class.Generation++
		class.ProviderSpec = runtime.RawExtension{Raw: []byte(spec)}
		class.Annotations = map[string]string{v1alpha1.AnnotationKeyUpdateStrategy: string(strategy)}
	})
}

// updates are the calls of UpdateMachine so far, those that change something.
func (h *harness) updates() (dry, real int) {
	for _, req := range fake.Requests[*driver.UpdateMachineRequest](h.Driver) {
		if req.DryRun {
			dry++
		} else {
			real++
		}
	}
	return dry, real
}

func (h *harness) vmSpec() string { return h.Driver.VMs()[0].Spec }

func (h *harness) wantRunning() {
	h.Helper()
	if phase := h.machine().Status.CurrentStatus.Phase; phase != v1alpha1.MachineRunning {
		h.Errorf("the Machine is %s", phase)
	}
}

// TestAnEditedClassChangesNothing is MCM's behaviour.
func TestAnEditedClassChangesNothing(t *testing.T) {
	h := runningOf(t, specMade)
	h.editClass(liveupdate.Keep, specTags)
	h.Settle()
	if writes, calls := h.TakeWrites(), h.methods(); len(writes)+len(calls) > 0 {
		t.Errorf("it makes writes %v and calls %v", writes, calls)
	}
}

// TestAVMIsUpdated: with as few writes as the budget allows.
func TestAVMIsUpdated(t *testing.T) {
	h := runningOf(t, specMade)
	h.editClass(liveupdate.Update, specTags)
	h.Settle()
	if diff := cmp.Diff([]string{"patch Machine", "patch Machine", "patch status of Machine"}, h.TakeWrites()); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	if h.vmSpec() != specTags {
		t.Errorf("the VM is %s", h.vmSpec())
	}
	wantStatus(t, h.machine(), want4{v1alpha1.MachineRunning, v1alpha1.MachineOperationUpdate, v1alpha1.MachineStateSuccessful, `VM sim:///m1 updated to MachineClass "small": tags`})
	if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], "InstanceUpdated") {
		t.Errorf("events are %q", events)
	}
	if effect := liveupdate.Read(h.machine().Annotations).Effect(h.class()); effect != liveupdate.None {
		t.Errorf("then the class %s", effect)
	}
	h.Driver.ForgetCalls()
	h.restart()
	h.Settle()
	if writes, calls := h.TakeWrites(), h.methods(); len(writes)+len(calls) > 0 {
		t.Errorf("after a restart it makes writes %v and calls %v", writes, calls)
	}
}

func (h *harness) class() *v1alpha1.MachineClass {
	h.Helper()
	class := newClass(h.Key.Namespace)
	change(h, class, func(*v1alpha1.MachineClass) {})
	return class
}

func TestADryRunChangesNothing(t *testing.T) {
	for spec, want := range map[string]liveupdate.Effect{specMade: liveupdate.None, specTags: liveupdate.Updates, specSize: liveupdate.Replaces, specTagsSize: liveupdate.Replaces} {
		h := runningOf(t, specMade)
		h.editClass(liveupdate.DryRun, spec)
		h.Settle()
		if diff := cmp.Diff([]string{"patch Machine"}, h.TakeWrites()); diff != "" {
			t.Errorf("%s: writes (-want +got):\n%s", spec, diff)
		}
		if dry, real := h.updates(); dry != 1 || real != 0 || h.vmSpec() != specMade {
			t.Errorf("%s: %d dry runs, %d updates; the VM is %s", spec, dry, real, h.vmSpec())
		}
		if got := liveupdate.Read(h.machine().Annotations).Effect(h.class()); got != want {
			t.Errorf("%s: the Machine says that it %s, want %s", spec, got, want)
		}
		h.wantRunning()
	}
}

// TestWhatNeedsAReplacement: what can be changed is, the rest is said once, and no Machine goes.
func TestWhatNeedsAReplacement(t *testing.T) {
	h := runningOf(t, specMade)
	h.editClass(liveupdate.Update, specTagsSize)
	h.Settle()
	if want := `{"size":"s","tags":{"team":"blue"}}`; h.vmSpec() != want {
		t.Errorf("the VM is %s, want %s", h.vmSpec(), want)
	}
	events := strings.Join(h.takeEvents(), "\n")
	if strings.Count(events, "Warning ReplacementNeeded") != 1 || !strings.Contains(events, "size") {
		t.Errorf("events are %s", events)
	}
	h.wantRunning()
	h.Driver.ForgetCalls()
	h.TakeWrites()
	h.restart()
	h.Settle()
	if writes, calls := h.TakeWrites(), h.methods(); len(writes)+len(calls) > 0 {
		t.Errorf("after a restart it makes writes %v and calls %v", writes, calls)
	}
	h.editClass(liveupdate.Update, specMade) // the edit is taken back
	h.Settle()
	if h.vmSpec() != specMade {
		t.Errorf("after the edit was taken back the VM is %s", h.vmSpec())
	}
}

// TestAnUpdateThatIsTakenBack: it had its effect, and its answer was lost.
func TestAnUpdateThatIsTakenBack(t *testing.T) {
	h := runningOf(t, specMade)
	h.editClass(liveupdate.Update, specMade)
	h.Settle() // it is known what the VM was made from
	h.Driver.OnUpdate(func(_ context.Context, req *driver.UpdateMachineRequest, do func() (*driver.UpdateMachineResponse, error)) (*driver.UpdateMachineResponse, error) {
		resp, err := do()
		if req.DryRun {
			return resp, err
		}
		return nil, context.DeadlineExceeded
	})
	h.editClass(liveupdate.Update, specTags)
	h.Settle()
	h.Driver.OnUpdate(nil)
	h.editClass(liveupdate.Update, specMade)
	h.Settle()
	if h.vmSpec() != specMade {
		t.Errorf("the VM is %s", h.vmSpec())
	}
}

type updateHook = fake.Hook[driver.UpdateMachineRequest, driver.UpdateMachineResponse]

// TestDriversThatUpdateBadly: the Machine stays as well as it is, one event says what is wrong, and the calls are
// spread by the back-off.
func TestDriversThatUpdateBadly(t *testing.T) {
	for name, tc := range map[string]struct {
		update updateHook
		says   string
		code   codes.Code
	}{
		"it says that it is done, and is not": {func(_ context.Context, req *driver.UpdateMachineRequest, do func() (*driver.UpdateMachineResponse, error)) (*driver.UpdateMachineResponse, error) {
			req.DryRun = true
			return do()
		}, "the driver says that the VM was updated, and that it still differs in tags", codes.Internal},
		"it answers with nothing": {fake.Always[driver.UpdateMachineRequest, driver.UpdateMachineResponse](nil, nil), "without a response", codes.Internal},
		"it finds no VM":          {fake.Always[driver.UpdateMachineRequest, driver.UpdateMachineResponse](nil, failingWith(codes.NotFound)), "no luck", codes.NotFound},
		"it is not allowed to":    {fake.Always[driver.UpdateMachineRequest, driver.UpdateMachineResponse](nil, failingWith(codes.PermissionDenied)), "no luck", codes.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			h := runningOf(t, specMade)
			h.Driver.OnUpdate(tc.update)
			h.editClass(liveupdate.Update, specTags)
			h.Settle()
			h.wantRunning()
			last := h.machine().Status.LastOperation
			if last.Type != v1alpha1.MachineOperationUpdate || last.State != v1alpha1.MachineStateProcessing || last.ErrorCode != tc.code.String() || !strings.Contains(last.Description, tc.says) {
				t.Errorf("the last operation is %+v", last)
			}
			if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], "FailedUpdate") {
				t.Errorf("events are %q", events)
			}
			before := len(h.methods())
			h.Settle()
			if after := len(h.methods()); after != before {
				t.Errorf("without a pause it is called %d times more", after-before)
			}
			h.Driver.OnUpdate(nil)
			h.editClass(liveupdate.Update, specTags) // as with every edit, it is tried again at once
			h.Settle()
			if h.vmSpec() != specTags {
				t.Errorf("when the driver works the VM is %s", h.vmSpec())
			}
		})
	}
}

// TestADriverThatHangs: the Machine is followed and deleted as ever.
func TestADriverThatHangs(t *testing.T) {
	h := runningOf(t, specMade)
	h.editClass(liveupdate.Update, specTags)
	h.Pass() // its call does not return
	h.Clock.Step(instance.Silence)
	h.Pass()
	h.Pass()
	if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], "FailedUpdate") || !strings.Contains(events[0], driverSilent) {
		t.Errorf("events are %q", events)
	}
	h.wantRunning()
	h.Settle()
	if h.vmSpec() != specTags {
		t.Errorf("when the driver answers the VM is %s", h.vmSpec())
	}
}

func TestADriverThatCannotUpdate(t *testing.T) {
	h := runningOf(t, specMade)
	h.restartWith(struct{ driver.Driver }{h.Driver})
	h.editClass(liveupdate.Update, specTags)
	h.Settle()
	if events := strings.Join(h.takeEvents(), "\n"); !strings.Contains(events, "ReplacementNeeded") || !strings.Contains(events, instance.Unable) {
		t.Errorf("events are %s", events)
	}
	h.wantRunning()
}

func TestAnUnknownStrategy(t *testing.T) {
	h := runningOf(t, specMade)
	h.editClass("Now", specTags)
	h.Settle()
	h.Settle()
	if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], "InvalidUpdateStrategy") {
		t.Errorf("events are %q", events)
	}
	if writes, calls := h.TakeWrites(), h.methods(); len(writes)+len(calls) > 0 {
		t.Errorf("it makes writes %v and calls %v", writes, calls)
	}
}

func failingWith(code codes.Code) error { return status.Error(code, "no luck today") }
