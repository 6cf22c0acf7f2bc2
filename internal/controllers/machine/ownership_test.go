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
	"github.com/millwright-dev/millwright/driver/instrument"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// elder declares a Machine that was there before, with the VM of the one that the test is
// about.
func (w *world) elder(changes ...func(*v1alpha1.Machine)) {
	w.Helper()
	w.declare(append([]func(*v1alpha1.Machine){func(m *v1alpha1.Machine) {
		m.Name, m.UID = "elder", types.UID("elder")
		inPhase(v1alpha1.MachineRunning)(m)
		m.Spec.ProviderID = "sim:///m1"
		m.CreationTimestamp = metav1.NewTime(w.clock.Now().Add(-time.Hour))
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
			w := newWorld(t)
			w.elder()
			w.driver.vms[machineName] = "sim:///m1"
			w.declare(tc.machine)
			w.settle()
			w.settleAfter(time.Minute)
			wantStatus(t, w.machine(), want4{tc.want, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, `VM sim:///m1 is that of machine "elder" already`})
			if events := w.told(); len(events) != 1 {
				t.Errorf("events %q, want one", events)
			}
			if w.driver.made(instance.MethodCreate) != 0 {
				t.Error("another VM is made")
			}
		})
	}
}

// TestDeletionTakesNoOthersVM: the deletion of one of two Machines with one VM waits until
// a user says whose it is.
func TestDeletionTakesNoOthersVM(t *testing.T) {
	w := newWorld(t)
	w.elder()
	w.driver.vms[machineName] = "sim:///m1"
	w.declare(inPhase(v1alpha1.MachineRunning))
	w.join(ready)
	w.delete()
	w.settle()
	w.settleAfter(time.Hour)
	wantStatus(t, w.machine(), want4{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed, `VM sim:///m1 is also that of machine "elder"`})
	if len(w.driver.calls) != 0 || w.node() == nil || w.node().Spec.Unschedulable {
		t.Error("something of the other Machine's is touched")
	}
	change(w, w.machine(), func(m *v1alpha1.Machine) {
		m.Spec.ProviderID = ""
		delete(m.Labels, v1alpha1.NodeLabelKey)
	})
	clear(w.driver.vms)
	w.settleAfter(time.Minute)
	if !w.gone() || w.node() == nil {
		t.Errorf("gone: %v, node left: %v; want the Machine gone and the node there", w.gone(), w.node() != nil)
	}
}

// TestBothOfTwoMachinesAreDeleted: then the VM may go.
func TestBothOfTwoMachinesAreDeleted(t *testing.T) {
	w := newWorld(t)
	w.elder()
	w.driver.vms[machineName] = "sim:///m1"
	w.declare(inPhase(v1alpha1.MachineRunning))
	w.name = "elder"
	w.delete()
	w.name = machineName
	w.delete()
	w.settle()
	if !w.gone() || len(w.driver.vms) != 0 {
		t.Error("something is left")
	}
}

// otherAPI has an object of another API name the VM of the Machine that the test is about.
func (w *world) otherAPI(changes ...func(*ownership.Owner)) {
	other := ownership.Owner{
		Kind: "MillwrightMachine", Key: types.NamespacedName{Namespace: "shoot", Name: "m1"}, UID: "other", Since: w.clock.Now().Add(time.Hour),
	}
	for _, change := range changes {
		change(&other)
	}
	w.controller.OtherOwners = func(_ context.Context, namespace, providerID string) ([]ownership.Owner, error) {
		if namespace != w.namespace || providerID != "sim:///m1" {
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
			w := newWorld(t)
			w.otherAPI(tc.theirs...)
			w.driver.vms[machineName] = "sim:///m1"
			w.declare(tc.machine)
			w.settle()
			w.settleAfter(time.Minute)
			if tc.want == v1alpha1.MachinePending {
				if got := w.machine().Status.CurrentStatus.Phase; got != tc.want {
					t.Errorf("phase %q: %s", got, tc.reason)
				}
				return
			}
			wantStatus(t, w.machine(), want4{tc.want, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "VM sim:///m1 is that of MillwrightMachine shoot/m1 already"})
			if events := w.told(); len(events) != 1 {
				t.Errorf("events %q, want one", events)
			}
			if w.driver.made(instance.MethodCreate) != 0 {
				t.Error("another VM is made")
			}
		})
	}
}

