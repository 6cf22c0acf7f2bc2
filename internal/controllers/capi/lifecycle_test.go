package capi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
	"github.com/millwright-dev/millwright/test/support/lockstep"
)

// TestCreation_SetsStatusOfBothContracts checks that a VM is created and the status of both contract versions is set, after the provider ID is
// stored.
func TestCreation_SetsStatusOfBothContracts(t *testing.T) {
	h := newHarness(t)
	h.Settle()
	got := h.infra()
	want := infrav1.MillwrightMachineStatus{
		Ready: true, Initialization: &infrav1.Initialization{Provisioned: new(true)}, ProviderID: "test:///vm-1", LastKnownState: "note",
		Addresses: []infrav1.MachineAddress{{Type: corev1.NodeHostName, Address: "host"}, {Type: corev1.NodeInternalIP, Address: "10.1.2.3"}},
	}
	conditions := got.Status.Conditions
	got.Status.Conditions = nil
	if diff := cmp.Diff(want, got.Status); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if len(conditions) != 3 {
		t.Errorf("conditions %v", conditions)
	}
	if got.Spec.ProviderID != "test:///vm-1" || got.Spec.FailureDomain != "" {
		t.Errorf("provider ID %q, failure domain %q", got.Spec.ProviderID, got.Spec.FailureDomain)
	}
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	h.wantCondition(infrav1.ConditionNodeJoined, metav1.ConditionFalse, infrav1.ReasonWaitingForNode)
	h.wantCondition(infrav1.ConditionPaused, metav1.ConditionFalse, infrav1.ReasonNotPaused)
	const patch, patchStatus = "patch MillwrightMachine", "patch status of MillwrightMachine"
	if diff := cmp.Diff([]string{patch, patch, patchStatus, patch, patchStatus}, h.TakeWrites()); diff != "" {
		t.Errorf("writes of finalizer, annotation, condition, provider ID, status (-want +got):\n%s", diff)
	}

	h.Writes = nil
	h.Settle()
	h.restart()
	h.SettleAfter(time.Minute)
	if len(h.Writes) != 0 {
		t.Errorf("writes without a change: %v", h.Writes)
	}
}

// TestCreation_WaitsForPreconditions checks that nothing happens before a precondition is met, and that the condition names the missing
// precondition.
func TestCreation_WaitsForPreconditions(t *testing.T) {
	for name, tc := range map[string]struct {
		rule, reason string
		given        func(*given)
		// open meets the precondition.
		open func(*harness)
		// untouched is set if not even a finalizer may be added.
		untouched bool
	}{
		"no owner": {
			rule: "S24", given: func(g *given) { g.infra.OwnerReferences = nil }, untouched: true,
			open: func(h *harness) {
				h.changeInfra(func(m *infrav1.MillwrightMachine) {
					m.OwnerReferences = newGiven("", h.Clock.Now()).infra.OwnerReferences
				})
			},
		},
		"owner of another API": {
			rule: "S24", given: func(g *given) { g.infra.OwnerReferences[0].APIVersion = otherGroupVersion }, untouched: true,
			open: func(h *harness) {
				h.changeInfra(func(m *infrav1.MillwrightMachine) { m.OwnerReferences[0].APIVersion = core.V1Beta1.String() })
			},
		},
		"owner does not exist": {
			rule: "S24", given: func(g *given) { g.machine = nil }, untouched: true,
			open: func(h *harness) { h.create(newGiven(h.Key.Namespace, h.Clock.Now()).machine) },
		},
		"no cluster": {
			rule: "S26", reason: infrav1.ReasonWaitingForCluster, given: func(g *given) { g.cluster = nil },
			open: func(h *harness) { h.create(newGiven(h.Key.Namespace, h.Clock.Now()).cluster) }, untouched: true,
		},
		"no infrastructure": {
			rule: "S28", reason: infrav1.ReasonWaitingForClusterInfrastructure,
			given: func(g *given) { g.cluster.Status = core.ClusterStatus{} },
			open:  func(h *harness) { h.changeCluster(func(c *core.Cluster) { c.Status.InfrastructureReady = true }) },
		},
		"no bootstrap data": {
			rule: "S31", reason: infrav1.ReasonWaitingForBootstrapData,
			given: func(g *given) { g.machine.Spec.Bootstrap.DataSecretName = nil },
			open: func(h *harness) {
				h.changeMachine(func(m *core.Machine) { m.Spec.Bootstrap.DataSecretName = new(bootstrapName) })
			},
		},
		"paused cluster": {
			rule: "G1, G2", given: func(g *given) { g.cluster.Spec.Paused = true }, untouched: true,
			open: func(h *harness) { h.changeCluster(func(c *core.Cluster) { c.Spec.Paused = false }) },
		},
		"paused object": {
			rule: "G1, G2", given: func(g *given) { g.infra.Annotations = map[string]string{core.AnnotationPaused: "false"} }, untouched: true,
			open: func(h *harness) { h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Annotations = nil }) },
		},
		"moved away": {
			rule: "K8", given: func(g *given) { g.infra.Annotations = map[string]string{core.AnnotationMoved: ""} }, untouched: true,
			open: func(h *harness) { h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Annotations = nil }) },
		},
		"watch filter of another manager": {
			rule: "M14", given: func(g *given) { g.infra.Labels[core.LabelWatchFilter] = "theirs" }, untouched: true,
			open: func(h *harness) {
				h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Labels[core.LabelWatchFilter] = "ours" })
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, func(g *given) { g.infra.Labels[core.LabelWatchFilter] = "ours" }, tc.given)
			h.controller.WatchFilter = "ours"
			if result := h.Settle(); result.RequeueAfter != 0 {
				t.Errorf("%s: requeued after %v, but an event triggers the next reconcile", tc.rule, result.RequeueAfter)
			}
			got := h.infra()
			if len(h.calls()) != 0 || got.Spec.ProviderID != "" || got.Status.Ready {
				t.Errorf("%s: the driver was called: %v", tc.rule, h.calls())
			}
			if protected := len(got.Finalizers) != 0; protected == tc.untouched {
				t.Errorf("%s: finalizers %v", tc.rule, got.Finalizers)
			}
			if tc.reason != "" {
				h.wantReady(metav1.ConditionFalse, tc.reason)
			}
			tc.open(h)
			h.Settle()
			h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
		})
	}
}

