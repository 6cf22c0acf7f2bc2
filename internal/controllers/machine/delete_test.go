package machine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// running makes the Machine Running through the usual passes.
func (h *harness) running(changes ...func(*v1alpha1.Machine)) {
	h.Helper()
	h.declare(changes...)
	h.Settle()
	h.join(ready)
	h.Settle()
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineRunning {
		h.Fatalf("phase %q at the start of the test, want Running", got)
	}
	h.takeEvents()
	h.Writes = nil
	h.Driver.ForgetCalls()
}

// TestMachine_DeletionWrites checks that the VM, the node and the Machine are deleted in this order, with the expected
// writes only.
func TestMachine_DeletionWrites(t *testing.T) {
	h := newHarness(t)
	h.running()
	h.delete()

	h.Pass()
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateProcessing, "Set machine status to termination. Now, getting VM Status"})
	if h.node() == nil {
		t.Fatal("the node was deleted before the VM")
	}
	if len(toBeDeleted(h.node())) != 1 {
		t.Error("the node was not removed from load balancers")
	}
	h.Settle()
	want := []string{"patch status of Node", "patch Node", "patch status of Machine", "patch Node", "delete Node", "patch Machine"}
	if diff := cmp.Diff(want, h.TakeWrites()); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	if !h.gone() || h.node() != nil || len(h.Driver.VMs()) != 0 {
		t.Error("the deletion is incomplete")
	}
	if diff := cmp.Diff([]fake.Method{fake.DeleteMachine, fake.GetMachineStatus}, h.methods()); diff != "" {
		t.Errorf("driver calls (-want +got):\n%s", diff)
	}
	if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], "sim:///m1") {
		t.Errorf("events %q, want one that names the VM", events)
	}
}

// TestMachine_DeletionWaitsForVM checks that the Machine remains and reports why while its VM exists or may exist.
func TestMachine_DeletionWaitsForVM(t *testing.T) {
	deleting := func(state v1alpha1.MachineState, sentence string) statusFields {
		return statusFields{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, state, sentence}
	}
	cases := map[string]struct {
		reason string
		spoil  func(h *harness)
		repair func(h *harness)
		want   statusFields
		events int
	}{
		"driver fails": {
			reason: "a VM that was not deleted must not be forgotten",
			spoil: func(h *harness) {
				h.Driver.Fail(fake.DeleteMachine, slices.Repeat([]codes.Code{codes.Internal}, 9)...)
			},
			repair: func(h *harness) { h.Driver.ForgetFailures() },
			want:   deleting(v1alpha1.MachineStateFailed, "Cloud provider message - "),
			events: 1,
		},
		"driver cannot return the status": {
			reason: "an accepted deletion may not be complete",
			spoil: func(h *harness) {
				h.Driver.Fail(fake.GetMachineStatus, slices.Repeat([]codes.Code{codes.Unavailable}, 9)...)
			},
			repair: func(h *harness) { h.Driver.ForgetFailures() },
			want:   deleting(v1alpha1.MachineStateFailed, "Cloud provider message - "),
			events: 1,
		},
		"VM remains": {
			reason: "an accepted deletion may not be complete",
			spoil:  func(h *harness) { h.ignoreDeletes(true) },
			repair: func(h *harness) { h.ignoreDeletes(false) },
			want:   deleting(v1alpha1.MachineStateProcessing, "The provider still has the VM."),
			events: 1,
		},
		"class gone": {
			reason: "the driver needs the class to find the VM",
			spoil: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
				h.remove(newClass(h.Key.Namespace))
			},
			repair: func(h *harness) { h.create(newClass(h.Key.Namespace)) },
			want:   deleting(v1alpha1.MachineStateFailed, `VM sim:///m1 cannot be deleted: MachineClass "small" not found in namespace "shoot".`),
			events: 1,
		},
		"class of another driver": {
			reason: "another driver would not find the VM and would consider it deleted",
			spoil: func(h *harness) {
				h.controller.Drivers = registry.Only("fake", fake.New(fake.Config{}))
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Provider = "aws" })
			},
			repair: func(h *harness) { h.controller.Drivers = registry.Only("aws", fake.New(fake.Config{})) },
			want:   deleting(v1alpha1.MachineStateFailed, `VM sim:///m1 cannot be deleted: MachineClass "small" is for driver "aws", but this manager has the driver "fake".`),
			events: 1,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.running()
			tc.spoil(h)
			h.delete()
			h.Settle()
			h.SettleAfter(time.Minute)
			h.SettleAfter(time.Minute)
			if h.gone() {
				t.Fatalf("the Machine was removed: %s", tc.reason)
			}
			wantStatus(t, h.machine(), tc.want)
			if got := h.machine().Status.LastOperation.Description; !strings.Contains(got, "Initiate VM deletion") {
				t.Errorf("description %q lacks the marker for MCM", got)
			}
			if h.node() == nil {
				t.Error("the node was deleted before the VM")
			}
			if events := h.takeEvents(); len(events) != tc.events {
				t.Errorf("events %q, want %d", events, tc.events)
			}
			tc.repair(h)
			h.SettleAfter(10 * time.Minute)
			h.SettleAfter(10 * time.Minute)
			if !h.gone() || h.node() != nil || len(h.Driver.VMs()) != 0 {
				t.Error("the deletion is incomplete after the fix")
			}
		})
	}
}