// TestDeletionLeavesTheVMOfTheOtherAPI: a Machine that never had the VM which the driver knows
// by its name goes without it, also where no node has to be found.
func TestDeletionLeavesTheVMOfTheOtherAPI(t *testing.T) {
	for name, given := range map[string]func(w *world){
		"with a target":    func(*world) {},
		"without a target": func(w *world) { w.withoutTarget() },
		"class gone": func(w *world) {
			w.settle()
			change(w, newClass(w.namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
			w.remove(newClass(w.namespace))
		},
	} {
		for _, goes := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t)
				w.otherAPI(certain, func(c *ownership.Owner) { c.Deleting = goes })
				w.driver.vms[machineName] = "sim:///m1"
				w.declare(owned)
				given(w)
				w.settle()
				w.told()
				w.delete()
				w.settle()
				if !w.gone() || w.driver.made(instance.MethodDelete) != 0 || w.driver.vms[machineName] == "" {
					t.Errorf("gone: %v, calls %v, VMs %v", w.gone(), w.driver.calls, w.driver.vms)
				}
				if events := w.told(); len(events) != 1 || name != "class gone" && !strings.Contains(events[0], "is that of MillwrightMachine shoot/m1 already; it is left alone") {
					t.Errorf("events %q", events)
				}
			})
		}
	}
}

// TestDeletionTakesNoVMOfTheOtherAPI: a Machine that has a VM which another object names too is
// held until a user says whose it is, or until both go.
func TestDeletionTakesNoVMOfTheOtherAPI(t *testing.T) {
	begin := func(t *testing.T) *world {
		t.Helper()
		w := newWorld(t)
		w.otherAPI()
		w.driver.vms[machineName] = "sim:///m1"
		w.declare(inPhase(v1alpha1.MachineRunning))
		w.join(ready)
		w.delete()
		w.settle()
		w.settleAfter(time.Hour)
		wantStatus(t, w.machine(), want4{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed, "VM sim:///m1 is also that of MillwrightMachine shoot/m1: clear spec.providerID"})
		if len(w.driver.calls) != 0 || w.node().Spec.Unschedulable {
			t.Errorf("calls %v, or the node is emptied", w.driver.calls)
		}
		return w
	}
	t.Run("cleared", func(t *testing.T) {
		w := begin(t)
		change(w, w.machine(), func(m *v1alpha1.Machine) {
			m.Spec.ProviderID = ""
			delete(m.Labels, v1alpha1.NodeLabelKey)
		})
		w.settleAfter(time.Minute)
		if !w.gone() || w.driver.vms[machineName] == "" || w.node() == nil {
			t.Errorf("gone: %v, VMs %v, node left: %v", w.gone(), w.driver.vms, w.node() != nil)
		}
	})
	t.Run("both go", func(t *testing.T) {
		w := begin(t)
		w.otherAPI(deleting)
		w.settleAfter(time.Minute)
		if !w.gone() || len(w.driver.vms) != 0 {
			t.Errorf("gone: %v, VMs %v", w.gone(), w.driver.vms)
		}
	})
}

// TestOwnersCannotBeRead: then nothing is taken, and nothing deleted.
func TestOwnersCannotBeRead(t *testing.T) {
	w := newWorld(t)
	w.controller.OtherOwners = func(context.Context, string, string) ([]ownership.Owner, error) { return nil, errDown }
	w.driver.vms[machineName] = "sim:///m1"
	w.declare()
	pass := func() error {
		_, err := w.controller.Reconcile(t.Context(), w.request())
		w.call()
		return err
	}
	for range 3 {
		_ = pass() // the first ones ask the driver
	}
	if err := pass(); !errors.Is(err, errDown) || w.machine().Spec.ProviderID != "" {
		t.Errorf("error %v, provider ID %q", err, w.machine().Spec.ProviderID)
	}
	w.delete()
	for range 3 {
		_ = pass()
	}
	if err := pass(); !errors.Is(err, errDown) || w.gone() || len(w.driver.vms) != 1 {
		t.Errorf("error %v, gone: %v, VMs %v", err, w.gone(), w.driver.vms)
	}
}

