package machine

import (
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
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// TestFailedCreationKeepsWhatAutoscalersRead: each code is in the status, and the
// driver's note outlives those failures that say nothing about the VM.
func TestFailedCreationKeepsWhatAutoscalersRead(t *testing.T) {
	kept := map[codes.Code]bool{
		codes.ResourceExhausted: true, codes.Unknown: true, codes.DeadlineExceeded: true, codes.Aborted: true, codes.Unavailable: true,
	}
	for code := codes.Canceled; code <= codes.Uninitialized; code++ {
		for _, method := range []instance.Method{instance.MethodStatus, instance.MethodCreate} {
			if code == codes.Uninitialized || method == instance.MethodStatus && (code == codes.NotFound || code == codes.Unimplemented) {
				continue // no failures
			}
			t.Run(fmt.Sprintf("%s from %s", code, method), func(t *testing.T) {
				w := newWorld(t)
				w.declare(func(m *v1alpha1.Machine) { m.Status.LastKnownState = "disk made" })
				w.driver.fails(method, code)
				w.settle()
				got := w.machine().Status
				wantStatus(t, w.machine(), want4{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "Cloud provider message - "})
				if !strings.Contains(got.LastOperation.Description, "is out of order") {
					t.Errorf("description %q lacks the provider's words", got.LastOperation.Description)
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

// TestNoteOfAFailedCreation: what a driver notes with its error is kept, whatever the
// code, and through the passes until the next call.
func TestNoteOfAFailedCreation(t *testing.T) {
	for _, code := range []codes.Code{codes.Internal, codes.ResourceExhausted} {
		t.Run(code.String(), func(t *testing.T) {
			w := newWorld(t)
			w.driver.withNote, w.driver.note = true, "disk made, no IP yet"
			w.driver.fails(instance.MethodCreate, code)
			w.declare(func(m *v1alpha1.Machine) { m.Status.LastKnownState = "older" })
			w.settle()
			w.pass()
			if got := w.machine().Status.LastKnownState; got != w.driver.note {
				t.Errorf("lastKnownState %q, want %q", got, w.driver.note)
			}
		})
	}
}

// TestOneEventPerChangeOfCode: an error that repeats itself is told once.
func TestOneEventPerChangeOfCode(t *testing.T) {
	w := newWorld(t)
	w.driver.fails(instance.MethodCreate, codes.Internal, codes.Internal, codes.Unavailable, codes.Unavailable, codes.Internal)
	w.declare()
	var told []string
	for range 5 {
		w.settle()
		for _, event := range w.told() {
			told = append(told, event[strings.LastIndex(event, "(")+1:strings.LastIndex(event, ")")])
		}
		w.clock.Step(time.Minute)
	}
	if diff := cmp.Diff([]string{"Internal", "Unavailable", "Internal"}, told); diff != "" {
		t.Errorf("codes in events (-want +got):\n%s", diff)
	}
	if got := w.driver.made(instance.MethodCreate); got != 5 {
		t.Errorf("%d creations, want 5", got)
	}
	w.settleAfter(time.Minute)
	if got := w.machine().Status; got.LastOperation.ErrorCode != "" || got.CurrentStatus.Phase != v1alpha1.MachinePending {
		t.Errorf("after success the error code is %q and the phase %q", got.LastOperation.ErrorCode, got.CurrentStatus.Phase)
	}
}

// TestNewestMessage: the provider's newest words are in the status also if the code stays
// and no event tells of them.
func TestNewestMessage(t *testing.T) {
	w := newWorld(t)
	w.declare()
	w.driver.errors[instance.MethodCreate] = []error{fmt.Errorf("first"), fmt.Errorf("second")}
	w.settle()
	w.settleAfter(time.Minute)
	if got := w.machine().Status.LastOperation.Description; !strings.Contains(got, "second") {
		t.Errorf("description %q, want the second message", got)
	}
	if events := w.told(); len(events) != 1 {
		t.Errorf("events %q, want one", events)
	}
}

// TestNameTaken: a set makes another Machine with another name, a Machine without a set
// waits for somebody to make room.
func TestNameTaken(t *testing.T) {
	cases := map[string]struct {
		machine func(*v1alpha1.Machine)
		method  instance.Method
		want    v1alpha1.MachinePhase
	}{
		"owned":                    {owned, instance.MethodCreate, v1alpha1.MachineFailed},
		"alone":                    {func(*v1alpha1.Machine) {}, instance.MethodCreate, v1alpha1.MachineCrashLoopBackOff},
		"owned, from a status":     {owned, instance.MethodStatus, v1alpha1.MachineCrashLoopBackOff},
		"owned, from initialising": {owned, instance.MethodInitialize, v1alpha1.MachineFailed},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.driver.fails(tc.method, codes.AlreadyExists)
			w.declare(tc.machine)
			w.settle()
			got := w.machine().Status
			if got.CurrentStatus.Phase != tc.want || got.LastOperation.ErrorCode != "AlreadyExists" {
				t.Errorf("phase %q, code %q; want %q, AlreadyExists", got.CurrentStatus.Phase, got.LastOperation.ErrorCode, tc.want)
			}
		})
	}
}

// TestInitialisingFails: the VM is the Machine's from then on, and only initialising it
// is repeated.
func TestInitialisingFails(t *testing.T) {
	w := newWorld(t)
	w.driver.fails(instance.MethodInitialize, codes.ResourceExhausted)
	w.declare()
	w.settle()
	got := w.machine()
	wantStatus(t, got, want4{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "Initialize VM Instance"})
	if !strings.HasPrefix(got.Status.LastOperation.Description, "Provider error: ") || got.Status.LastOperation.ErrorCode != "ResourceExhausted" {
		t.Errorf("description %q, code %q", got.Status.LastOperation.Description, got.Status.LastOperation.ErrorCode)
	}
	if got.Spec.ProviderID == "" {
		t.Fatal("the VM is not recorded")
	}
	w.driver.fails(instance.MethodStatus, codes.Uninitialized)
	w.settleAfter(time.Minute)
	if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
		t.Errorf("phase %q after initialising worked", got)
	}
	if creations, inits := w.driver.made(instance.MethodCreate), w.driver.made(instance.MethodInitialize); creations != 1 || inits != 2 {
		t.Errorf("%d creations and %d attempts to initialise, want 1 and 2", creations, inits)
	}
}

// TestFailureEndsInFailed: a Machine that cannot be created is Failed when its time is
// over, its driver is asked on, and it recovers if that works after all.
func TestFailureEndsInFailed(t *testing.T) {
	w := newWorld(t)
	w.declare()
	w.driver.fails(instance.MethodCreate, codes.ResourceExhausted, codes.ResourceExhausted, codes.ResourceExhausted, codes.ResourceExhausted)
	result := w.settle()
	for w.clock.Since(w.machine().CreationTimestamp.Time) < creationTimeout {
		if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineCrashLoopBackOff {
			t.Fatalf("phase %q after %v", got, w.clock.Since(w.machine().CreationTimestamp.Time))
		}
		if result.RequeueAfter <= 0 {
			t.Fatal("nothing brings the next pass")
		}
		result = w.settleAfter(result.RequeueAfter)
	}
	wantStatus(t, w.machine(), want4{v1alpha1.MachineFailed, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "Cloud provider message - "})
	if got := w.machine().Status.LastOperation.ErrorCode; got != "ResourceExhausted" {
		t.Errorf("error code %q", got)
	}
	w.driver.errors[instance.MethodCreate] = nil
	w.settleAfter(time.Hour)
	w.join(ready)
	w.settle()
	if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineRunning {
		t.Errorf("phase %q once the VM is there and has joined", got)
	}
}

// TestRestartForgivesTheGap: the time in which no manager ran is not the Machine's.
func TestRestartForgivesTheGap(t *testing.T) {
	w := newWorld(t)
	w.declare()
	w.driver.fails(instance.MethodCreate, codes.Unavailable)
	w.settle()
	w.clock.Step(10 * creationTimeout)
	w.restart(w.driver)
	w.withoutTarget() // whose cache would start the clock as well
	w.driver.fails(instance.MethodCreate, codes.Unavailable)
	w.settle()
	w.settleAfter(time.Minute)
	if got := w.machine().Status.CurrentStatus.Phase; got == v1alpha1.MachineFailed {
		t.Errorf("phase %q right after a restart", got)
	}
}

// TestFailedCreationStaysFailed: neither a restart nor an outage gives a Machine that could
// not be created another chance; a longer timeout does.
func TestFailedCreationStaysFailed(t *testing.T) {
	for _, name := range []string{"restart", "outage"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			away := false
			w.controller.Health.OutagePeriod = time.Minute
			w.controller.Client = awayClient{w.controller.Client, &away}
			for range 100 {
				w.driver.fails(instance.MethodCreate, codes.Internal)
			}
			w.declare()
			w.wait(2 * creationTimeout)
			if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
				t.Fatalf("phase %q after the timeout", got)
			}
			if away = name == "outage"; !away {
				w.restart(w.driver)
			}
			before := w.driver.made(instance.MethodCreate)
			w.wait(10 * time.Minute)
			if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed || w.driver.made(instance.MethodCreate) == before {
				t.Errorf("phase %q after %d more creations", got, w.driver.made(instance.MethodCreate)-before)
			}
			away = false
			change(w, w.machine(), func(m *v1alpha1.Machine) {
				metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout, "10h")
			})
			w.wait(time.Minute)
			if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineCrashLoopBackOff {
				t.Errorf("phase %q with more time", got)
			}
		})
	}
}

