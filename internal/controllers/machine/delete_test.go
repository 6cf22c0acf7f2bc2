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

// running brings the Machine to Running, by the way that life does.
func (h *harness) running(changes ...func(*v1alpha1.Machine)) {
	h.Helper()
	h.declare(changes...)
	h.Settle()
	h.join(ready)
	h.Settle()
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineRunning {
		h.Fatalf("phase %q, want Running to begin with", got)
	}
	h.takeEvents()
	h.Writes = nil
	h.Driver.ForgetCalls()
}

// TestAMachineIsDeleted: VM, node and Machine go, in this order, with as few writes as
// the budget allows.
func TestAMachineIsDeleted(t *testing.T) {
	h := newHarness(t)
	h.running()
	h.delete()

	h.Pass()
	wantStatus(t, h.machine(), want4{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateProcessing, "Set machine status to termination. Now, getting VM Status"})
	if h.node() == nil {
		t.Fatal("the node goes before the VM")
	}
	h.Settle()
	want := []string{"patch status of Node", "patch Node", "patch status of Machine", "patch Node", "delete Node", "patch Machine"}
	if diff := cmp.Diff(want, h.TakeWrites()); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	if !h.gone() || h.node() != nil || len(h.Driver.VMs()) != 0 {
		t.Error("something is left")
	}
	if diff := cmp.Diff([]fake.Method{fake.DeleteMachine, fake.GetMachineStatus}, h.methods()); diff != "" {
		t.Errorf("driver calls (-want +got):\n%s", diff)
	}
	if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], "sim:///m1") {
		t.Errorf("events %q, want one that names the VM", events)
	}
}

// TestDeletionThatWaits: as long as a VM exists, or may, the Machine stays and says why.
func TestDeletionThatWaits(t *testing.T) {
	deleting := func(state v1alpha1.MachineState, sentence string) want4 {
		return want4{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, state, sentence}
	}
	cases := map[string]struct {
		reason string
		spoil  func(h *harness)
		repair func(h *harness)
		want   want4
		events int
	}{
		"driver fails": {
			reason: "a VM that could not be deleted costs money",
			spoil: func(h *harness) {
				h.Driver.Fail(fake.DeleteMachine, slices.Repeat([]codes.Code{codes.Internal}, 9)...)
			},
			repair: func(h *harness) { h.Driver.ForgetFailures() },
			want:   deleting(v1alpha1.MachineStateFailed, "Cloud provider message - "),
			events: 1,
		},
		"driver cannot tell": {
			reason: "accepted is not gone",
			spoil: func(h *harness) {
				h.Driver.Fail(fake.GetMachineStatus, slices.Repeat([]codes.Code{codes.Unavailable}, 9)...)
			},
			repair: func(h *harness) { h.Driver.ForgetFailures() },
			want:   deleting(v1alpha1.MachineStateFailed, "Cloud provider message - "),
			events: 1,
		},
		"VM remains": {
			reason: "accepted is not gone",
			spoil:  func(h *harness) { h.ignoreDeletes(true) },
			repair: func(h *harness) { h.ignoreDeletes(false) },
			want:   deleting(v1alpha1.MachineStateProcessing, "The provider still has the VM."),
			events: 1,
		},
		"class gone": {
			reason: "without its class nobody knows where the VM is",
			spoil: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
				h.remove(newClass(h.Key.Namespace))
			},
			repair: func(h *harness) { h.create(newClass(h.Key.Namespace)) },
			want:   deleting(v1alpha1.MachineStateFailed, `VM sim:///m1 cannot be deleted: MachineClass "small" not found in namespace "shoot".`),
			events: 1,
		},
		"class of another driver": {
			reason: "it would not find the VM and take it for deleted",
			spoil: func(h *harness) {
				h.controller.Drivers = registry.Only("fake", fake.New(fake.Config{}))
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Provider = "aws" })
			},
			repair: func(h *harness) { h.controller.Drivers = registry.Only("aws", fake.New(fake.Config{})) },
			want:   deleting(v1alpha1.MachineStateFailed, `VM sim:///m1 cannot be deleted: MachineClass "small" is for the driver "aws", and this manager has the driver "fake".`),
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
				t.Fatalf("the Machine is gone: %s", tc.reason)
			}
			wantStatus(t, h.machine(), tc.want)
			if got := h.machine().Status.LastOperation.Description; !strings.Contains(got, "Initiate VM deletion") {
				t.Errorf("description %q lacks the marker by which MCM knows where to go on", got)
			}
			if h.node() == nil {
				t.Error("the node is gone before the VM")
			}
			if events := h.takeEvents(); len(events) != tc.events {
				t.Errorf("events %q, want %d", events, tc.events)
			}
			tc.repair(h)
			h.SettleAfter(10 * time.Minute)
			h.SettleAfter(10 * time.Minute)
			if !h.gone() || h.node() != nil || len(h.Driver.VMs()) != 0 {
				t.Error("something is left after the repair")
			}
		})
	}
}

