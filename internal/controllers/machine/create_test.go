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

// TestAMachineBecomesANode: from declaration to Running with as few writes as the budget
// allows, each of them for a reason.
func TestAMachineBecomesANode(t *testing.T) {
	h := newHarness(t)
	h.declare()

	h.Pass()
	if diff := cmp.Diff([]string{"patch Machine"}, h.TakeWrites()); diff != "" {
		t.Fatalf("first pass (-want +got):\n%s", diff)
	}
	if got := h.machine(); !slices.Contains(got.Finalizers, v1alpha1.FinalizerMCM) {
		t.Fatal("the first pass adds no finalizer")
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
	wantStatus(t, got, want4{v1alpha1.MachinePending, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateProcessing, "Creating machine on cloud provider"})
	if !got.Status.CurrentStatus.TimeoutActive {
		t.Error("the creation timeout is not said to be active")
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
	wantStatus(t, got, want4{v1alpha1.MachineRunning, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateSuccessful, "Machine m1 successfully joined the cluster"})
	if got.Status.CurrentStatus.TimeoutActive {
		t.Error("the creation timeout is still said to be active")
	}
	if diff := cmp.Diff([]fake.Method{fake.GetMachineStatus, fake.CreateMachine, fake.InitializeMachine}, h.methods()); diff != "" {
		t.Errorf("driver calls (-want +got):\n%s", diff)
	}
	if events := h.takeEvents(); len(events) > 1 {
		t.Errorf("more than one event: %q", events)
	}
}

// want4 is what a status says in its four main fields; the sentence may go on.
type want4 struct {
	phase    v1alpha1.MachinePhase
	kind     v1alpha1.MachineOperationType
	state    v1alpha1.MachineState
	sentence string
}

func wantStatus(t *testing.T, machine *v1alpha1.Machine, want want4) {
	t.Helper()
	last := machine.Status.LastOperation
	got := want4{machine.Status.CurrentStatus.Phase, last.Type, last.State, last.Description}
	if strings.Contains(got.sentence, want.sentence) {
		got.sentence = want.sentence
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(want4{})); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

// TestWhichVMIsTheMachines: whether a VM is created, adopted or given up as lost.
func TestWhichVMIsTheMachines(t *testing.T) {
	pending := want4{v1alpha1.MachinePending, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateProcessing, "Creating machine on cloud provider"}
	cases := map[string]struct {
		reason  string
		machine func(*v1alpha1.Machine)
		given   func(h *harness)
		want    want4
		creates int
	}{
		"none exists": {
			reason:  "a Machine without a provider ID whose VM is not found gets one",
			want:    pending,
			creates: 1,
		},
		"one exists by name": {
			reason: "a creation whose answer was lost is not repeated",
			given:  func(h *harness) { h.addVM(machineName, "sim:///m1") },
			want:   pending,
		},
		"status is unimplemented": {
			reason:  "creation is idempotent by name, so that it can be relied on",
			given:   func(h *harness) { h.Driver.Fail(fake.GetMachineStatus, codes.Unimplemented) },
			want:    pending,
			creates: 1,
		},
		"status is unimplemented, ID known": {
			reason:  "what cannot be asked for is trusted",
			machine: restored,
			given:   func(h *harness) { h.Driver.Fail(fake.GetMachineStatus, codes.Unimplemented) },
			want:    pending,
		},
		"restored with its VM": {
			reason:  "control planes are moved by writing Machines down and creating them elsewhere, without status",
			machine: restored,
			given:   func(h *harness) { h.addVM(machineName, "sim:///m1") },
			want:    pending,
		},
		"restored with its VM and its node": {
			reason:  "and what has joined already is Running at once",
			machine: restored,
			given: func(h *harness) {
				h.addVM(machineName, "sim:///m1")
				h.join(ready)
			},
			want: want4{v1alpha1.MachineRunning, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateSuccessful, "joined the cluster"},
		},
		"restored without its VM": {
			reason:  "a VM that existed and does not any more is lost, never made again",
			machine: restored,
			want:    want4{v1alpha1.MachineUnknown, v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, "VM sim:///m1 does not exist any more"},
		},
		"lost between two attempts to initialise": {
			reason:  "the same for a VM that never came up",
			machine: inPhase(v1alpha1.MachineCrashLoopBackOff),
			want:    want4{v1alpha1.MachineUnknown, v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, "VM sim:///m1 does not exist any more"},
		},
		"another VM has its name": {
			reason:  "the ID tells VMs apart, not the name",
			machine: restored,
			given:   func(h *harness) { h.addVM(machineName, "sim:///somebody-elses") },
			want:    want4{v1alpha1.MachineUnknown, v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, "VM sim:///m1 does not exist any more"},
		},
		"recovered": {
			reason:  "a Machine in back-off whose VM turns up goes on",
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
			h.SettleAfter(healthTimeout / 2) // nothing changes by itself
			wantStatus(t, h.machine(), tc.want)
			if got := len(h.Driver.Calls(fake.CreateMachine)); got != tc.creates {
				t.Errorf("%s: %d creations, want %d", tc.reason, got, tc.creates)
			}
		})
	}
}

// TestIdentityIsOneWrite: label, provider ID and priority go out together, and what is
// right already is not written again.
func TestIdentityIsOneWrite(t *testing.T) {
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

// TestUserData: what the driver gets is rendered, and the Secret stays as it is.
func TestUserData(t *testing.T) {
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

// TestBothSecretsCount: the credentials may lie in a Secret of their own, which wins.
func TestBothSecretsCount(t *testing.T) {
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

// TestWithoutTarget: where no cluster is to be joined, a Machine is Available as soon as
// it has a VM, and tells how to reach it.
func TestWithoutTarget(t *testing.T) {
	h := newHarness(t).withoutTarget()
	h.unnamed()
	h.declare()
	h.Settle()
	got := h.machine()
	wantStatus(t, got, want4{v1alpha1.MachineAvailable, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateSuccessful, "Created machine on cloud provider"})
	if diff := cmp.Diff(addresses, got.Status.Addresses); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if _, labelled := got.Labels[v1alpha1.NodeLabelKey]; labelled {
		t.Error("there is a label for a node that will never be")
	}
	if got := string(h.secrets()[0].Data["userData"]); !strings.Contains(got, "<<BOOTSTRAP_TOKEN>> as m1") {
		t.Errorf("user data %q, want the token's placeholder untouched and the name filled in", got)
	}
	h.delete()
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 {
		t.Error("deletion leaves something behind")
	}
}

// TestTokenNotIssued: a target that refuses tokens is said, without the blame on the
// driver that an error code would lay.
func TestTokenNotIssued(t *testing.T) {
	h := newHarness(t)
	h.Refuse = func(made lockstep.Write) error {
		if made.What == "create Secret" {
			return errors.New("no quota for secrets")
		}
		return nil
	}
	h.declare()
	h.Settle()
	wantStatus(t, h.machine(), want4{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "no quota for secrets"})
	if code := h.machine().Status.LastOperation.ErrorCode; code != "" {
		t.Errorf("error code %q", code)
	}
	if len(h.Driver.Calls(fake.CreateMachine)) != 0 {
		t.Error("a VM was created that cannot join")
	}
	h.Refuse = nil
	h.SettleAfter(time.Minute)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
		t.Errorf("phase %q once tokens are to be had", got)
	}
}

// TestAvailableStays: a Machine that will have no node is asked nothing more, by this process
// or the next, and goes without a drain, however the driver fares.
func TestAvailableStays(t *testing.T) {
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
	wantStatus(t, h.machine(), want4{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed, "Initiate VM deletion"})
	h.SettleAfter(time.Minute)
	if !h.gone() || len(h.Driver.VMs()) != 0 || len(d.requests) != 0 || d.deleted != 0 {
		t.Errorf("gone: %v, VMs %v, %d drains", h.gone(), h.Driver.VMs(), len(d.requests))
	}
}
