package machine

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
)

// accounts makes the fake provider use the account in the Secret of the class as the location.
func (h *harness) accounts() {
	h.Driver.Configure(func(config *fake.Config) { config.Accounts = true })
}

// lead changes the account in the Secret.
func (h *harness) lead(account string) {
	h.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: h.Key.Namespace, Name: className}}
	change(h, secret, func(s *corev1.Secret) { s.Data["account"] = []byte(account) })
}

// giveUp removes the location, like an operator who knows that the VM no longer exists.
func (h *harness) giveUp() {
	h.Helper()
	change(h, h.machine(), func(m *v1alpha1.Machine) { delete(m.Annotations, driver.AnnotationLocation) })
}

// TestMachine_VMInAnotherLocationIsNotGone checks that a deletion with the credentials of another account does not consider the VM
// deleted, also after a restart. It continues after the Secret is corrected, the VM is found in the other account,
// or a user removes the location.
func TestMachine_VMInAnotherLocationIsNotGone(t *testing.T) {
	for name, test := range map[string]struct {
		act  func(*harness)
		left int // remaining VMs
	}{
		"led back":   {func(h *harness) { h.lead("first") }, 0},
		"moved":      {func(h *harness) { h.Driver.Move("second"); h.Clock.Step(time.Hour) }, 0},
		"given up":   {(*harness).giveUp, 1},
		"moved, led": {func(h *harness) { h.Driver.Move("third"); h.lead("third") }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := newServerHarness(t)
			h.accounts()
			h.lead("first")
			h.declare()
			h.Settle()
			if at := driver.Location(h.machine()); at != "account first" {
				t.Fatalf("location %q", at)
			}
			h.lead("second")
			h.delete()
			h.Settle()
			h.restart()
			h.Settle()
			if h.gone() || len(h.Driver.VMs()) != 1 {
				t.Fatalf("deleted: %v, %d VMs", h.gone(), len(h.Driver.VMs()))
			}
			wantStatus(t, h.machine(), statusFields{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed,
				"the VM may be in account first, but with the current class and Secret the driver looks in account second"})
			test.act(h)
			h.Settle()
			if !h.gone() || len(h.Driver.VMs()) != test.left {
				t.Errorf("deleted: %v, %d VMs remain, want %d", h.gone(), len(h.Driver.VMs()), test.left)
			}
		})
	}
}

// TestMachine_DeletionContinuesAfterRestartAndMove checks a process that terminates after it began to delete a VM in another location.
// The next process does not find the VM and considers it deleted.
func TestMachine_DeletionContinuesAfterRestartAndMove(t *testing.T) {
	h := newHarness(t)
	h.accounts()
	h.declare()
	h.Settle()
	h.Driver.Move("second")
	h.lead("second")
	h.delete()
	for len(h.Driver.VMs()) > 0 {
		h.Pass()
		h.Call()
	}
	h.restart()
	h.Settle()
	if !h.gone() {
		t.Errorf("the Machine was not removed: %+v", h.machine().Status.LastOperation)
	}
}

// TestMachine_NoSecondVMAfterLostResponse checks that no second VM is created if the response to a creation is lost and the Secret
// then has another account. The VM is found after the Secret is corrected.
func TestMachine_NoSecondVMAfterLostResponse(t *testing.T) {
	h := newHarness(t)
	h.accounts()
	h.declare()
	h.Driver.FailAfter(fake.CreateMachine, codes.DeadlineExceeded)
	h.UntilCalled(fake.CreateMachine)
	h.lead("second")
	h.restart()
	h.Settle()
	h.SettleAfter(time.Minute)
	if n := len(h.Driver.VMs()); n != 1 {
		t.Fatalf("%d VMs", n)
	}
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "the VM may be in account"})
	h.lead("")
	h.Settle()
	if id := h.machine().Spec.ProviderID; id == "" || len(h.Driver.VMs()) != 1 {
		t.Errorf("provider ID %q, %d VMs", id, len(h.Driver.VMs()))
	}
}

// TestMachine_LocationNeedsNoExtraWrite checks that after the first creation with a class, the location is part of another
// write.
func TestMachine_LocationNeedsNoExtraWrite(t *testing.T) {
	h := newHarness(t)
	h.accounts()
	h.declare()
	h.Settle()
	h.TakeWrites()
	h.Key.Name = "m2"
	h.declare(func(m *v1alpha1.Machine) { m.Name = "m2" })
	h.Settle()
	if got := count(h.TakeWrites(), "patch Machine"); got != 2 {
		t.Errorf("%d patches of the Machine, want 2: of its finalizer and of its ID", got)
	}
	if driver.Location(h.machine()) == "" {
		t.Error("the location was not recorded")
	}
}

// TestMachine_RestoredVMInAnotherLocationIsKept checks that a Machine is not replaced if its Secret has another account than its VM.
func TestMachine_RestoredVMInAnotherLocationIsKept(t *testing.T) {
	h := newHarness(t)
	h.accounts()
	h.addVM(machineName, "sim:///m1")
	h.declare(restored, owned, func(m *v1alpha1.Machine) {
		m.Annotations = map[string]string{driver.AnnotationLocation: "account other"}
	})
	h.lead("second")
	h.Settle()
	h.SettleAfter(creationTimeout + time.Minute)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineCrashLoopBackOff {
		t.Errorf("phase %q", got)
	}
}
