package machine

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/test/support/lockstep"
)

// TestMachine_CreationWrites checks that a Machine becomes Running with the expected writes only.
func TestMachine_CreationWrites(t *testing.T) {
	h := newHarness(t)
	h.declare()

	h.Pass()
	if diff := cmp.Diff([]string{"patch Machine"}, h.TakeWrites()); diff != "" {
		t.Fatalf("first pass (-want +got):\n%s", diff)
	}
	if got := h.machine(); !slices.Contains(got.Finalizers, v1alpha1.FinalizerMCM) {
		t.Fatal("the first pass did not add the finalizer")
	}
	if len(h.methods()) != 0 {
		t.Fatal("the driver was called inside a pass")
	}

	h.Settle()
	want := []string{"create Secret", "patch Machine", "patch status of Machine"}
	if diff := cmp.Diff(want, h.TakeWrites()); diff != "" {
		t.Fatalf("creation (-want +got):\n%s", diff)
	}
	got := h.machine()
	if got.Spec.ProviderID != "sim:///m1" || got.Labels[v1alpha1.NodeLabelKey] != h.nodeName() || got.Annotations[v1alpha1.AnnotationKeyMachinePriority] != "3" {
		t.Errorf("providerID %q, labels %v, annotations %v", got.Spec.ProviderID, got.Labels, got.Annotations)
	}
	wantStatus(t, got, statusFields{v1alpha1.MachinePending, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateProcessing, "Creating machine on cloud provider"})
	if !got.Status.CurrentStatus.TimeoutActive {
		t.Error("TimeoutActive is false during the creation")
	}
	if len(h.tokens()) != 1 {
		t.Errorf("%d bootstrap tokens, want 1", len(h.tokens()))
	}

	h.Clock.Step(42 * time.Second)
	h.join(ready)
	h.Settle()
	want = []string{"patch Node", "delete Secret", "patch status of Machine"}
	if diff := cmp.Diff(want, h.TakeWrites()); diff != "" {
		t.Fatalf("joining (-want +got):\n%s", diff)
	}
	got = h.machine()
	wantStatus(t, got, statusFields{v1alpha1.MachineRunning, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateSuccessful, "Machine m1 successfully joined the cluster"})
	if got.Status.CurrentStatus.TimeoutActive {
		t.Error("TimeoutActive is still true after the node joined")
	}
	if diff := cmp.Diff([]fake.Method{fake.GetMachineStatus, fake.CreateMachine, fake.InitializeMachine}, h.methods()); diff != "" {
		t.Errorf("driver calls (-want +got):\n%s", diff)
	}
	if events := h.takeEvents(); len(events) > 1 {
		t.Errorf("events %q, want at most one", events)
	}
}

// statusFields contains the main fields of a Machine's status. The description needs to contain the sentence only.
type statusFields struct {
	phase    v1alpha1.MachinePhase
	kind     v1alpha1.MachineOperationType
	state    v1alpha1.MachineState
	sentence string
}

