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

// Provider specifications. The fake driver can update the tags of a VM, and no other fields.
const (
	specMade     = `{"size":"s","tags":{"team":"red"}}`
	specTags     = `{"size":"s","tags":{"team":"blue"}}`
	specSize     = `{"size":"m","tags":{"team":"red"}}`
	specTagsSize = `{"size":"m","tags":{"team":"blue"}}`
)

// runningOf returns a harness with a Running Machine whose VM has the given specification.
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

// updates returns the numbers of dry runs and real updates among the calls of UpdateMachine so far.
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

// TestLiveUpdate_IsOffByDefault checks the default, which is MCM's behavior.
func TestLiveUpdate_IsOffByDefault(t *testing.T) {
	h := runningOf(t, specMade)
	h.editClass(liveupdate.Keep, specTags)
	h.Settle()
	if writes, calls := h.TakeWrites(), h.methods(); len(writes)+len(calls) > 0 {
		t.Errorf("writes %v and calls %v, want none", writes, calls)
	}
}

// TestLiveUpdate_UpdatesVM checks that a VM is updated with the expected writes only.
func TestLiveUpdate_UpdatesVM(t *testing.T) {
	h := runningOf(t, specMade)
	h.editClass(liveupdate.Update, specTags)
	h.Settle()
	if diff := cmp.Diff([]string{"patch Machine", "patch Machine", "patch status of Machine"}, h.TakeWrites()); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	if h.vmSpec() != specTags {
		t.Errorf("VM specification %s", h.vmSpec())
	}
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineRunning, v1alpha1.MachineOperationUpdate, v1alpha1.MachineStateSuccessful, `VM sim:///m1 updated to MachineClass "small": tags`})
	if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], "InstanceUpdated") {
		t.Errorf("events %q, want one", events)
	}
	if effect := liveupdate.Read(h.machine().Annotations).Effect(h.class()); effect != liveupdate.None {
		t.Errorf("effect of the class after the update: %s", effect)
	}
	h.Driver.ForgetCalls()
	h.restart()
	h.Settle()
	if writes, calls := h.TakeWrites(), h.methods(); len(writes)+len(calls) > 0 {
		t.Errorf("writes %v and calls %v after a restart, want none", writes, calls)
	}
}

func (h *harness) class() *v1alpha1.MachineClass {
	h.Helper()
	class := newClass(h.Key.Namespace)
	change(h, class, func(*v1alpha1.MachineClass) {})
	return class
}

func TestLiveUpdate_DryRunChangesNothing(t *testing.T) {
	for spec, want := range map[string]liveupdate.Effect{specMade: liveupdate.None, specTags: liveupdate.Updates, specSize: liveupdate.Replaces, specTagsSize: liveupdate.Replaces} {
		h := runningOf(t, specMade)
		h.editClass(liveupdate.DryRun, spec)
		h.Settle()
		if diff := cmp.Diff([]string{"patch Machine"}, h.TakeWrites()); diff != "" {
			t.Errorf("%s: writes (-want +got):\n%s", spec, diff)
		}
		if dry, real := h.updates(); dry != 1 || real != 0 || h.vmSpec() != specMade {
			t.Errorf("%s: %d dry runs, %d updates, VM specification %s", spec, dry, real, h.vmSpec())
		}
		if got := liveupdate.Read(h.machine().Annotations).Effect(h.class()); got != want {
			t.Errorf("%s: effect %s, want %s", spec, got, want)
		}
		h.wantRunning()
	}
}

// TestLiveUpdate_ReplacementIsReported checks that the driver makes the changes that it can, that one event reports the
// others, and that the Machine is not deleted.
func TestLiveUpdate_ReplacementIsReported(t *testing.T) {
	h := runningOf(t, specMade)
	h.editClass(liveupdate.Update, specTagsSize)
	h.Settle()
	if want := `{"size":"s","tags":{"team":"blue"}}`; h.vmSpec() != want {
		t.Errorf("VM specification %s, want %s", h.vmSpec(), want)
	}
	events := strings.Join(h.takeEvents(), "\n")
	if strings.Count(events, "Warning ReplacementNeeded") != 1 || !strings.Contains(events, "size") {
		t.Errorf("events %s", events)
	}
	h.wantRunning()
	h.Driver.ForgetCalls()
	h.TakeWrites()
	h.restart()
	h.Settle()
	if writes, calls := h.TakeWrites(), h.methods(); len(writes)+len(calls) > 0 {
		t.Errorf("writes %v and calls %v after a restart, want none", writes, calls)
	}
	h.editClass(liveupdate.Update, specMade) // the edit is reverted
	h.Settle()
	if h.vmSpec() != specMade {
		t.Errorf("VM specification %s after the edit was reverted", h.vmSpec())
	}
}