const otherGroupVersion = "machine.sapcloud.io/v1alpha1"

// TestMachine_WithoutOwnerIsUnchanged checks that an object without an owner is not changed (S24).
func TestMachine_WithoutOwnerIsUnchanged(t *testing.T) {
	h := newHarness(t, func(g *given) { g.infra.OwnerReferences = nil })
	before := h.infra()
	h.Settle()
	h.wantUnchanged(before)
}

// TestMachine_TerminalFailureIsKept checks that an object with a terminal failure is not reconciled until it is deleted (S25).
func TestMachine_TerminalFailureIsKept(t *testing.T) {
	for name, change := range map[string]func(*infrav1.MillwrightMachine){
		"reason":  func(m *infrav1.MillwrightMachine) { m.Status.FailureReason = new("CreateError") },
		"message": func(m *infrav1.MillwrightMachine) { m.Status.FailureMessage = new("broken") },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, func(g *given) {
				change(g.infra)
				g.infra.Finalizers = []string{infrav1.Finalizer}
				g.infra.Status.Conditions = []metav1.Condition{{Type: infrav1.ConditionPaused, Status: metav1.ConditionFalse, Reason: infrav1.ReasonNotPaused}}
			})
			before := h.infra()
			h.Settle()
			h.wantUnchanged(before)
			h.changeCluster(func(c *core.Cluster) { c.Spec.Paused = true })
			h.Settle()
			h.wantCondition(infrav1.ConditionPaused, metav1.ConditionTrue, infrav1.ReasonPaused) // G3
			h.changeCluster(func(c *core.Cluster) { c.Spec.Paused = false })
			h.Settle()
			h.wantCondition(infrav1.ConditionPaused, metav1.ConditionFalse, infrav1.ReasonNotPaused)
			h.delete()
			h.Settle()
			if !h.gone() {
				t.Error("the object still exists")
			}
		})
	}
}

// TestMachine_StaysReady checks that an object stays ready whatever happens later (S47).
func TestMachine_StaysReady(t *testing.T) {
	for name, change := range map[string]func(*harness){
		"cluster infrastructure not ready": func(h *harness) { h.changeCluster(func(c *core.Cluster) { c.Status = core.ClusterStatus{} }) },
		"cluster deleted":                  func(h *harness) { h.remove(&core.Cluster{ObjectMeta: metav1.ObjectMeta{Name: clusterName}}) },
		"bootstrap data removed": func(h *harness) {
			h.changeMachine(func(m *core.Machine) { m.Spec.Bootstrap.DataSecretName = nil })
		},
		"spec changed": func(h *harness) {
			h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.ProviderSpec, m.Spec.Driver = raw(`{"size":"x"}`), "other" })
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.Settle()
			calls := len(h.calls())
			change(h)
			h.Settle()
			h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
			if got := h.infra().Status; !got.Ready || !*got.Initialization.Provisioned || len(h.calls()) != calls {
				t.Errorf("status %+v; %d calls", got, len(h.calls())-calls)
			}
		})
	}
}

