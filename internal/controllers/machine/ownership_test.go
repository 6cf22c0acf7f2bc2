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

// elder declares a Machine that was there before, with the VM of the one that the test is
// about.
func (h *harness) elder(changes ...func(*v1alpha1.Machine)) {
	h.Helper()
	h.declare(append([]func(*v1alpha1.Machine){func(m *v1alpha1.Machine) {
		m.Name, m.UID = "elder", types.UID("elder")
		inPhase(v1alpha1.MachineRunning)(m)
		m.Spec.ProviderID = "sim:///m1"
		m.CreationTimestamp = metav1.NewTime(h.Clock.Now().Add(-time.Hour))
	}}, changes...)...)
}

// TestTwoMachinesOneVM: the VM stays that of the Machine that had it first, and the other
// one says so.
func TestTwoMachinesOneVM(t *testing.T) {
	cases := map[string]struct {
		machine func(*v1alpha1.Machine)
		want    v1alpha1.MachinePhase
	}{
		"restored with another's ID": {restored, v1alpha1.MachineCrashLoopBackOff},
		"the driver finds another's": {func(*v1alpha1.Machine) {}, v1alpha1.MachineFailed},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.elder()
			h.addVM(machineName, "sim:///m1")
			h.declare(tc.machine)
			h.Settle()
			h.SettleAfter(time.Minute)
			wantStatus(t, h.machine(), want4{tc.want, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, `VM sim:///m1 already belongs to machine "elder"`})
			if events := h.takeEvents(); len(events) != 1 {
				t.Errorf("events %q, want one", events)
			}
			if len(h.Driver.Calls(fake.CreateMachine)) != 0 {
				t.Error("another VM is made")
			}
		})
	}
}

// TestDeletionTakesNoOthersVM: the deletion of one of two Machines with one VM waits until
// a user says whose it is.
func TestDeletionTakesNoOthersVM(t *testing.T) {
	h := newHarness(t)
	h.elder()
	h.addVM(machineName, "sim:///m1")
	h.declare(inPhase(v1alpha1.MachineRunning))
	h.join(ready)
	h.delete()
	h.Settle()
	h.SettleAfter(time.Hour)
	wantStatus(t, h.machine(), want4{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed, `VM sim:///m1 is also that of machine "elder"`})
	if len(h.methods()) != 0 || h.node() == nil || h.node().Spec.Unschedulable {
		t.Error("something of the other Machine's is touched")
	}
	change(h, h.machine(), func(m *v1alpha1.Machine) {
		m.Spec.ProviderID = ""
		delete(m.Labels, v1alpha1.NodeLabelKey)
	})
	h.removeVMs()
	h.SettleAfter(time.Minute)
	if !h.gone() || h.node() == nil {
		t.Errorf("gone: %v, node left: %v; want the Machine gone and the node there", h.gone(), h.node() != nil)
	}
}

// TestBothOfTwoMachinesAreDeleted: then the VM may go.
func TestBothOfTwoMachinesAreDeleted(t *testing.T) {
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
		t.Error("something is left")
	}
}

// otherAPI has an object of another API name the VM of the Machine that the test is about.
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

// TestVMOfTheOtherAPI: a driver that does not tell APIs apart finds the VM of an object of
// that name, or a user writes the ID of one to another. It stays with who has the better
// right, and no other one is made.
func TestVMOfTheOtherAPI(t *testing.T) {
	named := func(*v1alpha1.Machine) {}
	cases := map[string]struct {
		reason  string
		machine func(*v1alpha1.Machine)
		theirs  []func(*ownership.Owner)
		want    v1alpha1.MachinePhase
	}{
		"found by its name":           {"no object but one can have got it", named, nil, v1alpha1.MachineFailed},
		"found by its name, for sure": {"the same", named, []func(*ownership.Owner){certain}, v1alpha1.MachineFailed},
		"found while it is deleted":   {"it is about to go", named, []func(*ownership.Owner){certain, deleting}, v1alpha1.MachineFailed},
		"restored, theirs for sure":   {"ours may be written by hand", restored, []func(*ownership.Owner){certain}, v1alpha1.MachineCrashLoopBackOff},
		"restored, theirs is older":   {"either may be written by hand", restored, []func(*ownership.Owner){elder}, v1alpha1.MachineCrashLoopBackOff},
		"restored, theirs is younger": {"the same", restored, nil, v1alpha1.MachinePending},
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
			wantStatus(t, h.machine(), want4{tc.want, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "VM sim:///m1 already belongs to MillwrightMachine shoot/m1"})
			if events := h.takeEvents(); len(events) != 1 {
				t.Errorf("events %q, want one", events)
			}
			if len(h.Driver.Calls(fake.CreateMachine)) != 0 {
				t.Error("another VM is made")
			}
		})
	}
}

