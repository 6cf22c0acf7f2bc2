package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/status"
)

// TestMachine_FailedCreationSetsErrorCode checks that each error code is in the status, and that the driver's
// LastKnownState is kept for codes after which the creation may still be in progress.
func TestMachine_FailedCreationSetsErrorCode(t *testing.T) {
	kept := map[codes.Code]bool{
		codes.ResourceExhausted: true, codes.Unknown: true, codes.DeadlineExceeded: true, codes.Aborted: true, codes.Unavailable: true,
	}
	for code := codes.Canceled; code <= codes.Uninitialized; code++ {
		for _, method := range []fake.Method{fake.GetMachineStatus, fake.CreateMachine} {
			if code == codes.Uninitialized || method == fake.GetMachineStatus && (code == codes.NotFound || code == codes.Unimplemented) {
				continue // not failures
			}
			t.Run(fmt.Sprintf("%s from %s", code, method), func(t *testing.T) {
				h := newHarness(t)
				h.declare(func(m *v1alpha1.Machine) { m.Status.LastKnownState = "disk made" })
				h.Driver.Fail(method, code)
				h.Settle()
				got := h.machine().Status
				wantStatus(t, h.machine(), statusFields{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "Cloud provider message - "})
				if !strings.Contains(got.LastOperation.Description, "failed as configured") {
					t.Errorf("description %q lacks the provider's message", got.LastOperation.Description)
				}
				if got.LastOperation.ErrorCode != code.String() {
					t.Errorf("error code %q, want %q", got.LastOperation.ErrorCode, code)
				}
				want := ""
				if kept[code] {
					want = "disk made"
				}
				if got.LastKnownState != want {
					t.Errorf("lastKnownState %q, want %q", got.LastKnownState, want)
				}
			})
		}
	}
}

// TestMachine_LastKnownStateOfCreation checks that the LastKnownState that a driver returns with any error is kept until the
// next call.
func TestMachine_LastKnownStateOfCreation(t *testing.T) {
	for _, code := range []codes.Code{codes.Internal, codes.ResourceExhausted} {
		t.Run(code.String(), func(t *testing.T) {
			h := newHarness(t)
			const note = "disk made, no IP yet"
			h.Driver.OnCreate(func(context.Context, *driver.CreateMachineRequest, func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
				return &driver.CreateMachineResponse{LastKnownState: note}, status.Error(code, "out of order")
			})
			h.declare(func(m *v1alpha1.Machine) { m.Status.LastKnownState = "older" })
			h.Settle()
			h.Pass()
			if got := h.machine().Status.LastKnownState; got != note {
				t.Errorf("lastKnownState %q, want %q", got, note)
			}
		})
	}
}

// TestMachine_OneEventPerErrorCode checks that a repeated error causes only one event.
func TestMachine_OneEventPerErrorCode(t *testing.T) {
	h := newHarness(t)
	h.Driver.Fail(fake.CreateMachine, codes.Internal, codes.Internal, codes.Unavailable, codes.Unavailable, codes.Internal)
	h.declare()
	var sent []string
	for range 5 {
		h.Settle()
		for _, event := range h.takeEvents() {
			sent = append(sent, event[strings.LastIndex(event, "(")+1:strings.LastIndex(event, ")")])
		}
		h.Clock.Step(time.Minute)
	}
	if diff := cmp.Diff([]string{"Internal", "Unavailable", "Internal"}, sent); diff != "" {
		t.Errorf("codes in events (-want +got):\n%s", diff)
	}
	if got := len(h.Driver.Calls(fake.CreateMachine)); got != 5 {
		t.Errorf("%d creations, want 5", got)
	}
	h.SettleAfter(time.Minute)
	if got := h.machine().Status; got.LastOperation.ErrorCode != "" || got.CurrentStatus.Phase != v1alpha1.MachinePending {
		t.Errorf("after success the error code is %q and the phase %q", got.LastOperation.ErrorCode, got.CurrentStatus.Phase)
	}
}