// TestBootstrapData_PassedUnchanged checks that the driver gets the bootstrap data byte by byte, with their format,
// and only in CreateMachine (B1).
func TestBootstrapData_PassedUnchanged(t *testing.T) {
	for _, format := range []string{"", "cloud-config", "ignition"} {
		t.Run("format "+format, func(t *testing.T) {
			h := newHarness(t, func(g *given) {
				if format != "" {
					g.bootstrap.Data[core.BootstrapFormat] = []byte(format)
				}
				g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"}
				g.more = append(g.more, secret(g.infra.Namespace, "cloud", map[string]string{"token": "t", "userData": "ignored", "userDataFormat": "ignored"}))
			})
			h.Settle()
			want := map[string][]byte{"token": []byte("t"), "userData": []byte(bootstrapData)}
			if format != "" {
				want["userDataFormat"] = []byte(format)
			}
			if diff := cmp.Diff(want, h.created()[0].Secret.Data); diff != "" {
				t.Errorf("Secret of the creation (-want +got):\n%s", diff)
			}
			h.delete()
			h.Settle()
			if diff := cmp.Diff(map[string][]byte{"token": []byte("t")}, h.deleted()[0].Secret.Data); diff != "" {
				t.Errorf("Secret of the deletion (-want +got):\n%s", diff)
			}
		})
	}
}

func secret(namespace, name string, data map[string]string) *corev1.Secret {
	created := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string][]byte{}}
	for key, value := range data {
		created.Data[key] = []byte(value)
	}
	return created
}

// TestBootstrapData_SecretCreatedLater checks that the controller waits for the bootstrap Secret for any length of time.
func TestBootstrapData_SecretCreatedLater(t *testing.T) {
	h := newHarness(t, func(g *given) { g.bootstrap.Data = nil })
	h.Settle()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonWaitingForBootstrapData, `no data under key "value"`)
	h.remove(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: bootstrapName}})
	h.SettleAfter(time.Hour)
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonWaitingForBootstrapData, bootstrapName, "does not exist")
	if n := len(h.Driver.Calls(fake.CreateMachine)); n != 0 {
		t.Errorf("%d creations without bootstrap data", n)
	}
	h.create(newGiven(h.Key.Namespace, h.Clock.Now()).bootstrap)
	h.SettleAfter(time.Hour)
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
}