// TestNodeOfAnotherVM: a provider ID that was edited by hand, or a second VM that joined
// under the name, is told once and changes nothing.
func TestNodeOfAnotherVM(t *testing.T) {
	w := newWorld(t)
	w.running()
	change(w, w.node(), func(n *corev1.Node) { n.Spec.ProviderID = "sim:///m1" })
	w.settle()
	if events := w.told(); len(events) != 0 {
		t.Fatalf("events %q for equal IDs", events)
	}
	change(w, w.machine(), func(m *v1alpha1.Machine) { m.Spec.ProviderID = "sim:///mine" })
	w.settle()
	w.settleAfter(time.Hour)
	events := w.told()
	if len(events) != 1 || !strings.Contains(events[0], "sim:///m1") || !strings.Contains(events[0], "sim:///mine") {
		t.Errorf("events %q, want one that names both", events)
	}
	if got := w.machine(); got.Status.CurrentStatus.Phase != v1alpha1.MachineRunning || got.Spec.ProviderID != "sim:///mine" {
		t.Errorf("phase %q, provider ID %q", got.Status.CurrentStatus.Phase, got.Spec.ProviderID)
	}
}

// TestStaleNode: a cloud that gives a new VM the name of one that is gone, whose node is
// still there.
func TestStaleNode(t *testing.T) {
	older := func(w *world) { // by an hour
		w.clock.Step(-time.Hour)
		w.join(ready)
		w.clock.Step(time.Hour)
	}
	cases := map[string]struct {
		given func(w *world)
		stale bool
	}{
		"node of a VM that is gone": {older, true},
		"the same, and it cannot be initialised": {func(w *world) {
			older(w)
			w.driver.fails(instance.MethodInitialize, codes.Internal)
		}, true},
		"own node, joined already": {func(w *world) { w.join(ready) }, false},
		"own node by its label": {func(w *world) {
			older(w)
			change(w, w.node(), func(n *corev1.Node) { n.Labels = map[string]string{v1alpha1.LabelKeyMachineName: machineName} })
		}, false},
		"own node by its VM": {func(w *world) {
			older(w)
			change(w, w.node(), func(n *corev1.Node) { n.Spec.ProviderID = "sim:///m1" })
		}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tc.given(w)
			w.declare(owned)
			w.settle()
			if !tc.stale {
				if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineRunning {
					t.Errorf("phase %q", got)
				}
				return
			}
			wantStatus(t, w.machine(), want4{v1alpha1.MachineFailed, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "VM using old node obj"})
			if n := w.node(); len(n.Finalizers) != 0 || n.Labels[v1alpha1.LabelKeyMachineName] != "" {
				t.Error("the node is taken for the Machine's")
			}
			if got := w.driver.made(instance.MethodCreate); got != 1 {
				t.Errorf("%d VMs are made", got)
			}
			w.delete() // as its set does
			w.settle()
			if !w.gone() || len(w.driver.vms) != 0 || w.node() == nil || w.node().Spec.Unschedulable {
				t.Errorf("gone: %v, VMs %v, node left: %v; want the VM gone and the node untouched", w.gone(), w.driver.vms, w.node() != nil)
			}
		})
	}
}

// absurd is a driver that does what none should.
type absurd struct {
	*scripted
	create func() (*driver.CreateMachineResponse, error)
}

func (d absurd) CreateMachine(context.Context, *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	d.calls = append(d.calls, instance.MethodCreate)
	return d.create()
}