// TestDeletionLeavesTheVMOfTheOtherAPI: a Machine that never had the VM which the driver knows
// by its name goes without it, also where no node has to be found.
func TestDeletionLeavesTheVMOfTheOtherAPI(t *testing.T) {
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
					t.Errorf("gone: %v, calls %v, VMs %v", h.gone(), h.methods(), h.Driver.VMs())
				}
				if events := h.takeEvents(); len(events) != 1 || name != "class gone" && !strings.Contains(events[0], "already belongs to MillwrightMachine shoot/m1; it was not deleted") {
					t.Errorf("events %q", events)
				}
			})
		}
	}
}

// TestDeletionTakesNoVMOfTheOtherAPI: a Machine that has a VM which another object names too is
// held until a user says whose it is, or until both go.
func TestDeletionTakesNoVMOfTheOtherAPI(t *testing.T) {
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
		wantStatus(t, h.machine(), want4{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed, "VM sim:///m1 is also that of MillwrightMachine shoot/m1; clear spec.providerID"})
		if len(h.methods()) != 0 || h.node().Spec.Unschedulable {
			t.Errorf("calls %v, or the node is emptied", h.methods())
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
			t.Errorf("gone: %v, VMs %v, node left: %v", h.gone(), h.Driver.VMs(), h.node() != nil)
		}
	})
	t.Run("both go", func(t *testing.T) {
		h := begin(t)
		h.otherAPI(deleting)
		h.SettleAfter(time.Minute)
		if !h.gone() || len(h.Driver.VMs()) != 0 {
			t.Errorf("gone: %v, VMs %v", h.gone(), h.Driver.VMs())
		}
	})
}

// TestOwnersCannotBeRead: then nothing is taken, and nothing deleted.
func TestOwnersCannotBeRead(t *testing.T) {
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
		_ = pass() // the first ones ask the driver
	}
	if err := pass(); !errors.Is(err, errDown) || h.machine().Spec.ProviderID != "" {
		t.Errorf("error %v, provider ID %q", err, h.machine().Spec.ProviderID)
	}
	h.delete()
	for range 3 {
		_ = pass()
	}
	if err := pass(); !errors.Is(err, errDown) || h.gone() || len(h.Driver.VMs()) != 1 {
		t.Errorf("error %v, gone: %v, VMs %v", err, h.gone(), h.Driver.VMs())
	}
}

// TestNodeOfAnotherVM: a provider ID that was edited by hand, or a second VM that joined
// under the name, makes one event and changes nothing.
func TestNodeOfAnotherVM(t *testing.T) {
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
		t.Errorf("events %q, want one that names both", events)
	}
	if got := h.machine(); got.Status.CurrentStatus.Phase != v1alpha1.MachineRunning || got.Spec.ProviderID != "sim:///mine" {
		t.Errorf("phase %q, provider ID %q", got.Status.CurrentStatus.Phase, got.Spec.ProviderID)
	}
}