// TestCreation_FailureReasons checks which failures are terminal (S33, §3a 5), and that the others are retried until the creation
// succeeds.
func TestCreation_FailureReasons(t *testing.T) {
	withClass := func(g *given) {
		g.infra.Spec.ProviderSpec, g.infra.Spec.MachineClassRef = nil, &infrav1.LocalReference{Name: "small"}
		g.more = append(g.more, newClass(g.infra.Namespace))
	}
	withSecret := func(g *given) {
		g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"}
		g.more = append(g.more, secret(g.infra.Namespace, "cloud", nil))
	}
	cloned := func(g *given) { g.infra.Annotations = map[string]string{core.AnnotationClonedFrom: "workers"} }
	unchanged := func(*given) {}
	for name, tc := range map[string]struct {
		given  func(*given)
		method fake.Method
		code   codes.Code
		reason string
		final  bool
	}{
		"own spec":                   {unchanged, fake.GetMachineStatus, codes.InvalidArgument, infrav1.ReasonInvalidSpec, true},
		"spec of a template":         {cloned, fake.GetMachineStatus, codes.InvalidArgument, infrav1.ReasonInvalidSpec, false},
		"bootstrap data or spec":     {unchanged, fake.CreateMachine, codes.InvalidArgument, infrav1.ReasonInvalidSpec, false},
		"size of the bootstrap data": {unchanged, fake.CreateMachine, codes.OutOfRange, infrav1.ReasonInvalidSpec, false},
		"several VMs":                {unchanged, fake.GetMachineStatus, codes.OutOfRange, infrav1.ReasonCreationFailed, false},
		"spec of the class":          {withClass, fake.CreateMachine, codes.InvalidArgument, infrav1.ReasonInvalidSpec, false},
		"size of the class":          {withClass, fake.CreateMachine, codes.OutOfRange, infrav1.ReasonInvalidSpec, false},
		"credentials or spec":        {withSecret, fake.CreateMachine, codes.InvalidArgument, infrav1.ReasonInvalidSpec, false},
		"capacity":                   {unchanged, fake.CreateMachine, codes.ResourceExhausted, infrav1.ReasonInsufficientCapacity, false},
		"name exists":                {unchanged, fake.CreateMachine, codes.AlreadyExists, infrav1.ReasonCreationFailed, false},
		"permission denied":          {unchanged, fake.CreateMachine, codes.PermissionDenied, infrav1.ReasonCreationFailed, false},
		"precondition":               {unchanged, fake.CreateMachine, codes.FailedPrecondition, infrav1.ReasonCreationFailed, false},
		"unauthenticated":            {unchanged, fake.CreateMachine, codes.Unauthenticated, infrav1.ReasonCreationFailed, false},
		"provider unavailable":       {unchanged, fake.GetMachineStatus, codes.Unavailable, infrav1.ReasonCreationFailed, false},
		"internal error":             {unchanged, fake.CreateMachine, codes.Internal, infrav1.ReasonCreationFailed, false},
		"unknown error":              {unchanged, fake.CreateMachine, codes.Unknown, infrav1.ReasonCreationFailed, false},
		"unimplemented":              {unchanged, fake.CreateMachine, codes.Unimplemented, infrav1.ReasonCreationFailed, false},
		"aborted creation":           {unchanged, fake.CreateMachine, codes.Aborted, infrav1.ReasonCreationFailed, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, tc.given)
			h.Driver.Fail(tc.method, tc.code)
			result := h.Settle()
			h.wantReady(metav1.ConditionFalse, tc.reason, "failed as configured", tc.code.String())
			got := h.infra().Status
			if final := got.FailureReason != nil && got.FailureMessage != nil; final != tc.final {
				t.Fatalf("terminal failure = %t, want %t", final, tc.final)
			}
			if tc.final {
				if *got.FailureReason != "InvalidConfiguration" { // Cluster API's reason
					t.Errorf("reason %q", *got.FailureReason)
				}
				return
			}
			if result.RequeueAfter <= 0 {
				t.Error("the creation is not retried")
			}
			h.SettleAfter(time.Hour)
			h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
		})
	}
}

// TestMachine_InvalidUTF8OfDriverIsReplaced checks that invalid UTF-8 in a driver's message is replaced. The API server replaces it
// when it stores the message, so that otherwise each reconcile would see a difference and write again.
func TestMachine_InvalidUTF8OfDriverIsReplaced(t *testing.T) {
	h := newHarness(t)
	h.Driver.FailWith(fake.CreateMachine, status.Error(codes.Internal, "no \xff disk"))
	h.Settle()
	h.wantCondition(infrav1.ConditionReady, metav1.ConditionFalse, readyOf(h).Reason, "no \uFFFD disk")
}

// TestMachine_MessagesOfDriverAreShortened checks that huge messages of a driver with escape sequences are shortened and
// printable in the status.
func TestMachine_MessagesOfDriverAreShortened(t *testing.T) {
	huge := status.Error(codes.InvalidArgument, strings.Repeat("fault\x1b", maxMessage))
	check := func(field, message string) {
		t.Helper()
		if len(message) > maxMessage || strings.Contains(message, "\x1b") || !strings.Contains(message, messages.Cut) {
			t.Errorf("%s has %d bytes: %.100q", field, len(message), message)
		}
	}
	h := newHarness(t)
	h.Driver.FailWith(fake.GetMachineStatus, huge)
	h.Settle()
	check("failureMessage", *h.infra().Status.FailureMessage)

	h = newTaggedHarness(t)
	h.Driver.FailWith(fake.UpdateMachine, huge)
	h.updateTo(`{"size":"small","tags":{"a":"2"}}`)
	h.Settle()
	check("the condition", meta.FindStatusCondition(h.infra().Status.Conditions, infrav1.ConditionUpToDate).Message)
}