// TestMachine_DeletionWithoutNode checks that a Machine that has no node yet is deleted completely, in whatever state
// it is.
func TestMachine_DeletionWithoutNode(t *testing.T) {
	cases := map[string]struct {
		reason  string
		before  func(h *harness)
		deletes int
	}{
		"never reconciled": {
			reason: "it has no finalizer, so it is removed immediately",
			before: func(*harness) {},
		},
		"class never existed": {
			reason: "no VM can have been created without a class",
			before: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
				h.remove(newClass(h.Key.Namespace))
				h.Settle()
			},
		},
		"class of another kind": {
			reason: "the same",
			before: func(h *harness) {
				change(h, h.machine(), func(m *v1alpha1.Machine) { m.Spec.Class.Kind = "AWSMachineClass" })
				h.Settle()
			},
		},
		"secret gone": {
			reason: "the driver may not need a Secret; otherwise it returns an error",
			before: func(h *harness) {
				h.Settle()
				h.remove(newSecret(h.Key.Namespace))
			},
			deletes: 1,
		},
		"user data missing": {
			reason: "a deletion needs no user data",
			before: func(h *harness) {
				h.Settle()
				secret := newSecret(h.Key.Namespace)
				h.remove(secret)
				secret = newSecret(h.Key.Namespace)
				delete(secret.Data, "userData")
				h.create(secret)
			},
			deletes: 1,
		},
		"creation failed": {
			reason: "a failed creation may have created a VM",
			before: func(h *harness) {
				h.Driver.Fail(fake.CreateMachine, codes.Internal)
				h.Settle()
			},
			deletes: 1,
		},
		"response lost": {
			reason: "the ID of the existing VM was not stored",
			before: func(h *harness) {
				h.Driver.Fail(fake.CreateMachine, codes.DeadlineExceeded)
				h.Settle()
				h.addVM(machineName, "sim:///m1")
			},
			deletes: 1,
		},
		"not joined": {
			reason:  "its token must be deleted, too",
			before:  func(h *harness) { h.Settle() },
			deletes: 1,
		},
		"not joined, and restarted": {
			reason: "another process issued the token",
			before: func(h *harness) {
				h.Settle()
				h.restart()
			},
			deletes: 1,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.declare()
			tc.before(h)
			h.Driver.ForgetCalls()
			h.delete()
			h.Settle()
			h.SettleAfter(time.Hour)
			if !h.gone() {
				t.Fatalf("the Machine was not removed (%s): %+v", tc.reason, h.machine().Status)
			}
			if got := len(h.Driver.Calls(fake.DeleteMachine)); got != tc.deletes {
				t.Errorf("%d deletions (%s), want %d", got, tc.reason, tc.deletes)
			}
			if len(h.Driver.VMs()) != 0 || len(h.tokens()) != 0 {
				t.Errorf("%d VMs and %d tokens remain", len(h.Driver.VMs()), len(h.tokens()))
			}
			if n := len(h.Writes); n > 0 && h.Writes[n-1].What != "patch Machine" {
				t.Errorf("writes to a Machine that no longer exists:\n%s", h.LastWrites())
			}
		})
	}
}

// TestMachine_DeletionIgnoresCreationProblems checks that problems that prevent a creation do not prevent a deletion.
func TestMachine_DeletionIgnoresCreationProblems(t *testing.T) {
	for name, spoil := range map[string]func(h *harness){
		"invalid class": func(h *harness) {
			change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.NodeTemplate = &v1alpha1.NodeTemplate{Region: "moon"} })
		},
		"class without finalizer": func(h *harness) {
			change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
		},
		"class that is being deleted": func(h *harness) { h.remove(newClass(h.Key.Namespace)) },
		"class without a secret": func(h *harness) {
			change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.SecretRef = nil })
		},
		"secret is missing": func(h *harness) { h.remove(newSecret(h.Key.Namespace)) },
		"timeout below zero": func(h *harness) {
			change(h, h.machine(), func(m *v1alpha1.Machine) {
				m.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineDrainTimeout: &metav1.Duration{Duration: -time.Hour}}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.running()
			spoil(h)
			h.delete()
			h.Settle()
			if !h.gone() || h.node() != nil || len(h.Driver.VMs()) != 0 {
				t.Error("the deletion is incomplete")
			}
		})
	}
}

// TestMachine_DeletionDoesNotReadTokenOfJoinedNode checks that the deletion of a Machine that has joined does not read its token.
func TestMachine_DeletionDoesNotReadTokenOfJoinedNode(t *testing.T) {
	h := newHarness(t)
	h.running()
	h.restart()
	reads := 0
	h.controller.Tokens.Target = countReads{h.controller.Tokens.Target, &reads}
	h.delete()
	h.Settle()
	if !h.gone() {
		t.Fatal("the Machine was not removed")
	}
	if reads != 0 {
		t.Errorf("%d reads of tokens", reads)
	}
}

