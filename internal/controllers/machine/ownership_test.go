package machine

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/instrument"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// elder creates an older Machine with the VM of the Machine under test.
func (h *harness) elder(changes ...func(*v1alpha1.Machine)) {
	h.Helper()
	h.declare(append([]func(*v1alpha1.Machine){func(m *v1alpha1.Machine) {
		m.Name, m.UID = "elder", types.UID("elder")
		inPhase(v1alpha1.MachineRunning)(m)
		m.Spec.ProviderID = "sim:///m1"
		m.CreationTimestamp = metav1.NewTime(h.Clock.Now().Add(-time.Hour))
	}}, changes...)...)
}

// TestMachine_SharedVMBelongsToOlderMachine checks that a VM belongs to the Machine that had it first, and that the other Machine
// reports this.
func TestMachine_SharedVMBelongsToOlderMachine(t *testing.T) {
	cases := map[string]struct {
		machine func(*v1alpha1.Machine)
		want    v1alpha1.MachinePhase
	}{
		"restored with the other's ID": {restored, v1alpha1.MachineCrashLoopBackOff},
		"the driver finds the other's": {func(*v1alpha1.Machine) {}, v1alpha1.MachineFailed},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.elder()
			h.addVM(machineName, "sim:///m1")
			h.declare(tc.machine)
			h.Settle()
			h.SettleAfter(time.Minute)
			wantStatus(t, h.machine(), statusFields{tc.want, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, `VM sim:///m1 already belongs to machine "elder"`})
			if events := h.takeEvents(); len(events) != 1 {
				t.Errorf("events %q, want one", events)
			}
			if len(h.Driver.Calls(fake.CreateMachine)) != 0 {
				t.Error("another VM was created")
			}
		})
	}
}

// TestMachine_DeletionWaitsForSoleOwner checks that the deletion of a Machine that shares its VM waits until a user resolves
// the conflict.
func TestMachine_DeletionWaitsForSoleOwner(t *testing.T) {
	h := newHarness(t)
	h.elder()
	h.addVM(machineName, "sim:///m1")
	h.declare(inPhase(v1alpha1.MachineRunning))
	h.join(ready)
	h.delete()
	h.Settle()
	h.SettleAfter(time.Hour)
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed, `VM sim:///m1 also belongs to machine "elder"`})
	if len(h.methods()) != 0 || h.node() == nil || h.node().Spec.Unschedulable {
		t.Error("the VM or node of the other Machine was changed")
	}
	change(h, h.machine(), func(m *v1alpha1.Machine) {
		m.Spec.ProviderID = ""
		delete(m.Labels, v1alpha1.NodeLabelKey)
	})
	h.removeVMs()
	h.SettleAfter(time.Minute)
	if !h.gone() || h.node() == nil {
		t.Errorf("deleted: %v, node exists: %v; want the Machine deleted and the node kept", h.gone(), h.node() != nil)
	}
}

// TestMachine_SharedVMIsDeletedWithBothMachines checks that a shared VM is deleted if both Machines are deleted.
func TestMachine_SharedVMIsDeletedWithBothMachines(t *testing.T) {
	h := newHarness(t)
	h.elder()
	h.addVM(machineName, "sim:///m1")
	h.declare(inPhase(v1alpha1.MachineRunning))
	h.Key.Name = "elder"
	h.delete()
	h.Key.Name = machineName
	h.delete()
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 {
		t.Error("the deletion is incomplete")
	}
}

// otherAPI creates an object of another API that names the VM of the Machine under test.
func (h *harness) otherAPI(changes ...func(*ownership.Owner)) {
	other := ownership.Owner{
		Kind: "MillwrightMachine", Key: types.NamespacedName{Namespace: "shoot", Name: "m1"}, UID: "other", Since: h.Clock.Now().Add(time.Hour),
	}
	for _, change := range changes {
		change(&other)
	}
	h.controller.OtherOwners = func(_ context.Context, namespace, providerID string) ([]ownership.Owner, error) {
		if namespace != h.Key.Namespace || providerID != "sim:///m1" {
			return nil, nil
		}
		return []ownership.Owner{other}, nil
	}
}