// TestEvents_OnePerFailureCode checks that repeated failures with the same code send one event, even if the message
// differs.
func TestEvents_OnePerFailureCode(t *testing.T) {
	const long = 5000
	for name, method := range map[string]fake.Method{"creation": fake.CreateMachine, "deletion": fake.DeleteMachine} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			if method == fake.DeleteMachine {
				h.Settle()
				h.delete()
				h.takeEvents()
			}
			fail := func(code codes.Code, message string) {
				h.Driver.FailWith(method, status.Error(code, message))
			}
			for n := range 5 {
				fail(codes.Unavailable, fmt.Sprintf("request %d: try later", n))
			}
			for n := range 5 {
				fail(codes.Internal, fmt.Sprintf("request %d: %s", n, strings.Repeat("fault ", long)))
			}
			for range 10 {
				h.Clock.Step(h.Settle().RequeueAfter)
			}
			failed := slices.DeleteFunc(h.Driver.Calls(method), func(c fake.Call) bool { return c.Err == nil })
			if events := h.takeEvents(); len(events) != 2 || !strings.Contains(events[0], "request 0") || len(failed) != 10 {
				t.Errorf("%d events, %d calls failed", len(events), len(failed))
			}
			h.wantCondition(infrav1.ConditionReady, metav1.ConditionFalse, readyOf(h).Reason, "request 4", messages.Cut, " (Internal)")
		})
	}
}

// TestMachine_UnresponsiveDriverIsReported checks that a call without a response is reported, and that its late response is used.
func TestMachine_UnresponsiveDriverIsReported(t *testing.T) {
	h := newHarness(t)
	startCall := func() {
		for len(h.Tasks) == 0 {
			h.Pass()
		}
	}
	startCall()
	if result := h.Pass(); result.RequeueAfter <= 0 || result.RequeueAfter > instance.Silence {
		t.Errorf("requeued after %v", result.RequeueAfter)
	}
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonCreating)
	h.Clock.Step(instance.Silence)
	h.Pass()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonCreationFailed, "has not responded for 15m")
	h.takeEvents()
	h.Settle()
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	h.delete()
	startCall()
	h.Pass()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonDeleting)
	h.takeEvents()
	h.Clock.Step(instance.Silence)
	h.Pass()
	h.Pass()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonDeletionFailed, "has not responded for 15m")
	if events := h.takeEvents(); len(events) != 1 {
		t.Errorf("events %q, want one", events)
	}
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 {
		t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
	}
}

// TestCreation_NotForDeletedMachine checks that no VM is created for a Machine that is being deleted, which a hook may
// delay for long. A VM that may already exist is deleted with the object.
func TestCreation_NotForDeletedMachine(t *testing.T) {
	deleting := func(g *given) {
		g.machine.DeletionTimestamp, g.machine.Finalizers = new(metav1.NewTime(g.infra.CreationTimestamp.Time)), []string{"machine.cluster.x-k8s.io"}
	}
	h := newHarness(t, deleting)
	h.SettleAfter(time.Hour)
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonDeleting, "Machine m1 is being deleted")
	if len(h.calls()) != 0 {
		t.Errorf("calls %v", h.calls())
	}

	h = newHarness(t, func(g *given) { g.machine.Finalizers = []string{"machine.cluster.x-k8s.io"} })
	h.Driver.Fail(fake.CreateMachine, codes.ResourceExhausted)
	h.Settle()
	h.remove(&core.Machine{ObjectMeta: metav1.ObjectMeta{Name: machineName}})
	h.SettleAfter(time.Hour)
	if n := len(h.Driver.Calls(fake.CreateMachine)); n != 1 {
		t.Errorf("%d attempts, want only the one before the deletion", n)
	}
	h.addVM(machineName, "test:///vm-0") // created, but the response was lost
	h.delete()
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 {
		t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
	}

	h = newHarness(t, deleting, func(g *given) { g.infra.Spec.ProviderID = "test:///vm-0" })
	h.addVM(machineName, "test:///vm-0")
	h.Settle()
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
}

// TestFailureDomain_CanChangeBeforeCreation checks that the Machine's failure domain can change until the creation begins.
func TestFailureDomain_CanChangeBeforeCreation(t *testing.T) {
	h := newHarness(t, func(g *given) { g.machine.Spec.FailureDomain = "nowhere" })
	h.Settle()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonUnknownFailureDomain)
	h.changeMachine(func(m *core.Machine) { m.Spec.FailureDomain = "" })
	h.Settle()
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if got := h.infra(); got.Spec.FailureDomain != "" {
		t.Errorf("failure domain %q", got.Spec.FailureDomain)
	}
}

// TestCreation_LostResponseCreatesNoSecondVM checks that the VM is found and no second one is created when the response to its creation is
// lost.
func TestCreation_LostResponseCreatesNoSecondVM(t *testing.T) {
	for _, restart := range []bool{false, true} {
		h := newHarness(t)
		h.Driver.FailAfter(fake.CreateMachine, codes.DeadlineExceeded)
		h.Settle()
		if restart {
			h.restart()
		}
		h.SettleAfter(time.Minute)
		h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
		if h.made != 1 {
			t.Errorf("restart %t: %d VMs were created", restart, h.made)
		}
	}
}