// TestDeletionOfWhatNeverCame: Machines in every state short of a node end without a
// trace.
func TestDeletionOfWhatNeverCame(t *testing.T) {
	cases := map[string]struct {
		reason  string
		before  func(h *harness)
		deletes int
	}{
		"never looked at": {
			reason: "it has no finalizer, so it is gone at once",
			before: func(*harness) {},
		},
		"class never existed": {
			reason: "nothing can have been created without a class",
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
			reason: "the driver may do without one, and says so if not",
			before: func(h *harness) {
				h.Settle()
				h.remove(newSecret(h.Key.Namespace))
			},
			deletes: 1,
		},
		"user data gone": {
			reason: "a deletion needs none",
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
			reason: "a failed creation may have left something",
			before: func(h *harness) {
				h.Driver.Fail(fake.CreateMachine, codes.Internal)
				h.Settle()
			},
			deletes: 1,
		},
		"answer lost": {
			reason: "nobody has stored the ID of the VM that exists",
			before: func(h *harness) {
				h.Driver.Fail(fake.CreateMachine, codes.DeadlineExceeded)
				h.Settle()
				h.addVM(machineName, "sim:///m1")
			},
			deletes: 1,
		},
		"not joined": {
			reason:  "its token must go with it",
			before:  func(h *harness) { h.Settle() },
			deletes: 1,
		},
		"not joined, and restarted": {
			reason: "the same, when another process issued it",
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
				t.Fatalf("the Machine stays (%s): %+v", tc.reason, h.machine().Status)
			}
			if got := len(h.Driver.Calls(fake.DeleteMachine)); got != tc.deletes {
				t.Errorf("%d deletions (%s), want %d", got, tc.reason, tc.deletes)
			}
			if len(h.Driver.VMs()) != 0 || len(h.tokens()) != 0 {
				t.Errorf("%d VMs and %d tokens are left", len(h.Driver.VMs()), len(h.tokens()))
			}
			if n := len(h.Writes); n > 0 && h.Writes[n-1].What != "patch Machine" {
				t.Errorf("something is written to a Machine that is gone:\n%s", h.LastWrites())
			}
		})
	}
}

// TestDeletionNeedsLessThanACreation: what keeps a Machine from being created does not keep
// it from being deleted.
func TestDeletionNeedsLessThanACreation(t *testing.T) {
	for name, spoil := range map[string]func(h *harness){
		"class without sense": func(h *harness) {
			change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.NodeTemplate = &v1alpha1.NodeTemplate{Region: "moon"} })
		},
		"class without finalizer": func(h *harness) {
			change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
		},
		"class that is being deleted": func(h *harness) { h.remove(newClass(h.Key.Namespace)) },
		"class without a secret": func(h *harness) {
			change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.SecretRef = nil })
		},
		"secret is gone": func(h *harness) { h.remove(newSecret(h.Key.Namespace)) },
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
				t.Error("something is left")
			}
		})
	}
}