func certain(c *ownership.Owner)  { c.Certain = true }
func elder(c *ownership.Owner)    { c.Since = c.Since.Add(-2 * time.Hour) }
func deleting(c *ownership.Owner) { c.Deleting = true }

// TestMachine_VMOfAnotherAPIIsNotAdopted checks two cases: a driver that does not distinguish APIs finds the VM of an object with the
// same name, or a user copies the ID from one object to another. The VM stays with the object that has the
// stronger claim, and no other VM is created.
func TestMachine_VMOfAnotherAPIIsNotAdopted(t *testing.T) {
	named := func(*v1alpha1.Machine) {}
	cases := map[string]struct {
		reason  string
		machine func(*v1alpha1.Machine)
		theirs  []func(*ownership.Owner)
		want    v1alpha1.MachinePhase
	}{
		"found by its name":           {"only the other object can have created it", named, nil, v1alpha1.MachineFailed},
		"found by its name, certain":  {"only the other object can have created it", named, []func(*ownership.Owner){certain}, v1alpha1.MachineFailed},
		"found while it is deleted":   {"the VM is about to be deleted", named, []func(*ownership.Owner){certain, deleting}, v1alpha1.MachineFailed},
		"restored, theirs is certain": {"our ID may have been edited", restored, []func(*ownership.Owner){certain}, v1alpha1.MachineCrashLoopBackOff},
		"restored, theirs is older":   {"either ID may have been edited", restored, []func(*ownership.Owner){elder}, v1alpha1.MachineCrashLoopBackOff},
		"restored, theirs is younger": {"either ID may have been edited", restored, nil, v1alpha1.MachinePending},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.otherAPI(tc.theirs...)
			h.addVM(machineName, "sim:///m1")
			h.declare(tc.machine)
			h.Settle()
			h.SettleAfter(time.Minute)
			if tc.want == v1alpha1.MachinePending {
				if got := h.machine().Status.CurrentStatus.Phase; got != tc.want {
					t.Errorf("phase %q: %s", got, tc.reason)
				}
				return
			}
			wantStatus(t, h.machine(), statusFields{tc.want, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "VM sim:///m1 already belongs to MillwrightMachine shoot/m1"})
			if events := h.takeEvents(); len(events) != 1 {
				t.Errorf("events %q, want one", events)
			}
			if len(h.Driver.Calls(fake.CreateMachine)) != 0 {
				t.Error("another VM was created")
			}
		})
	}
}

// TestMachine_DeletionKeepsVMOfAnotherAPI checks that a Machine without a provider ID is deleted without the VM that
// the driver finds by its name, with or without a target cluster.
func TestMachine_DeletionKeepsVMOfAnotherAPI(t *testing.T) {
	for name, given := range map[string]func(h *harness){
		"with a target":    func(*harness) {},
		"without a target": func(h *harness) { h.withoutTarget() },
		"class gone": func(h *harness) {
			h.Settle()
			change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
			h.remove(newClass(h.Key.Namespace))
		},
	} {
		for _, goes := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				h := newHarness(t)
				h.otherAPI(certain, func(c *ownership.Owner) { c.Deleting = goes })
				h.addVM(machineName, "sim:///m1")
				h.declare(owned)
				given(h)
				h.Settle()
				h.takeEvents()
				h.delete()
				h.Settle()
				if !h.gone() || len(h.Driver.Calls(fake.DeleteMachine)) != 0 || !h.hasVM(machineName) {
					t.Errorf("deleted: %v, calls %v, VMs %v", h.gone(), h.methods(), h.Driver.VMs())
				}
				if events := h.takeEvents(); len(events) != 1 || name != "class gone" && !strings.Contains(events[0], "already belongs to MillwrightMachine shoot/m1; it was not deleted") {
					t.Errorf("events %q", events)
				}
			})
		}
	}
}