// TestCreation_FailedWriteCreatesNoSecondVM checks for each write that its failure followed by a restart does not lead to a second VM.
func TestCreation_FailedWriteCreatesNoSecondVM(t *testing.T) {
	for at := range 5 {
		h := newHarness(t)
		n := 0
		h.Refuse = func(lockstep.Write) error {
			if n++; n == at+1 {
				return errDown
			}
			return nil
		}
		for range 4 {
			_, _ = h.controller.Reconcile(t.Context(), ctrlRequest(h)) // one of the calls fails
			h.Call()
		}
		h.Refuse = nil
		h.restart()
		h.SettleAfter(time.Minute)
		h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
		if h.made != 1 {
			t.Errorf("write %d: %d VMs were created", at, h.made)
		}
	}
}

// TestMachine_MovedKeepsVM checks that an object that was moved here without its status finds and keeps its VM (K7).
func TestMachine_MovedKeepsVM(t *testing.T) {
	h := newHarness(t)
	h.Settle()
	before := h.infra()
	h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Finalizers = nil })
	h.remove(h.infra())
	moved := &infrav1.MillwrightMachine{Spec: before.Spec}
	moved.Name, moved.Namespace, moved.UID = before.Name, before.Namespace, "another-uid"
	moved.Labels, moved.Annotations, moved.OwnerReferences = before.Labels, before.Annotations, before.OwnerReferences
	h.create(moved)
	h.restart()
	h.Settle()
	got := h.infra()
	if diff := cmp.Diff(before.Status.Addresses, got.Status.Addresses); diff != "" || got.Status.ProviderID != before.Status.ProviderID {
		t.Errorf("status %+v, was %+v", got.Status, before.Status)
	}
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if h.made != 1 {
		t.Errorf("%d VMs were created", h.made)
	}
}

// TestMachine_RestoredKeepsVM checks that an object that a backup tool restored without its owner and status is left
// alone until Cluster API gives it an owner, and then keeps its VM.
func TestMachine_RestoredKeepsVM(t *testing.T) {
	h := newHarness(t)
	h.Settle()
	before := h.infra()
	h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Finalizers = nil })
	h.remove(h.infra())
	restored := &infrav1.MillwrightMachine{Spec: before.Spec}
	restored.Name, restored.Namespace, restored.UID = before.Name, before.Namespace, "another-uid"
	restored.Labels, restored.Annotations, restored.Finalizers = before.Labels, before.Annotations, before.Finalizers
	h.create(restored)
	h.restart()
	h.Settle()
	if diff := cmp.Diff(infrav1.MillwrightMachineStatus{}, h.infra().Status); diff != "" {
		t.Errorf("status without an owner: want - got +\n%s", diff)
	}
	h.changeInfra(func(m *infrav1.MillwrightMachine) { m.OwnerReferences = before.OwnerReferences })
	h.Settle()
	if got := h.infra().Status; got.ProviderID != before.Status.ProviderID {
		t.Errorf("provider ID %q, was %q", got.ProviderID, before.Status.ProviderID)
	}
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if h.made != 1 {
		t.Errorf("%d VMs were created", h.made)
	}
}

// TestCreation_LostVMIsNotRecreated checks that a lost VM is not created again under the same name.
func TestCreation_LostVMIsNotRecreated(t *testing.T) {
	h := newHarness(t, func(g *given) { g.infra.Spec.ProviderID = "test:///gone" })
	h.Settle()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonInstanceLost, "test:///gone")
	if got := h.infra().Status; got.Ready || got.FailureReason != nil || h.made != 0 {
		t.Errorf("status %+v, %d VMs created", got, h.made)
	}
}