// TestLiveUpdate_CanBeRevertedAfterLostResponse checks that an edit can be reverted if the update took effect but its response was
// lost.
func TestLiveUpdate_CanBeRevertedAfterLostResponse(t *testing.T) {
	h := runningOf(t, specMade)
	h.editClass(liveupdate.Update, specMade)
	h.Settle() // records the specification of the VM
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
		t.Errorf("VM specification %s", h.vmSpec())
	}
}

type updateHook = fake.Hook[driver.UpdateMachineRequest, driver.UpdateMachineResponse]

// TestLiveUpdate_FailureIsReportedAndRetried checks that a failing update does not affect the Machine, that one event reports the
// error, and that the calls are delayed by the back-off.
func TestLiveUpdate_FailureIsReportedAndRetried(t *testing.T) {
	for name, tc := range map[string]struct {
		update  updateHook
		message string
		code    codes.Code
	}{
		"it returns success without an update": {func(_ context.Context, req *driver.UpdateMachineRequest, do func() (*driver.UpdateMachineResponse, error)) (*driver.UpdateMachineResponse, error) {
			req.DryRun = true
			return do()
		}, "the driver reported that it updated the VM, but the VM still differs in tags", codes.Internal},
		"it returns nothing":   {fake.Always[driver.UpdateMachineRequest, driver.UpdateMachineResponse](nil, nil), "the driver returned no response", codes.Internal},
		"it finds no VM":       {fake.Always[driver.UpdateMachineRequest, driver.UpdateMachineResponse](nil, failingWith(codes.NotFound)), "no luck", codes.NotFound},
		"it has no permission": {fake.Always[driver.UpdateMachineRequest, driver.UpdateMachineResponse](nil, failingWith(codes.PermissionDenied)), "no luck", codes.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			h := runningOf(t, specMade)
			h.Driver.OnUpdate(tc.update)
			h.editClass(liveupdate.Update, specTags)
			h.Settle()
			h.wantRunning()
			last := h.machine().Status.LastOperation
			if last.Type != v1alpha1.MachineOperationUpdate || last.State != v1alpha1.MachineStateProcessing || last.ErrorCode != tc.code.String() || !strings.Contains(last.Description, tc.message) {
				t.Errorf("last operation %+v", last)
			}
			if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], "FailedUpdate") {
				t.Errorf("events %q", events)
			}
			before := len(h.methods())
			h.Settle()
			if after := len(h.methods()); after != before {
				t.Errorf("%d more calls without a delay", after-before)
			}
			h.Driver.OnUpdate(nil)
			h.editClass(liveupdate.Update, specTags) // an edit causes an immediate retry
			h.Settle()
			if h.vmSpec() != specTags {
				t.Errorf("VM specification %s after the driver works again", h.vmSpec())
			}
		})
	}
}

// TestLiveUpdate_HangingDriverBlocksNothing checks that the Machine is still reconciled and can be deleted.
func TestLiveUpdate_HangingDriverBlocksNothing(t *testing.T) {
	h := runningOf(t, specMade)
	h.editClass(liveupdate.Update, specTags)
	h.Pass() // the call does not return
	h.Clock.Step(instance.Silence)
	h.Pass()
	h.Pass()
	if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], "FailedUpdate") || !strings.Contains(events[0], driverSilent(instance.Pending{Silence: instance.Silence})) {
		t.Errorf("events %q", events)
	}
	h.wantRunning()
	h.Settle()
	if h.vmSpec() != specTags {
		t.Errorf("VM specification %s after the driver responds", h.vmSpec())
	}
}

func TestLiveUpdate_DriverWithoutSupport(t *testing.T) {
	h := runningOf(t, specMade)
	h.restartWith(struct{ driver.Driver }{h.Driver})
	h.editClass(liveupdate.Update, specTags)
	h.Settle()
	if events := strings.Join(h.takeEvents(), "\n"); !strings.Contains(events, "ReplacementNeeded") || !strings.Contains(events, instance.Unable) {
		t.Errorf("events %s", events)
	}
	h.wantRunning()
}

func TestLiveUpdate_UnknownStrategyIsReported(t *testing.T) {
	h := runningOf(t, specMade)
	h.editClass("Now", specTags)
	h.Settle()
	h.Settle()
	if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], "InvalidUpdateStrategy") {
		t.Errorf("events %q", events)
	}
	if writes, calls := h.TakeWrites(), h.methods(); len(writes)+len(calls) > 0 {
		t.Errorf("writes %v and calls %v, want none", writes, calls)
	}
}

func failingWith(code codes.Code) error { return status.Error(code, "no luck today") }