// TestMachine_DeletionWaitsForSoleOwnerOfAnotherAPI checks that the deletion of a Machine whose VM another object also names
// waits until a user resolves the conflict, or until both are deleted.
func TestMachine_DeletionWaitsForSoleOwnerOfAnotherAPI(t *testing.T) {
	begin := func(t *testing.T) *harness {
		t.Helper()
		h := newHarness(t)
		h.otherAPI()
		h.addVM(machineName, "sim:///m1")
		h.declare(inPhase(v1alpha1.MachineRunning))
		h.join(ready)
		h.delete()
		h.Settle()
		h.SettleAfter(time.Hour)
		wantStatus(t, h.machine(), statusFields{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed, "VM sim:///m1 also belongs to MillwrightMachine shoot/m1; clear spec.providerID"})
		if len(h.methods()) != 0 || h.node().Spec.Unschedulable {
			t.Errorf("calls %v, want none and no drain", h.methods())
		}
		return h
	}
	t.Run("cleared", func(t *testing.T) {
		h := begin(t)
		change(h, h.machine(), func(m *v1alpha1.Machine) {
			m.Spec.ProviderID = ""
			delete(m.Labels, v1alpha1.NodeLabelKey)
		})
		h.SettleAfter(time.Minute)
		if !h.gone() || !h.hasVM(machineName) || h.node() == nil {
			t.Errorf("deleted: %v, VMs %v, node exists: %v", h.gone(), h.Driver.VMs(), h.node() != nil)
		}
	})
	t.Run("both go", func(t *testing.T) {
		h := begin(t)
		h.otherAPI(deleting)
		h.SettleAfter(time.Minute)
		if !h.gone() || len(h.Driver.VMs()) != 0 {
			t.Errorf("deleted: %v, VMs %v", h.gone(), h.Driver.VMs())
		}
	})
}

// TestMachine_UnreadableOwnersBlockVM checks that no VM is adopted or deleted if the owners cannot be read.
func TestMachine_UnreadableOwnersBlockVM(t *testing.T) {
	h := newHarness(t)
	h.controller.OtherOwners = func(context.Context, string, string) ([]ownership.Owner, error) { return nil, errDown }
	h.addVM(machineName, "sim:///m1")
	h.declare()
	pass := func() error {
		_, err := h.controller.Reconcile(t.Context(), h.Request())
		h.Call()
		return err
	}
	for range 3 {
		_ = pass() // the first passes call the driver
	}
	if err := pass(); !errors.Is(err, errDown) || h.machine().Spec.ProviderID != "" {
		t.Errorf("error %v, provider ID %q", err, h.machine().Spec.ProviderID)
	}
	h.delete()
	for range 3 {
		_ = pass()
	}
	if err := pass(); !errors.Is(err, errDown) || h.gone() || len(h.Driver.VMs()) != 1 {
		t.Errorf("error %v, deleted: %v, VMs %v", err, h.gone(), h.Driver.VMs())
	}
}

// TestMachine_NodeOfAnotherVMIsReported checks that a node with another provider ID causes one event and no other change. A user may
// have edited the Machine's provider ID, or a second VM may have joined with the name.
func TestMachine_NodeOfAnotherVMIsReported(t *testing.T) {
	h := newHarness(t)
	h.running()
	change(h, h.node(), func(n *corev1.Node) { n.Spec.ProviderID = "sim:///m1" })
	h.Settle()
	if events := h.takeEvents(); len(events) != 0 {
		t.Fatalf("events %q for equal IDs", events)
	}
	change(h, h.machine(), func(m *v1alpha1.Machine) { m.Spec.ProviderID = "sim:///mine" })
	h.Settle()
	h.SettleAfter(time.Hour)
	events := h.takeEvents()
	if len(events) != 1 || !strings.Contains(events[0], "sim:///m1") || !strings.Contains(events[0], "sim:///mine") {
		t.Errorf("events %q, want one that names both IDs", events)
	}
	if got := h.machine(); got.Status.CurrentStatus.Phase != v1alpha1.MachineRunning || got.Spec.ProviderID != "sim:///mine" {
		t.Errorf("phase %q, provider ID %q", got.Status.CurrentStatus.Phase, got.Spec.ProviderID)
	}
}