// TestMachine_NodeJoin checks that the condition reports the join of the node and its timeout. The timeout is not a failure.
func TestMachine_NodeJoin(t *testing.T) {
	h := newHarness(t)
	if result := h.Settle(); result.RequeueAfter <= 0 || result.RequeueAfter > joinTimeout {
		t.Errorf("requeued after %v", result.RequeueAfter)
	}
	h.restart() // the timeout starts again
	h.SettleAfter(joinTimeout - time.Minute)
	h.wantCondition(infrav1.ConditionNodeJoined, metav1.ConditionFalse, infrav1.ReasonWaitingForNode)
	h.SettleAfter(time.Minute)
	h.wantCondition(infrav1.ConditionNodeJoined, metav1.ConditionFalse, infrav1.ReasonJoinTimeout, "20m")
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if got := h.infra().Status; got.FailureReason != nil || !got.Ready {
		t.Errorf("status %+v", got)
	}
	h.changeMachine(func(m *core.Machine) { m.Status.NodeRef = &core.Reference{Name: "node"} })
	h.Settle()
	h.wantCondition(infrav1.ConditionNodeJoined, metav1.ConditionTrue, infrav1.ReasonJoined)
}

// TestFailureDomain_OfMachineIsKept checks that the VM is created in the Machine's failure domain, and deleted with the same one (S9,
// S38, M6).
func TestFailureDomain_OfMachineIsKept(t *testing.T) {
	place := func(g *given) {
		g.machine.Spec.FailureDomain = "b"
		g.infra.Spec.FailureDomains = []infrav1.Placement{{Name: "a"}, {Name: "b", ProviderSpec: raw(`{"zone":"zone-b"}`)}}
	}
	h := newHarness(t, place)
	h.Settle()
	got := h.infra()
	if got.Spec.FailureDomain != "b" || got.Status.FailureDomain != "b" {
		t.Errorf("failure domain %q, in the status %q", got.Spec.FailureDomain, got.Status.FailureDomain)
	}
	class := h.created()[0].MachineClass
	if string(class.ProviderSpec.Raw) != `{"size":"small","zone":"zone-b"}` || class.NodeTemplate.Zone != "b" {
		t.Errorf("class %s, zone %q", class.ProviderSpec.Raw, class.NodeTemplate.Zone)
	}
	h.remove(&core.Machine{ObjectMeta: metav1.ObjectMeta{Name: machineName}}) // and the failure domain with it
	h.delete()
	h.Settle()
	if diff := cmp.Diff(class.ProviderSpec, h.deleted()[0].MachineClass.ProviderSpec); diff != "" || !h.gone() {
		t.Errorf("deleted with another class:\n%s", diff)
	}

	h = newHarness(t, place, func(g *given) { g.machine.Spec.FailureDomain = "c" })
	h.Settle()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonUnknownFailureDomain, `"c"`, "spec.failureDomains")
	if len(h.calls()) != 0 {
		t.Errorf("the driver was called: %v", h.calls())
	}
}

// TestCreation_WaitsForMissingObjects checks that the controller waits for missing objects, and that a missing object is not a terminal
// failure.
func TestCreation_WaitsForMissingObjects(t *testing.T) {
	for name, tc := range map[string]struct {
		given  func(*given)
		reason string
		want   string
		fix    func(*harness)
	}{
		"credentials": {
			given:  func(g *given) { g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"} },
			reason: infrav1.ReasonCredentialsMissing, want: `"cloud"`,
			fix: func(h *harness) { h.create(secret(h.Key.Namespace, "cloud", nil)) },
		},
		"class": {
			given: func(g *given) {
				g.infra.Spec.ProviderSpec, g.infra.Spec.MachineClassRef = nil, &infrav1.LocalReference{Name: "small"}
			},
			reason: infrav1.ReasonMachineClassMissing, want: `"small"`,
			fix: func(h *harness) { h.create(newClass(h.Key.Namespace)) },
		},
		"Secret of the class": {
			given: func(g *given) {
				g.infra.Spec.ProviderSpec, g.infra.Spec.MachineClassRef = nil, &infrav1.LocalReference{Name: "small"}
				class := newClass(g.infra.Namespace)
				class.SecretRef = &corev1.SecretReference{Name: "cloud"}
				g.more = append(g.more, class)
			},
			reason: infrav1.ReasonMachineClassMissing, want: "cloud",
			fix: func(h *harness) { h.create(secret(h.Key.Namespace, "cloud", nil)) },
		},
		"driver": {
			given:  func(g *given) { g.infra.Spec.Driver = "other" },
			reason: infrav1.ReasonUnknownDriver, want: `"other"`,
			fix: func(h *harness) { h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.Driver = "test" }) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, tc.given)
			h.Settle()
			h.wantReady(metav1.ConditionFalse, tc.reason, tc.want)
			if got := h.infra(); len(h.calls()) != 0 || got.Status.FailureReason != nil || marks.Begun(got) {
				t.Errorf("calls %v, failure %v, begun %t", h.calls(), got.Status.FailureReason, marks.Begun(got))
			}
			if events := h.takeEvents(); len(events) != 1 {
				t.Errorf("events %q, want one", events)
			}
			tc.fix(h)
			h.SettleAfter(time.Minute)
			h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
		})
	}
}