// TestMachine_DeletionWaitsForCreation checks that a deletion waits for a running creation and then deletes the new VM.
func TestMachine_DeletionWaitsForCreation(t *testing.T) {
	h := newHarness(t)
	h.declare()
	h.Pass()
	if len(h.Tasks) != 1 {
		t.Fatalf("%d calls in progress, want 1", len(h.Tasks))
	}
	h.delete()
	h.Pass()
	if len(h.Tasks) != 1 {
		t.Fatal("the deletion call started during the creation call")
	}
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 {
		t.Error("the deletion is incomplete")
	}
}

// TestMachine_KeepsOtherFinalizers checks that our finalizers are removed, including that of old versions, and that other
// finalizers remain. After that, the Machine is ignored.
func TestMachine_KeepsOtherFinalizers(t *testing.T) {
	h := newHarness(t)
	const foreign = "example.com/backup"
	h.running(func(m *v1alpha1.Machine) { m.Finalizers = []string{v1alpha1.FinalizerLegacy, foreign} })
	h.delete()
	h.Settle()
	if diff := cmp.Diff([]string{foreign}, h.machine().Finalizers); diff != "" {
		t.Fatalf("finalizers (-want +got):\n%s", diff)
	}
	h.Writes = nil
	h.Driver.ForgetCalls()
	h.SettleAfter(time.Hour)
	h.restart()
	h.Settle()
	if len(h.Writes) != 0 || len(h.methods()) != 0 {
		t.Errorf("calls %v for a Machine with finalizers of other controllers only; writes:\n%s", h.methods(), h.LastWrites())
	}
}

// TestMachine_LegacyFinalizerIsRemoved checks that a Machine that has only the finalizer of old versions can be deleted.
func TestMachine_LegacyFinalizerIsRemoved(t *testing.T) {
	h := newHarness(t)
	h.addVM(machineName, "sim:///m1")
	h.declare(inPhase(v1alpha1.MachineRunning), func(m *v1alpha1.Machine) { m.Finalizers = []string{v1alpha1.FinalizerLegacy} })
	h.delete()
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 {
		t.Error("the deletion is incomplete")
	}
}

// TestMachine_DeletionContinuesFromAnyStep checks that a deletion completes from any step that MCM or a previous process had
// reached.
func TestMachine_DeletionContinuesFromAnyStep(t *testing.T) {
	for _, description := range []string{
		messages.Terminating, "Initiate node drain", "Delete Volume Attachments", messages.DeleteVM,
		"Initiate node object deletion", "Initiate machine object finalizer removal",
		"Deleting machine from cloud provider", "gibberish", "",
	} {
		for name, given := range map[string]func(h *harness){
			"all exist":            func(*harness) {},
			"VM is gone":           func(h *harness) { h.removeVMs() },
			"VM and node are gone": func(h *harness) { h.removeVMs(); h.dropNode() },
			"node is gone":         func(h *harness) { h.dropNode() },
		} {
			t.Run(description+", "+name, func(t *testing.T) {
				h := newHarness(t)
				h.running()
				h.delete()
				machine := h.machine()
				machine.Status.CurrentStatus.Phase = v1alpha1.MachineTerminating
				machine.Status.LastOperation = v1alpha1.LastOperation{Type: v1alpha1.MachineOperationDelete, State: v1alpha1.MachineStateProcessing, Description: description}
				if err := h.control.Status().Update(t.Context(), machine); err != nil {
					t.Fatal(err)
				}
				given(h)
				h.restart()
				h.Settle()
				if !h.gone() || h.node() != nil || len(h.Driver.VMs()) != 0 {
					t.Error("the deletion is incomplete")
				}
			})
		}
	}
}

// TestMachine_DeletionWaitsForTargetCluster checks that the VM is deleted while the target cluster is unavailable, and that
// the Machine remains until its node can be deleted.
func TestMachine_DeletionWaitsForTargetCluster(t *testing.T) {
	h := newHarness(t)
	h.running()
	since := h.target.since
	h.target.since = time.Time{}
	h.delete()
	result := h.Settle()
	if len(h.Driver.VMs()) != 0 {
		t.Error("the VM was not deleted")
	}
	if h.gone() || h.node() == nil {
		t.Error("the Machine or its node was deleted although the target cluster does not respond")
	}
	if result.RequeueAfter <= 0 {
		t.Error("no next pass is scheduled")
	}
	h.target.since = since
	h.Settle()
	if !h.gone() || h.node() != nil {
		t.Error("the deletion is incomplete after the target cluster responds again")
	}
}

// TestMachine_LastKnownStateOfDeletion checks that the driver gets back the LastKnownState that it returned with a failed deletion.
func TestMachine_LastKnownStateOfDeletion(t *testing.T) {
	h := newHarness(t)
	h.running()
	h.Driver.Configure(func(config *fake.Config) { config.LastKnownState, config.IgnoreDeletes = "snapshot pending", true })
	h.delete()
	h.Settle()
	if got := h.machine().Status.LastKnownState; got != "snapshot pending" {
		t.Errorf("lastKnownState %q", got)
	}
}