// TestMachine_StaleNodeIsNotAdopted checks a new VM that has the name of a previous VM whose node still exists.
func TestMachine_StaleNodeIsNotAdopted(t *testing.T) {
	older := func(h *harness) { // the node is an hour older than the Machine
		h.Clock.Step(-time.Hour)
		h.join(ready)
		h.Clock.Step(time.Hour)
	}
	cases := map[string]struct {
		given func(h *harness)
		stale bool
	}{
		"node of a previous VM": {older, true},
		"node of a previous VM, initialization fails": {func(h *harness) {
			older(h)
			h.Driver.Fail(fake.InitializeMachine, codes.Internal)
		}, true},
		"own node, joined already": {func(h *harness) { h.join(ready) }, false},
		"own node by its label": {func(h *harness) {
			older(h)
			change(h, h.node(), func(n *corev1.Node) { n.Labels = map[string]string{v1alpha1.LabelKeyMachineName: machineName} })
		}, false},
		"own node by its VM": {func(h *harness) {
			older(h)
			change(h, h.node(), func(n *corev1.Node) { n.Spec.ProviderID = "sim:///m1" })
		}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			tc.given(h)
			h.declare(owned)
			h.Settle()
			if !tc.stale {
				if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineRunning {
					t.Errorf("phase %q", got)
				}
				return
			}
			wantStatus(t, h.machine(), statusFields{v1alpha1.MachineFailed, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "VM using old node obj"})
			if n := h.node(); len(n.Finalizers) != 0 || n.Labels[v1alpha1.LabelKeyMachineName] != "" {
				t.Error("the node was adopted")
			}
			if got := len(h.Driver.Calls(fake.CreateMachine)); got != 1 {
				t.Errorf("%d VMs were created", got)
			}
			h.delete() // like its MachineSet
			h.Settle()
			if !h.gone() || len(h.Driver.VMs()) != 0 || h.node() == nil || h.node().Spec.Unschedulable {
				t.Errorf("deleted: %v, VMs %v, node exists: %v; want the VM deleted and the node unchanged", h.gone(), h.Driver.VMs(), h.node() != nil)
			}
		})
	}
}

// TestMachine_InvalidDriverResponseIsReported checks that a response that violates the contract is reported, and that calls are
// delayed by the back-off.
func TestMachine_InvalidDriverResponseIsReported(t *testing.T) {
	cases := map[string]struct {
		create   func() (*driver.CreateMachineResponse, error)
		sentence string
	}{
		"panics":  {func() (*driver.CreateMachineResponse, error) { panic("index out of range") }, "the driver panicked: index out of range"},
		"nothing": {func() (*driver.CreateMachineResponse, error) { return nil, nil }, "neither a response nor an error"},
		"no provider ID": {func() (*driver.CreateMachineResponse, error) {
			return &driver.CreateMachineResponse{NodeName: "n"}, nil
		}, "the driver returned no provider ID"},
		"no node name": {func() (*driver.CreateMachineResponse, error) {
			return &driver.CreateMachineResponse{ProviderID: "a"}, nil
		}, "the driver returned no node name"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.Driver.OnCreate(func(context.Context, *driver.CreateMachineRequest, func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
				return tc.create()
			})
			h.restartWith(instrument.Wrap(h.Driver, instrument.Options{}))
			h.declare()
			result := h.Settle()
			wantStatus(t, h.machine(), statusFields{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, tc.sentence})
			if got := h.machine().Status.LastOperation.ErrorCode; got != codes.Internal.String() {
				t.Errorf("error code %q", got)
			}
			if result.RequeueAfter < 5*time.Second {
				t.Errorf("the next pass is due in %v", result.RequeueAfter)
			}
			for range 10 {
				h.Pass()
			}
			if h.Call(); len(h.Driver.Calls(fake.CreateMachine)) != 1 {
				t.Errorf("%d creations without a delay", len(h.Driver.Calls(fake.CreateMachine)))
			}
		})
	}
}