func wantStatus(t *testing.T, machine *v1alpha1.Machine, want statusFields) {
	t.Helper()
	last := machine.Status.LastOperation
	got := statusFields{machine.Status.CurrentStatus.Phase, last.Type, last.State, last.Description}
	if strings.Contains(got.sentence, want.sentence) {
		got.sentence = want.sentence
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(statusFields{})); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

// TestMachine_CreatesAdoptsOrLosesVM checks whether a VM is created, adopted or reported as lost.
func TestMachine_CreatesAdoptsOrLosesVM(t *testing.T) {
	pending := statusFields{v1alpha1.MachinePending, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateProcessing, "Creating machine on cloud provider"}
	cases := map[string]struct {
		reason  string
		machine func(*v1alpha1.Machine)
		given   func(h *harness)
		want    statusFields
		creates int
	}{
		"none exists": {
			reason:  "a Machine without a provider ID whose VM is not found gets one",
			want:    pending,
			creates: 1,
		},
		"one exists by name": {
			reason: "a creation whose response was lost is not repeated",
			given:  func(h *harness) { h.addVM(machineName, "sim:///m1") },
			want:   pending,
		},
		"status is unimplemented": {
			reason:  "creation is idempotent by name",
			given:   func(h *harness) { h.Driver.Fail(fake.GetMachineStatus, codes.Unimplemented) },
			want:    pending,
			creates: 1,
		},
		"status is unimplemented, ID known": {
			reason:  "a provider ID that cannot be checked is trusted",
			machine: restored,
			given:   func(h *harness) { h.Driver.Fail(fake.GetMachineStatus, codes.Unimplemented) },
			want:    pending,
		},
		"restored with its VM": {
			reason:  "a migration of the control plane recreates Machines without their status",
			machine: restored,
			given:   func(h *harness) { h.addVM(machineName, "sim:///m1") },
			want:    pending,
		},
		"restored with its VM and its node": {
			reason:  "a Machine whose node has joined is Running immediately",
			machine: restored,
			given: func(h *harness) {
				h.addVM(machineName, "sim:///m1")
				h.join(ready)
			},
			want: statusFields{v1alpha1.MachineRunning, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateSuccessful, "joined the cluster"},
		},
		"restored without its VM": {
			reason:  "a VM that no longer exists is lost and is not created again",
			machine: restored,
			want:    statusFields{v1alpha1.MachineUnknown, v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, "VM sim:///m1 no longer exists"},
		},
		"lost between two attempts to initialize": {
			reason:  "a VM that was never initialized is lost in the same way",
			machine: inPhase(v1alpha1.MachineCrashLoopBackOff),
			want:    statusFields{v1alpha1.MachineUnknown, v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, "VM sim:///m1 no longer exists"},
		},
		"another VM has its name": {
			reason:  "VMs are identified by ID, not by name",
			machine: restored,
			given:   func(h *harness) { h.addVM(machineName, "sim:///somebody-elses") },
			want:    statusFields{v1alpha1.MachineUnknown, v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, "VM sim:///m1 no longer exists"},
		},
		"recovered": {
			reason:  "a Machine in back-off continues when its VM appears",
			machine: inPhase(v1alpha1.MachineCrashLoopBackOff),
			given:   func(h *harness) { h.addVM(machineName, "sim:///m1") },
			want:    pending,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.declare(func(machine *v1alpha1.Machine) {
				if tc.machine != nil {
					tc.machine(machine)
				}
			})
			if tc.given != nil {
				tc.given(h)
			}
			h.Settle()
			h.SettleAfter(healthTimeout / 2) // time alone changes nothing
			wantStatus(t, h.machine(), tc.want)
			if got := len(h.Driver.Calls(fake.CreateMachine)); got != tc.creates {
				t.Errorf("%s: %d creations, want %d", tc.reason, got, tc.creates)
			}
		})
	}
}

// TestMachine_IdentityIsStoredInOneWrite checks that label, provider ID and priority are set in one write, and that no write
// happens if they are correct already.
func TestMachine_IdentityIsStoredInOneWrite(t *testing.T) {
	cases := map[string]struct {
		machine      func(*v1alpha1.Machine)
		wantPriority string
		wantWrites   int
	}{
		"new": {func(*v1alpha1.Machine) {}, "3", 1},
		"with a priority of a user": {func(m *v1alpha1.Machine) {
			m.Annotations = map[string]string{v1alpha1.AnnotationKeyMachinePriority: "1"}
		}, "1", 1},
		"restored": {restored, "3", 1},
		"restored, with priority": {func(m *v1alpha1.Machine) {
			restored(m)
			m.Annotations = map[string]string{v1alpha1.AnnotationKeyMachinePriority: "2"}
		}, "2", 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.declare(tc.machine, func(m *v1alpha1.Machine) { m.Finalizers = []string{v1alpha1.FinalizerMCM} })
			h.addVM(machineName, "sim:///m1")
			h.Settle()
			writes := slices.DeleteFunc(h.TakeWrites(), func(what string) bool { return what != "patch Machine" })
			if len(writes) != tc.wantWrites {
				t.Errorf("%d writes of metadata and spec, want %d", len(writes), tc.wantWrites)
			}
			if got := h.machine().Annotations[v1alpha1.AnnotationKeyMachinePriority]; got != tc.wantPriority {
				t.Errorf("priority %q, want %q", got, tc.wantPriority)
			}
		})
	}
}

// TestMachine_UserDataIsRendered checks that the driver gets rendered user data, and that the Secret of the class does not change.
func TestMachine_UserDataIsRendered(t *testing.T) {
	h := newHarness(t)
	h.declare()
	h.Settle()
	if len(h.secrets()) != 1 {
		t.Fatalf("%d creations, want 1", len(h.secrets()))
	}
	token := h.tokens()[0].Data
	want := "password: hunter2, join with " + string(token["token-id"]) + "." + string(token["token-secret"]) + " as m1"
	if got := string(h.secrets()[0].Data["userData"]); got != want {
		t.Errorf("user data %q, want %q", got, want)
	}
	if got := string(h.secrets()[0].Data["apiKey"]); got != "s3cr3t-k3y-of-the-cloud" {
		t.Errorf("apiKey is %q", got)
	}
	stored := newSecret(h.Key.Namespace)
	if err := h.control.Get(t.Context(), client.ObjectKeyFromObject(stored), stored); err != nil {
		t.Fatal(err)
	}
	if got := string(stored.Data["userData"]); got != userData {
		t.Errorf("the class's Secret was changed to %q", got)
	}
}