// TestDeletion_IgnoresMissingObjectsBeforeCreation checks that missing objects do not block a deletion before a creation has begun.
func TestDeletion_IgnoresMissingObjectsBeforeCreation(t *testing.T) {
	h := newHarness(t, func(g *given) { g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"} })
	h.Settle()
	h.delete()
	h.Settle()
	if !h.gone() || len(h.calls()) != 0 {
		t.Errorf("gone %t, calls %v", h.gone(), h.calls())
	}
}

// TestCreation_WaitsForClassFinalizer checks that the creation waits for the finalizer of the class. Otherwise the class could be
// deleted during the creation.
func TestCreation_WaitsForClassFinalizer(t *testing.T) {
	h := newHarness(t, func(g *given) {
		g.infra.Spec.ProviderSpec, g.infra.Spec.MachineClassRef = nil, &infrav1.LocalReference{Name: "small"}
		class := newClass(g.infra.Namespace)
		class.Finalizers = nil
		g.more = append(g.more, class)
	})
	h.Settle()
	if len(h.calls()) != 0 || marks.Begun(h.infra()) {
		t.Fatalf("calls %v", h.calls())
	}
	change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = []string{infrav1.ClassFinalizer} })
	h.Settle()
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
}

// placer is a driver that supports every failure domain except "nowhere".
type placer struct{ driver.FailureDomains }

func (placer) PlaceMachine(_ context.Context, req *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	if req.FailureDomain == "nowhere" {
		return nil, status.Error(codes.NotFound, "there is no such zone")
	}
	spec, err := driver.WithField(req.MachineClass.ProviderSpec, "zone", req.FailureDomain)
	return &driver.PlaceMachineResponse{ProviderSpec: spec}, err
}

// TestFailureDomain_PlacedByDriver checks that the driver's placement is used in creation and deletion if the object does not
// configure the failure domain itself (S9, S38, M6).
func TestFailureDomain_PlacedByDriver(t *testing.T) {
	h := newHarness(t, func(g *given) { g.machine.Spec.FailureDomain = "c" })
	h.controller.inputs.Placer = placer{}
	h.Settle()
	if got := h.infra(); got.Spec.FailureDomain != "c" || got.Status.FailureDomain != "c" || !got.Status.Ready {
		t.Errorf("failure domain %q, status %+v", got.Spec.FailureDomain, got.Status)
	}
	const want = `{"size":"small","zone":"c"}`
	if class := h.created()[0].MachineClass; string(class.ProviderSpec.Raw) != want || class.NodeTemplate.Zone != "c" {
		t.Errorf("class %s, zone %q", class.ProviderSpec.Raw, class.NodeTemplate.Zone)
	}
	h.remove(&core.Machine{ObjectMeta: metav1.ObjectMeta{Name: machineName}})
	h.delete()
	h.Settle()
	if spec := string(h.deleted()[0].MachineClass.ProviderSpec.Raw); spec != want || !h.gone() {
		t.Errorf("deleted with class %s; gone: %v", spec, h.gone())
	}

	h = newHarness(t, func(g *given) { g.machine.Spec.FailureDomain = "nowhere" })
	h.controller.inputs.Placer = placer{}
	h.Settle()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonUnknownFailureDomain, `"nowhere"`, "there is no such zone")
	if len(h.calls()) != 0 {
		t.Errorf("the driver was called: %v", h.calls())
	}
}

// TestController_ReconcilesWhenDriverRegisters checks that the objects of a driver are reconciled immediately when it is registered again.
func TestController_ReconcilesWhenDriverRegisters(t *testing.T) {
	h := newHarness(t)
	h.Driver.OnStatus(fake.Always[driver.GetMachineStatusRequest, driver.GetMachineStatusResponse](nil, status.Error(codes.Unavailable, "not connected")))
	for range 5 {
		h.SettleAfter(time.Minute)
	}
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonCreationFailed, "not connected")
	h.Driver.OnStatus(nil)
	if got := h.controller.ofDriver(t.Context(), "other"); len(got) != 0 {
		t.Errorf("another driver triggers %v, want none", got)
	}
	if got := h.controller.ofDriver(t.Context(), "test"); len(got) != 1 {
		t.Errorf("the driver triggers %v, want one object", got)
	}
	h.Settle()
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
}