// TestMachine_StatusHasLatestMessage checks that the status has the latest message of the provider, even if the code is the same
// and no event is sent.
func TestMachine_StatusHasLatestMessage(t *testing.T) {
	h := newHarness(t)
	h.declare()
	h.Driver.FailWith(fake.CreateMachine, errors.New("first"), errors.New("second"))
	h.Settle()
	h.SettleAfter(time.Minute)
	if got := h.machine().Status.LastOperation.Description; !strings.Contains(got, "second") {
		t.Errorf("description %q, want the second message", got)
	}
	if events := h.takeEvents(); len(events) != 1 {
		t.Errorf("events %q, want one", events)
	}
}

// TestMachine_FailsIfNameIsTaken checks that a Machine of a MachineSet whose name is taken becomes Failed, so that the set replaces
// it, and that a Machine without a set retries.
func TestMachine_FailsIfNameIsTaken(t *testing.T) {
	cases := map[string]struct {
		machine func(*v1alpha1.Machine)
		method  fake.Method
		want    v1alpha1.MachinePhase
	}{
		"owned":                    {owned, fake.CreateMachine, v1alpha1.MachineFailed},
		"alone":                    {func(*v1alpha1.Machine) {}, fake.CreateMachine, v1alpha1.MachineCrashLoopBackOff},
		"owned, from a status":     {owned, fake.GetMachineStatus, v1alpha1.MachineCrashLoopBackOff},
		"owned, from initializing": {owned, fake.InitializeMachine, v1alpha1.MachineFailed},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.Driver.Fail(tc.method, codes.AlreadyExists)
			h.declare(tc.machine)
			h.Settle()
			got := h.machine().Status
			if got.CurrentStatus.Phase != tc.want || got.LastOperation.ErrorCode != "AlreadyExists" {
				t.Errorf("phase %q, code %q; want %q, AlreadyExists", got.CurrentStatus.Phase, got.LastOperation.ErrorCode, tc.want)
			}
		})
	}
}

// TestMachine_InitializationIsRetried checks that the VM is recorded before it is initialized, and that only the initialization
// is retried.
func TestMachine_InitializationIsRetried(t *testing.T) {
	h := newHarness(t)
	h.Driver.Fail(fake.InitializeMachine, codes.ResourceExhausted)
	h.declare()
	h.Settle()
	got := h.machine()
	wantStatus(t, got, statusFields{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "Initialize VM Instance"})
	if !strings.HasPrefix(got.Status.LastOperation.Description, "Provider error: ") || got.Status.LastOperation.ErrorCode != "ResourceExhausted" {
		t.Errorf("description %q, code %q", got.Status.LastOperation.Description, got.Status.LastOperation.ErrorCode)
	}
	if got.Spec.ProviderID == "" {
		t.Fatal("the VM was not recorded")
	}
	h.Driver.Fail(fake.GetMachineStatus, codes.Uninitialized)
	h.SettleAfter(time.Minute)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
		t.Errorf("phase %q after the VM was initialized", got)
	}
	if creations, inits := len(h.Driver.Calls(fake.CreateMachine)), len(h.Driver.Calls(fake.InitializeMachine)); creations != 1 || inits != 2 {
		t.Errorf("%d creations and %d initializations, want 1 and 2", creations, inits)
	}
}

// TestMachine_FailsAfterCreationTimeout checks that a Machine that cannot be created becomes Failed after the creation timeout,
// that the driver is still called, and that the Machine recovers if a call succeeds.
func TestMachine_FailsAfterCreationTimeout(t *testing.T) {
	h := newHarness(t)
	h.declare()
	h.Driver.Fail(fake.CreateMachine, codes.ResourceExhausted, codes.ResourceExhausted, codes.ResourceExhausted, codes.ResourceExhausted)
	result := h.Settle()
	for h.Clock.Since(h.machine().CreationTimestamp.Time) < creationTimeout {
		if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineCrashLoopBackOff {
			t.Fatalf("phase %q after %v", got, h.Clock.Since(h.machine().CreationTimestamp.Time))
		}
		if result.RequeueAfter <= 0 {
			t.Fatal("no next pass is scheduled")
		}
		result = h.SettleAfter(result.RequeueAfter)
	}
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineFailed, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "Cloud provider message - "})
	if got := h.machine().Status.LastOperation.ErrorCode; got != "ResourceExhausted" {
		t.Errorf("error code %q", got)
	}
	h.Driver.ForgetFailures()
	h.SettleAfter(time.Hour)
	h.join(ready)
	h.Settle()
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineRunning {
		t.Errorf("phase %q after the VM was created and joined", got)
	}
}