// TestTokenOfJoinedIsNotLookedFor: at the deletion of a Machine that has joined, its
// token costs no request.
func TestTokenOfJoinedIsNotLookedFor(t *testing.T) {
	h := newHarness(t)
	h.running()
	h.restart()
	reads := 0
	h.controller.Tokens.Target = countReads{h.controller.Tokens.Target, &reads}
	h.delete()
	h.Settle()
	if !h.gone() {
		t.Fatal("the Machine stays")
	}
	if reads != 0 {
		t.Errorf("%d reads of tokens", reads)
	}
}

// TestDeletionInMidCreation: the creation is ended first, and its VM is deleted.
func TestDeletionInMidCreation(t *testing.T) {
	h := newHarness(t)
	h.declare()
	h.Pass()
	if len(h.Tasks) != 1 {
		t.Fatalf("%d calls under way, want 1", len(h.Tasks))
	}
	h.delete()
	h.Pass()
	if len(h.Tasks) != 1 {
		t.Fatal("a deletion runs beside the creation")
	}
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 {
		t.Error("something is left")
	}
}

// TestFinalizersOfOthers: ours go, also that of old versions, and theirs stay. Then the
// Machine is theirs.
func TestFinalizersOfOthers(t *testing.T) {
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
		t.Errorf("a Machine that is held by others only is still worked upon: %v\n%s", h.methods(), h.LastWrites())
	}
}

// TestOnlyTheOldFinalizer: Machines of very old versions can be deleted too.
func TestOnlyTheOldFinalizer(t *testing.T) {
	h := newHarness(t)
	h.addVM(machineName, "sim:///m1")
	h.declare(inPhase(v1alpha1.MachineRunning), func(m *v1alpha1.Machine) { m.Finalizers = []string{v1alpha1.FinalizerLegacy} })
	h.delete()
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 {
		t.Error("something is left")
	}
}

// TestDeletionGoesOnAnywhere: whatever step MCM or a former process had come to, the
// deletion ends, since each step looks for itself.
func TestDeletionGoesOnAnywhere(t *testing.T) {
	for _, description := range []string{
		messages.Terminating, "Initiate node drain", "Delete Volume Attachments", messages.DeleteVM,
		"Initiate node object deletion", "Initiate machine object finalizer removal",
		"Deleting machine from cloud provider", "gibberish", "",
	} {
		for name, given := range map[string]func(h *harness){
			"all is there":       func(*harness) {},
			"VM is gone":         func(h *harness) { h.removeVMs() },
			"VM and node gone":   func(h *harness) { h.removeVMs(); h.dropNode() },
			"only the node gone": func(h *harness) { h.dropNode() },
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
					t.Error("something is left")
				}
			})
		}
	}
}

// TestDeletionWaitsForTheTarget: while the target is away the VM goes, and the Machine
// stays for the sake of its node.
func TestDeletionWaitsForTheTarget(t *testing.T) {
	h := newHarness(t)
	h.running()
	since := h.target.since
	h.target.since = time.Time{}
	h.delete()
	result := h.Settle()
	if len(h.Driver.VMs()) != 0 {
		t.Error("the VM waits for the target")
	}
	if h.gone() || h.node() == nil {
		t.Error("the Machine is gone, or its node was deleted in a target that does not answer")
	}
	if result.RequeueAfter <= 0 {
		t.Error("nothing brings the next pass")
	}
	h.target.since = since
	h.Settle()
	if !h.gone() || h.node() != nil {
		t.Error("something is left when the target is back")
	}
}

// TestNoteOfADeletion: what a driver notes at a failed deletion comes back to it.
func TestNoteOfADeletion(t *testing.T) {
	h := newHarness(t)
	h.running()
	h.Driver.Configure(func(config *fake.Config) { config.LastKnownState, config.IgnoreDeletes = "snapshot pending", true })
	h.delete()
	h.Settle()
	if got := h.machine().Status.LastKnownState; got != "snapshot pending" {
		t.Errorf("lastKnownState %q", got)
	}
}