// TestMachine_FailsIfDriverHangs checks that a Machine whose driver never returns becomes Failed after the creation timeout,
// so that its MachineSet replaces it.
func TestMachine_FailsIfDriverHangs(t *testing.T) {
	h := newHarness(t)
	h.declare()
	h.Pass()
	if len(h.Tasks) != 1 {
		t.Fatalf("%d calls in progress, want 1", len(h.Tasks))
	}
	h.Clock.Step(creationTimeout - time.Second)
	if h.Pass(); h.machine().Status.CurrentStatus.Phase != "" {
		t.Fatalf("phase %q before the timeout", h.machine().Status.CurrentStatus.Phase)
	}
	h.Clock.Step(time.Second)
	h.Pass()
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineFailed, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "The driver has not responded within 20m"})
	if len(h.Tasks) != 1 {
		t.Errorf("%d calls in progress, want still 1", len(h.Tasks))
	}
}

// TestMachine_FailsIfDriverHangsLater checks a driver that returned from previous calls. Its last error remains in the status
// until the new call takes too long.
func TestMachine_FailsIfDriverHangsLater(t *testing.T) {
	h := newHarness(t)
	h.Driver.Fail(fake.CreateMachine, codes.Unavailable)
	h.declare()
	h.Settle()
	h.Clock.Step(creationTimeout - time.Minute)
	h.Pass() // starts the call that hangs
	if len(h.Tasks) != 1 {
		t.Fatalf("%d calls in progress, want 1", len(h.Tasks))
	}
	h.Clock.Step(time.Minute)
	if got := h.Pass().RequeueAfter; got != instance.Silence-time.Minute {
		t.Errorf("the next pass is due in %v", got)
	}
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "failed as configured (Unavailable)"})
	h.takeEvents()
	h.Clock.Step(instance.Silence - time.Minute)
	for range 3 {
		h.Pass()
		h.Clock.Step(time.Minute)
	}
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineFailed, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "The driver has not responded for 15m0s"})
	if events := h.takeEvents(); len(events) != 1 {
		t.Errorf("events %q, want one", events)
	}
	h.Settle() // the driver returns
	h.join(ready)
	h.Settle()
	wantStatus(t, h.machine(), rejoined)
}

// TestMachine_DeletionReportsHangingDriver checks that one event reports any call that does not return, and that the
// deletion continues when the driver returns.
func TestMachine_DeletionReportsHangingDriver(t *testing.T) {
	cases := map[string]struct {
		given  func(h *harness)
		marker string
	}{
		"deleting": {func(h *harness) { h.running(); h.delete() }, messages.DeleteVM},
		"finding the VM": {func(h *harness) {
			h.declare(func(m *v1alpha1.Machine) { m.Finalizers = []string{v1alpha1.FinalizerMCM} })
			h.delete()
		}, messages.Terminating},
		"still creating": {func(h *harness) {
			h.declare()
			h.Pass()
			h.delete()
		}, messages.Terminating},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			tc.given(h)
			h.Pass()
			if len(h.Tasks) != 1 {
				t.Fatalf("%d calls in progress, want 1", len(h.Tasks))
			}
			h.Clock.Step(instance.Silence - time.Second)
			if got := h.Pass().RequeueAfter; got != time.Second {
				t.Errorf("the next pass is due in %v", got)
			}
			if got := h.machine().Status.LastOperation.State; got != v1alpha1.MachineStateProcessing {
				t.Errorf("state %q before the time limit", got)
			}
			for range 3 {
				h.Clock.Step(time.Minute)
				h.Pass()
			}
			wantStatus(t, h.machine(), statusFields{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed, "The driver has not responded for 15m0s. " + tc.marker})
			if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], "has not responded") {
				t.Errorf("events %q, want one", events)
			}
			if len(h.Tasks) != 1 {
				t.Errorf("%d calls in progress, want still 1", len(h.Tasks))
			}
			h.Settle()
			if !h.gone() || len(h.Driver.VMs()) != 0 || h.node() != nil {
				t.Error("the deletion is incomplete after the driver returned")
			}
		})
	}
}