// TestADriverMaySayAnything: however much it says, in whatever encoding, its words are stored,
// cut, and once; the words that say which step of a deletion is next stay whole.
func TestADriverMaySayAnything(t *testing.T) {
	words := errors.New("begin \xff" + strings.Repeat("é", 1<<20) + " end")
	for method, end := range map[instance.Method]string{
		instance.MethodCreate: " end", instance.MethodDelete: " end. Initiate VM deletion",
	} {
		t.Run(string(method), func(t *testing.T) {
			w := newWorld(t)
			w.driver.errors[method] = slices.Repeat([]error{words}, 3)
			w.declare()
			w.settle()
			if method == instance.MethodDelete {
				w.delete()
			}
			w.settle()
			w.writes = nil
			w.settleAfter(time.Minute)
			if strings.Contains(w.said(), "status of Machine") {
				t.Errorf("the same words are written again:\n%s", w.said())
			}
			got := w.machine().Status.LastOperation.Description
			if len(got) > 4096 || !strings.Contains(got, "begin \uFFFDéé") || !strings.Contains(got, "éé [...] éé") || !strings.HasSuffix(got, end) {
				t.Errorf("%d bytes, from %.60q to %q", len(got), got, got[max(0, len(got)-60):])
			}
			events := w.told()
			if len(events) == 0 || slices.ContainsFunc(events, func(event string) bool {
				message, _, _ := strings.Cut(event, " map[") // the annotations
				return len(message) > 1100 || !utf8.ValidString(event)
			}) {
				t.Errorf("%d events, or one that is too long", len(events))
			}
		})
	}
}