// TestAbsurdDrivers: one sentence, and no call sooner than the back-off has it.
func TestAbsurdDrivers(t *testing.T) {
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
			w := newWorld(t)
			d := absurd{w.driver, tc.create}
			w.restart(instrument.Wrap(d, instrument.Options{}))
			w.declare()
			result := w.settle()
			wantStatus(t, w.machine(), want4{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, tc.sentence})
			if got := w.machine().Status.LastOperation.ErrorCode; got != codes.Internal.String() {
				t.Errorf("error code %q", got)
			}
			if result.RequeueAfter < 5*time.Second {
				t.Errorf("it is tried again after %v", result.RequeueAfter)
			}
			for range 10 {
				w.pass()
			}
			if w.call(); w.driver.made(instance.MethodCreate) != 1 {
				t.Errorf("%d creations within no time", w.driver.made(instance.MethodCreate))
			}
		})
	}
}

// TestDriverThatHangs: a Machine whose driver never answers is Failed when its time is
// over, so that its set goes on.
func TestDriverThatHangs(t *testing.T) {
	w := newWorld(t)
	w.declare()
	w.pass()
	if len(w.tasks) != 1 {
		t.Fatalf("%d calls under way, want 1", len(w.tasks))
	}
	w.clock.Step(creationTimeout - time.Second)
	if w.pass(); w.machine().Status.CurrentStatus.Phase != "" {
		t.Fatalf("phase %q too early", w.machine().Status.CurrentStatus.Phase)
	}
	w.clock.Step(time.Second)
	w.pass()
	wantStatus(t, w.machine(), want4{v1alpha1.MachineFailed, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "The driver has not answered within 20m"})
	if len(w.tasks) != 1 {
		t.Errorf("%d calls under way, want still 1", len(w.tasks))
	}
}

// TestDriverThatHangsLater: the same of a driver that has answered before; what it answered
// stays to be read until the call is overdue.
func TestDriverThatHangsLater(t *testing.T) {
	w := newWorld(t)
	w.driver.fails(instance.MethodCreate, codes.Unavailable)
	w.declare()
	w.settle()
	w.clock.Step(creationTimeout - time.Minute)
	w.pass() // the call that hangs begins
	if len(w.tasks) != 1 {
		t.Fatalf("%d calls under way, want 1", len(w.tasks))
	}
	w.clock.Step(time.Minute)
	if got := w.pass().RequeueAfter; got != instance.Silence-time.Minute {
		t.Errorf("looked at again after %v", got)
	}
	wantStatus(t, w.machine(), want4{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "is out of order (Unavailable)"})
	w.told()
	w.clock.Step(instance.Silence - time.Minute)
	for range 3 {
		w.pass()
		w.clock.Step(time.Minute)
	}
	wantStatus(t, w.machine(), want4{v1alpha1.MachineFailed, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "The driver has not answered for 15m0s"})
	if events := w.told(); len(events) != 1 {
		t.Errorf("events %q, want one", events)
	}
	w.settle() // the driver answers after all
	w.join(ready)
	w.settle()
	wantStatus(t, w.machine(), rejoined)
}

// TestDriverThatHangsAtADeletion: it is said, once, whatever the call is about; and when
// the driver answers the deletion goes on.
func TestDriverThatHangsAtADeletion(t *testing.T) {
	cases := map[string]struct {
		given  func(w *world)
		marker string
	}{
		"deleting": {func(w *world) { w.running(); w.delete() }, messages.DeleteVM},
		"looking for it": {func(w *world) {
			w.declare(func(m *v1alpha1.Machine) { m.Finalizers = []string{v1alpha1.FinalizerMCM} })
			w.delete()
		}, messages.Terminating},
		"still creating": {func(w *world) {
			w.declare()
			w.pass()
			w.delete()
		}, messages.Terminating},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tc.given(w)
			w.pass()
			if len(w.tasks) != 1 {
				t.Fatalf("%d calls under way, want 1", len(w.tasks))
			}
			w.clock.Step(instance.Silence - time.Second)
			if got := w.pass().RequeueAfter; got != time.Second {
				t.Errorf("looked at again after %v", got)
			}
			if got := w.machine().Status.LastOperation.State; got != v1alpha1.MachineStateProcessing {
				t.Errorf("state %q too early", got)
			}
			for range 3 {
				w.clock.Step(time.Minute)
				w.pass()
			}
			wantStatus(t, w.machine(), want4{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed, "The driver has not answered for 15m0s. " + tc.marker})
			if events := w.told(); len(events) != 1 || !strings.Contains(events[0], "has not answered") {
				t.Errorf("events %q, want one", events)
			}
			if len(w.tasks) != 1 {
				t.Errorf("%d calls under way, want still 1", len(w.tasks))
			}
			w.settle()
			if !w.gone() || len(w.driver.vms) != 0 || w.node() != nil {
				t.Error("something is left when the driver has answered")
			}
		})
	}
}