// TestStaleNode: a cloud that gives a new VM the name of one that is gone, whose node is
// still there.
func TestStaleNode(t *testing.T) {
	older := func(h *harness) { // by an hour
		h.Clock.Step(-time.Hour)
		h.join(ready)
		h.Clock.Step(time.Hour)
	}
	cases := map[string]struct {
		given func(h *harness)
		stale bool
	}{
		"node of a VM that is gone": {older, true},
		"the same, and it cannot be initialised": {func(h *harness) {
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
			wantStatus(t, h.machine(), want4{v1alpha1.MachineFailed, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "VM using old node obj"})
			if n := h.node(); len(n.Finalizers) != 0 || n.Labels[v1alpha1.LabelKeyMachineName] != "" {
				t.Error("the node is taken for the Machine's")
			}
			if got := len(h.Driver.Calls(fake.CreateMachine)); got != 1 {
				t.Errorf("%d VMs are made", got)
			}
			h.delete() // as its set does
			h.Settle()
			if !h.gone() || len(h.Driver.VMs()) != 0 || h.node() == nil || h.node().Spec.Unschedulable {
				t.Errorf("gone: %v, VMs %v, node left: %v; want the VM gone and the node untouched", h.gone(), h.Driver.VMs(), h.node() != nil)
			}
		})
	}
}

// TestDriverBreaksTheContract: one sentence, and no call sooner than the back-off has it.
func TestDriverBreaksTheContract(t *testing.T) {
	cases := map[string]struct {
		create   func() (*driver.CreateMachineResponse, error)
		sentence string
	}{
		"panics":  {func() (*driver.CreateMachineResponse, error) { panic("index out of range") }, "the driver panicked: index out of range"},
		"nothing": {func() (*driver.CreateMachineResponse, error) { return nil, nil }, "neither a response nor an error"},
		"no provider ID": {func() (*driver.CreateMachineResponse, error) {
			return &driver.CreateMachineResponse{NodeName: "n"}, nil
		}, "the driver named no provider ID"},
		"no node name": {func() (*driver.CreateMachineResponse, error) {
			return &driver.CreateMachineResponse{ProviderID: "a"}, nil
		}, "the driver named no node"},
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
			wantStatus(t, h.machine(), want4{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, tc.sentence})
			if got := h.machine().Status.LastOperation.ErrorCode; got != codes.Internal.String() {
				t.Errorf("error code %q", got)
			}
			if result.RequeueAfter < 5*time.Second {
				t.Errorf("it is tried again after %v", result.RequeueAfter)
			}
			for range 10 {
				h.Pass()
			}
			if h.Call(); len(h.Driver.Calls(fake.CreateMachine)) != 1 {
				t.Errorf("%d creations within no time", len(h.Driver.Calls(fake.CreateMachine)))
			}
		})
	}
}

// TestDriverThatHangs: a Machine whose driver never answers is Failed when its time is
// over, so that its set goes on.
func TestDriverThatHangs(t *testing.T) {
	h := newHarness(t)
	h.declare()
	h.Pass()
	if len(h.Tasks) != 1 {
		t.Fatalf("%d calls under way, want 1", len(h.Tasks))
	}
	h.Clock.Step(creationTimeout - time.Second)
	if h.Pass(); h.machine().Status.CurrentStatus.Phase != "" {
		t.Fatalf("phase %q too early", h.machine().Status.CurrentStatus.Phase)
	}
	h.Clock.Step(time.Second)
	h.Pass()
	wantStatus(t, h.machine(), want4{v1alpha1.MachineFailed, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "The driver has not answered within 20m"})
	if len(h.Tasks) != 1 {
		t.Errorf("%d calls under way, want still 1", len(h.Tasks))
	}
}

// TestDriverThatHangsLater: the same of a driver that has answered before; what it answered
// stays to be read until the call is overdue.
func TestDriverThatHangsLater(t *testing.T) {
	h := newHarness(t)
	h.Driver.Fail(fake.CreateMachine, codes.Unavailable)
	h.declare()
	h.Settle()
	h.Clock.Step(creationTimeout - time.Minute)
	h.Pass() // the call that hangs begins
	if len(h.Tasks) != 1 {
		t.Fatalf("%d calls under way, want 1", len(h.Tasks))
	}
	h.Clock.Step(time.Minute)
	if got := h.Pass().RequeueAfter; got != instance.Silence-time.Minute {
		t.Errorf("looked at again after %v", got)
	}
	wantStatus(t, h.machine(), want4{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "is out of order (Unavailable)"})
	h.takeEvents()
	h.Clock.Step(instance.Silence - time.Minute)
	for range 3 {
		h.Pass()
		h.Clock.Step(time.Minute)
	}
	wantStatus(t, h.machine(), want4{v1alpha1.MachineFailed, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "The driver has not answered for 15m0s"})
	if events := h.takeEvents(); len(events) != 1 {
		t.Errorf("events %q, want one", events)
	}
	h.Settle() // the driver answers after all
	h.join(ready)
	h.Settle()
	wantStatus(t, h.machine(), rejoined)
}