// TestMachine_SecretsAreMerged checks that the data of secretRef and credentialsSecretRef are merged, and that the latter
// takes precedence.
func TestMachine_SecretsAreMerged(t *testing.T) {
	h := newHarness(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shoot", Name: "credentials"},
		Data:       map[string][]byte{"apiKey": []byte("better")},
	})
	change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) {
		c.CredentialsSecretRef = &corev1.SecretReference{Namespace: h.Key.Namespace, Name: "credentials"}
	})
	h.declare()
	h.Settle()
	if got := string(h.secrets()[0].Data["apiKey"]); got != "better" {
		t.Errorf("apiKey is %q, want that of credentialsSecretRef", got)
	}
	if len(h.secrets()[0].Data["userData"]) == 0 {
		t.Error("the user data of secretRef is missing")
	}
}

// TestMachine_AvailableWithoutTarget checks that a Machine without a target cluster becomes Available as soon as it has a VM, with
// the addresses of the VM.
func TestMachine_AvailableWithoutTarget(t *testing.T) {
	h := newHarness(t).withoutTarget()
	h.unnamed()
	h.declare()
	h.Settle()
	got := h.machine()
	wantStatus(t, got, statusFields{v1alpha1.MachineAvailable, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateSuccessful, "Created machine on cloud provider"})
	if diff := cmp.Diff(addresses, got.Status.Addresses); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if _, labelled := got.Labels[v1alpha1.NodeLabelKey]; labelled {
		t.Error("the Machine has a node label without a target cluster")
	}
	if got := string(h.secrets()[0].Data["userData"]); !strings.Contains(got, "<<BOOTSTRAP_TOKEN>> as m1") {
		t.Errorf("user data %q, want the token's placeholder untouched and the name filled in", got)
	}
	h.delete()
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 {
		t.Error("the deletion is incomplete")
	}
}

// TestMachine_TokenFailureIsReported checks that the status reports a target cluster that refuses bootstrap tokens. It has no
// error code, since that would mean that the driver failed.
func TestMachine_TokenFailureIsReported(t *testing.T) {
	h := newHarness(t)
	h.Refuse = func(made lockstep.Write) error {
		if made.What == "create Secret" {
			return errors.New("no quota for secrets")
		}
		return nil
	}
	h.declare()
	h.Settle()
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "no quota for secrets"})
	if code := h.machine().Status.LastOperation.ErrorCode; code != "" {
		t.Errorf("error code %q", code)
	}
	if len(h.Driver.Calls(fake.CreateMachine)) != 0 {
		t.Error("a VM was created without a token")
	}
	h.Refuse = nil
	h.SettleAfter(time.Minute)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
		t.Errorf("phase %q after a token was issued", got)
	}
}

// TestMachine_AvailableNeedsNoFurtherCalls checks that an Available Machine causes no driver calls or writes, also after a restart, and
// that it is deleted without a drain even if the driver fails.
func TestMachine_AvailableNeedsNoFurtherCalls(t *testing.T) {
	h := newHarness(t).withoutTarget()
	h.unnamed()
	h.declare()
	h.Settle()
	h.Writes = nil
	h.Driver.ForgetCalls()
	h.SettleAfter(10 * creationTimeout)
	h.restart()
	h.withoutTarget()
	d := h.draining()
	h.SettleAfter(10 * creationTimeout)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineAvailable || len(h.Writes) != 0 || len(h.methods()) != 0 {
		t.Fatalf("phase %q, calls %v, writes:\n%s", got, h.methods(), h.LastWrites())
	}
	h.Driver.Fail(fake.DeleteMachine, codes.Unavailable)
	h.delete()
	h.Settle()
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed, "Initiate VM deletion"})
	h.SettleAfter(time.Minute)
	if !h.gone() || len(h.Driver.VMs()) != 0 || len(d.requests) != 0 || d.deleted != 0 {
		t.Errorf("deleted: %v, VMs %v, %d drains", h.gone(), h.Driver.VMs(), len(d.requests))
	}
}