// TestMachine_CreationTimeoutRestartsAfterDowntime checks that the time in which no manager ran does not count toward the creation
// timeout.
func TestMachine_CreationTimeoutRestartsAfterDowntime(t *testing.T) {
	h := newHarness(t)
	h.declare()
	h.Driver.Fail(fake.CreateMachine, codes.Unavailable)
	h.Settle()
	h.Clock.Step(10 * creationTimeout)
	h.restart()
	h.withoutTarget() // its cache would also restart the timeout
	h.Driver.Fail(fake.CreateMachine, codes.Unavailable)
	h.Settle()
	h.SettleAfter(time.Minute)
	if got := h.machine().Status.CurrentStatus.Phase; got == v1alpha1.MachineFailed {
		t.Errorf("phase %q right after a restart", got)
	}
}

// TestMachine_FailedCreationStaysFailed checks that neither a restart nor an outage extends the creation timeout of a
// Failed Machine, but a longer timeout does.
func TestMachine_FailedCreationStaysFailed(t *testing.T) {
	for _, name := range []string{"restart", "outage"} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			away := false
			h.controller.Health.OutagePeriod = time.Minute
			h.useClient(awayClient{h.controller.Client, &away})
			for range 100 {
				h.Driver.Fail(fake.CreateMachine, codes.Internal)
			}
			h.declare()
			h.wait(2 * creationTimeout)
			if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
				t.Fatalf("phase %q after the timeout", got)
			}
			if away = name == "outage"; !away {
				h.restart()
			}
			before := len(h.Driver.Calls(fake.CreateMachine))
			h.wait(10 * time.Minute)
			if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed || len(h.Driver.Calls(fake.CreateMachine)) == before {
				t.Errorf("phase %q after %d more creations", got, len(h.Driver.Calls(fake.CreateMachine))-before)
			}
			away = false
			change(h, h.machine(), func(m *v1alpha1.Machine) {
				metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout, "10h")
			})
			h.wait(time.Minute)
			if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineCrashLoopBackOff {
				t.Errorf("phase %q with a longer timeout", got)
			}
		})
	}
}

// TestMachine_DriverMessagesAreShortened checks that messages of any length and encoding are shortened and stored once, and
// that the marker of the next deletion step is kept.
func TestMachine_DriverMessagesAreShortened(t *testing.T) {
	failure := errors.New("begin \xff" + strings.Repeat("é", 1<<20) + " end")
	for method, end := range map[fake.Method]string{
		fake.CreateMachine: " end", fake.DeleteMachine: " end. Initiate VM deletion",
	} {
		t.Run(string(method), func(t *testing.T) {
			h := newHarness(t)
			h.Driver.FailWith(method, slices.Repeat([]error{failure}, 3)...)
			h.declare()
			h.Settle()
			if method == fake.DeleteMachine {
				h.delete()
			}
			h.Settle()
			h.Writes = nil
			h.SettleAfter(time.Minute)
			if strings.Contains(h.LastWrites(), "status of Machine") {
				t.Errorf("the same message is written again:\n%s", h.LastWrites())
			}
			got := h.machine().Status.LastOperation.Description
			if len(got) > 4096 || !strings.Contains(got, "begin \uFFFDéé") || !strings.Contains(got, "éé [...] éé") || !strings.HasSuffix(got, end) {
				t.Errorf("%d bytes, from %.60q to %q", len(got), got, got[max(0, len(got)-60):])
			}
			events := h.takeEvents()
			if len(events) == 0 || slices.ContainsFunc(events, func(event string) bool {
				message, _, _ := strings.Cut(event, " map[") // the annotations
				return len(message) > 1100 || !utf8.ValidString(event)
			}) {
				t.Errorf("%d events, want one that is short enough", len(events))
			}
		})
	}
}