// TestDriverThatHangsAtADeletion: it is said, once, whatever the call is about; and when
// the driver answers the deletion goes on.
func TestDriverThatHangsAtADeletion(t *testing.T) {
	cases := map[string]struct {
		given  func(h *harness)
		marker string
	}{
		"deleting": {func(h *harness) { h.running(); h.delete() }, messages.DeleteVM},
		"looking for it": {func(h *harness) {
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
				t.Fatalf("%d calls under way, want 1", len(h.Tasks))
			}
			h.Clock.Step(instance.Silence - time.Second)
			if got := h.Pass().RequeueAfter; got != time.Second {
				t.Errorf("looked at again after %v", got)
			}
			if got := h.machine().Status.LastOperation.State; got != v1alpha1.MachineStateProcessing {
				t.Errorf("state %q too early", got)
			}
			for range 3 {
				h.Clock.Step(time.Minute)
				h.Pass()
			}
			wantStatus(t, h.machine(), want4{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed, "The driver has not answered for 15m0s. " + tc.marker})
			if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], "has not answered") {
				t.Errorf("events %q, want one", events)
			}
			if len(h.Tasks) != 1 {
				t.Errorf("%d calls under way, want still 1", len(h.Tasks))
			}
			h.Settle()
			if !h.gone() || len(h.Driver.VMs()) != 0 || h.node() != nil {
				t.Error("something is left when the driver has answered")
			}
		})
	}
}

// TestSecretChangesInMidCreation: what is under way ends, and is looked at again with the
// new Secret; one VM is made.
func TestSecretChangesInMidCreation(t *testing.T) {
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
				wantStatus(t, h.machine(), want4{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "not found"})
				h.create(newSecret(h.Key.Namespace))
				h.Settle()
			}
			if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
				t.Errorf("phase %q", got)
			}
			if got := len(h.Driver.Calls(fake.CreateMachine)); got != 1 {
				t.Errorf("%d VMs are made", got)
			}
		})
	}
}

// TestLostWithoutTarget: a VM that is gone is replaced also where no node tells of it.
func TestLostWithoutTarget(t *testing.T) {
	h := newHarness(t).withoutTarget()
	h.declare(restored)
	h.Settle()
	wantStatus(t, h.machine(), want4{v1alpha1.MachineUnknown, v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, "VM sim:///m1 does not exist any more"})
	h.SettleAfter(healthTimeout)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
		t.Errorf("phase %q after the health timeout", got)
	}
}

// TestTokenOutlivesASlowVM: as long as a VM may join, its token is valid, and stays the
// one that the VM has.
func TestTokenOutlivesASlowVM(t *testing.T) {
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
		ends, err := time.Parse(time.RFC3339, string(tokens[0].Data["expiration"]))
		if err != nil || !ends.After(h.Clock.Now()) {
			t.Fatalf("the token ended at %v, now it is %v", ends, h.Clock.Now())
		}
		if string(tokens[0].Data["token-secret"]) != string(first["token-secret"]) || string(tokens[0].Data["token-id"]) != string(first["token-id"]) {
			t.Fatal("it is another token")
		}
	}
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
		t.Errorf("phase %q", got)
	}
}

// TestNodeWithoutIDs: a node that was there before is not taken for that of a VM because
// neither of them says which VM it is.
func TestNodeWithoutIDs(t *testing.T) {
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
		t.Errorf("the Machine is gone: %v; the older node is %v", h.gone(), n)
	}
}