// TestMachine_SecretChangeDuringCreation checks that a running creation completes if the Secret changes, that the next
// passes use the new Secret, and that one VM is created.
func TestMachine_SecretChangeDuringCreation(t *testing.T) {
	for name, spoil := range map[string]func(h *harness){
		"changes": func(h *harness) {
			change(h, newSecret(h.Key.Namespace), func(s *corev1.Secret) { s.Data["apiKey"] = []byte("other") })
		},
		"disappears": func(h *harness) { h.remove(newSecret(h.Key.Namespace)) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.declare()
			h.Pass()
			spoil(h)
			h.Settle()
			if name == "disappears" {
				wantStatus(t, h.machine(), statusFields{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "not found"})
				h.create(newSecret(h.Key.Namespace))
				h.Settle()
			}
			if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
				t.Errorf("phase %q", got)
			}
			if got := len(h.Driver.Calls(fake.CreateMachine)); got != 1 {
				t.Errorf("%d VMs were created", got)
			}
		})
	}
}

// TestMachine_LostVMIsReplacedWithoutTarget checks that a lost VM is replaced even if there are no nodes.
func TestMachine_LostVMIsReplacedWithoutTarget(t *testing.T) {
	h := newHarness(t).withoutTarget()
	h.declare(restored)
	h.Settle()
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineUnknown, v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, "VM sim:///m1 no longer exists"})
	h.SettleAfter(healthTimeout)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
		t.Errorf("phase %q after the health timeout", got)
	}
}

// TestMachine_TokenStaysValidForSlowVM checks that the token remains valid and unchanged as long as the VM may join.
func TestMachine_TokenStaysValidForSlowVM(t *testing.T) {
	h := newHarness(t)
	h.declare(func(m *v1alpha1.Machine) {
		m.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineCreationTimeout: &metav1.Duration{Duration: 2 * time.Hour}}
	})
	h.Settle()
	first := h.tokens()[0].Data
	change(h, h.machine(), func(m *v1alpha1.Machine) { m.Spec.MachineCreationTimeout.Duration = 12 * time.Hour })
	for range 20 {
		h.wait(30 * time.Minute)
		tokens := h.tokens()
		if len(tokens) != 1 {
			t.Fatalf("%d tokens", len(tokens))
		}
		expires, err := time.Parse(time.RFC3339, string(tokens[0].Data["expiration"]))
		if err != nil || !expires.After(h.Clock.Now()) {
			t.Fatalf("the token expired at %v, the time is %v", expires, h.Clock.Now())
		}
		if string(tokens[0].Data["token-secret"]) != string(first["token-secret"]) || string(tokens[0].Data["token-id"]) != string(first["token-id"]) {
			t.Fatal("the token changed")
		}
	}
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
		t.Errorf("phase %q", got)
	}
}

// TestMachine_OlderNodeWithoutIDIsNotAdopted checks that a Machine does not adopt an older node if neither has a provider ID.
func TestMachine_OlderNodeWithoutIDIsNotAdopted(t *testing.T) {
	h := newHarness(t)
	h.Clock.Step(-time.Hour)
	h.join(ready)
	h.Clock.Step(time.Hour)
	h.Driver.OnStatus(func(context.Context, *driver.GetMachineStatusRequest, func() (*driver.GetMachineStatusResponse, error)) (*driver.GetMachineStatusResponse, error) {
		return &driver.GetMachineStatusResponse{NodeName: h.nodeName()}, nil
	})
	h.declare()
	h.delete()
	h.Settle()
	if n := h.node(); n == nil || n.Spec.Unschedulable || !h.gone() {
		t.Errorf("deleted: %v; the older node is %v", h.gone(), n)
	}
}