// TestSecretChangesInMidCreation: what is under way ends, and is looked at again with the
// new Secret; one VM is made.
func TestSecretChangesInMidCreation(t *testing.T) {
	for name, spoil := range map[string]func(w *world){
		"changes": func(w *world) {
			change(w, newSecret(w.namespace), func(s *corev1.Secret) { s.Data["apiKey"] = []byte("other") })
		},
		"disappears": func(w *world) { w.remove(newSecret(w.namespace)) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.declare()
			w.pass()
			spoil(w)
			w.settle()
			if name == "disappears" {
				wantStatus(t, w.machine(), want4{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "not found"})
				w.create(newSecret(w.namespace))
				w.settle()
			}
			if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
				t.Errorf("phase %q", got)
			}
			if got := w.driver.made(instance.MethodCreate); got != 1 {
				t.Errorf("%d VMs are made", got)
			}
		})
	}
}

// TestLostWithoutTarget: a VM that is gone is replaced also where no node tells of it.
func TestLostWithoutTarget(t *testing.T) {
	w := newWorld(t).withoutTarget()
	w.declare(restored)
	w.settle()
	wantStatus(t, w.machine(), want4{v1alpha1.MachineUnknown, v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, "VM sim:///m1 does not exist any more"})
	w.settleAfter(healthTimeout)
	if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
		t.Errorf("phase %q after the health timeout", got)
	}
}

// TestTokenOutlivesASlowVM: as long as a VM may join, its token is valid, and stays the
// one that the VM has.
func TestTokenOutlivesASlowVM(t *testing.T) {
	w := newWorld(t)
	w.declare(func(m *v1alpha1.Machine) {
		m.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineCreationTimeout: &metav1.Duration{Duration: 2 * time.Hour}}
	})
	w.settle()
	first := w.tokens()[0].Data
	change(w, w.machine(), func(m *v1alpha1.Machine) { m.Spec.MachineCreationTimeout.Duration = 12 * time.Hour })
	for range 20 {
		w.wait(30 * time.Minute)
		tokens := w.tokens()
		if len(tokens) != 1 {
			t.Fatalf("%d tokens", len(tokens))
		}
		ends, err := time.Parse(time.RFC3339, string(tokens[0].Data["expiration"]))
		if err != nil || !ends.After(w.clock.Now()) {
			t.Fatalf("the token ended at %v, now it is %v", ends, w.clock.Now())
		}
		if string(tokens[0].Data["token-secret"]) != string(first["token-secret"]) || string(tokens[0].Data["token-id"]) != string(first["token-id"]) {
			t.Fatal("it is another token")
		}
	}
	if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
		t.Errorf("phase %q", got)
	}
}

// TestNodeWithoutIDs: a node that was there before is not taken for that of a VM because
// neither of them says which VM it is.
func TestNodeWithoutIDs(t *testing.T) {
	w := newWorld(t)
	w.clock.Step(-time.Hour)
	w.join(ready)
	w.clock.Step(time.Hour)
	w.driver.vms[machineName] = ""
	w.declare()
	w.delete()
	w.settle()
	if n := w.node(); n == nil || n.Spec.Unschedulable || !w.gone() {
		t.Errorf("the Machine is gone: %v; the older node is %v", w.gone(), n)
	}
}
