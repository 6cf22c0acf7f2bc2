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
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// running brings the Machine to Running, by the way that life does.
func (w *world) running(changes ...func(*v1alpha1.Machine)) {
	w.Helper()
	w.declare(changes...)
	w.settle()
	w.join(ready)
	w.settle()
	if got := w.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineRunning {
		w.Fatalf("phase %q, want Running to begin with", got)
	}
	w.told()
	w.writes, w.driver.calls = nil, nil
}

// TestAMachineIsDeleted: VM, node and Machine go, in this order, with as few writes as
// the budget allows.
func TestAMachineIsDeleted(t *testing.T) {
	w := newWorld(t)
	w.running()
	w.delete()

	w.pass()
	wantStatus(t, w.machine(), want4{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateProcessing, "Set machine status to termination. Now, getting VM Status"})
	if w.node() == nil {
		t.Fatal("the node goes before the VM")
	}
	w.settle()
	want := []string{"patch status of Node", "patch Node", "patch status of Machine", "patch Node", "delete Node", "patch Machine"}
	if diff := cmp.Diff(want, w.wrote()); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	if !w.gone() || w.node() != nil || len(w.driver.vms) != 0 {
		t.Error("something is left")
	}
	if diff := cmp.Diff([]instance.Method{instance.MethodDelete, instance.MethodStatus}, w.driver.calls); diff != "" {
		t.Errorf("driver calls (-want +got):\n%s", diff)
	}
	if events := w.told(); len(events) != 1 || !strings.Contains(events[0], "sim:///m1") {
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
		spoil  func(w *world)
		repair func(w *world)
		want   want4
		events int
	}{
		"driver fails": {
			reason: "a VM that could not be deleted costs money",
			spoil: func(w *world) {
				w.driver.fails(instance.MethodDelete, slices.Repeat([]codes.Code{codes.Internal}, 9)...)
			},
			repair: func(w *world) { clear(w.driver.errors) },
			want:   deleting(v1alpha1.MachineStateFailed, "Cloud provider message - "),
			events: 1,
		},
		"driver cannot tell": {
			reason: "accepted is not gone",
			spoil: func(w *world) {
				w.driver.fails(instance.MethodStatus, slices.Repeat([]codes.Code{codes.Unavailable}, 9)...)
			},
			repair: func(w *world) { clear(w.driver.errors) },
			want:   deleting(v1alpha1.MachineStateFailed, "Cloud provider message - "),
			events: 1,
		},
		"VM remains": {
			reason: "accepted is not gone",
			spoil:  func(w *world) { w.driver.stays = true },
			repair: func(w *world) { w.driver.stays = false },
			want:   deleting(v1alpha1.MachineStateProcessing, "The provider still has the VM."),
		},
		"class gone": {
			reason: "without its class nobody knows where the VM is",
			spoil: func(w *world) {
				change(w, newClass(w.namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
				w.remove(newClass(w.namespace))
			},
			repair: func(w *world) { w.create(newClass(w.namespace)) },
			want:   deleting(v1alpha1.MachineStateFailed, `VM sim:///m1 cannot be deleted: MachineClass "small" not found in namespace "shoot".`),
			events: 1,
		},
		"class of another driver": {
			reason: "it would not find the VM and take it for deleted",
			spoil: func(w *world) {
				w.controller.DriverName = "scripted"
				change(w, newClass(w.namespace), func(c *v1alpha1.MachineClass) { c.Provider = "aws" })
			},
			repair: func(w *world) { w.controller.DriverName = "aws" },
			want:   deleting(v1alpha1.MachineStateFailed, `VM sim:///m1 cannot be deleted: MachineClass "small" is for the driver "aws", and this manager has the driver "scripted".`),
			events: 1,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.running()
			tc.spoil(w)
			w.delete()
			w.settle()
			w.settleAfter(time.Minute)
			w.settleAfter(time.Minute)
			if w.gone() {
				t.Fatalf("the Machine is gone: %s", tc.reason)
			}
			wantStatus(t, w.machine(), tc.want)
			if got := w.machine().Status.LastOperation.Description; !strings.Contains(got, "Initiate VM deletion") {
				t.Errorf("description %q lacks the marker by which MCM knows where to go on", got)
			}
			if w.node() == nil {
				t.Error("the node is gone before the VM")
			}
			if events := w.told(); len(events) != tc.events {
				t.Errorf("events %q, want %d", events, tc.events)
			}
			tc.repair(w)
			w.settleAfter(10 * time.Minute)
			w.settleAfter(10 * time.Minute)
			if !w.gone() || w.node() != nil || len(w.driver.vms) != 0 {
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
		before  func(w *world)
		deletes int
	}{
		"never looked at": {
			reason: "it has no finalizer, so it is gone at once",
			before: func(*world) {},
		},
		"class never existed": {
			reason: "nothing can have been created without a class",
			before: func(w *world) {
				change(w, newClass(w.namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
				w.remove(newClass(w.namespace))
				w.settle()
			},
		},
		"class of another kind": {
			reason: "the same",
			before: func(w *world) {
				change(w, w.machine(), func(m *v1alpha1.Machine) { m.Spec.Class.Kind = "AWSMachineClass" })
				w.settle()
			},
		},
		"secret gone": {
			reason: "the driver may do without one, and says so if not",
			before: func(w *world) {
				w.settle()
				w.remove(newSecret(w.namespace))
			},
			deletes: 1,
		},
		"user data gone": {
			reason: "a deletion needs none",
			before: func(w *world) {
				w.settle()
				secret := newSecret(w.namespace)
				w.remove(secret)
				secret = newSecret(w.namespace)
				delete(secret.Data, "userData")
				w.create(secret)
			},
			deletes: 1,
		},
		"creation failed": {
			reason: "a failed creation may have left something",
			before: func(w *world) {
				w.driver.fails(instance.MethodCreate, codes.Internal)
				w.settle()
			},
			deletes: 1,
		},
		"answer lost": {
			reason: "nobody has stored the ID of the VM that exists",
			before: func(w *world) {
				w.driver.fails(instance.MethodCreate, codes.DeadlineExceeded)
				w.settle()
				w.driver.vms[machineName] = "sim:///m1"
			},
			deletes: 1,
		},
		"not joined": {
			reason:  "its token must go with it",
			before:  func(w *world) { w.settle() },
			deletes: 1,
		},
		"not joined, and restarted": {
			reason: "the same, when another process issued it",
			before: func(w *world) {
				w.settle()
				w.restart(w.driver)
			},
			deletes: 1,
		},
		"node not in the cache": {
			reason:  "a node may join at the last moment, hence it is deleted unseen",
			before:  func(w *world) { w.settle() },
			deletes: 1,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.declare()
			tc.before(w)
			w.driver.calls = nil
			w.delete()
			w.settle()
			w.settleAfter(time.Hour)
			if !w.gone() {
				t.Fatalf("the Machine stays (%s): %+v", tc.reason, w.machine().Status)
			}
			if got := w.driver.made(instance.MethodDelete); got != tc.deletes {
				t.Errorf("%d deletions (%s), want %d", got, tc.reason, tc.deletes)
			}
			if len(w.driver.vms) != 0 || len(w.tokens()) != 0 {
				t.Errorf("%d VMs and %d tokens are left", len(w.driver.vms), len(w.tokens()))
			}
			unseen := slices.ContainsFunc(w.writes, func(made write) bool { return made.what == "delete Node" && made.name == w.nodeName() })
			if known := name == "node not in the cache"; known && !unseen {
				t.Error("the node is not deleted unseen")
			}
			if n := len(w.writes); n > 0 && w.writes[n-1].what != "patch Machine" {
				t.Errorf("something is written to a Machine that is gone:\n%s", w.said())
			}
		})
	}
}

// TestDeletionNeedsLessThanACreation: what keeps a Machine from being created does not keep
// it from being deleted.
func TestDeletionNeedsLessThanACreation(t *testing.T) {
	for name, spoil := range map[string]func(w *world){
		"class without sense": func(w *world) {
			change(w, newClass(w.namespace), func(c *v1alpha1.MachineClass) { c.NodeTemplate = &v1alpha1.NodeTemplate{Region: "moon"} })
		},
		"class without finalizer": func(w *world) {
			change(w, newClass(w.namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
		},
		"class that is being deleted": func(w *world) { w.remove(newClass(w.namespace)) },
		"class without a secret": func(w *world) {
			change(w, newClass(w.namespace), func(c *v1alpha1.MachineClass) { c.SecretRef = nil })
		},
		"secret is gone": func(w *world) { w.remove(newSecret(w.namespace)) },
		"timeout below zero": func(w *world) {
			change(w, w.machine(), func(m *v1alpha1.Machine) {
				m.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineDrainTimeout: &metav1.Duration{Duration: -time.Hour}}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.running()
			spoil(w)
			w.delete()
			w.settle()
			if !w.gone() || w.node() != nil || len(w.driver.vms) != 0 {
				t.Error("something is left")
			}
		})
	}
}

// TestTokenOfJoinedIsNotLookedFor: at the deletion of a Machine that has joined, its
// token costs no request.
func TestTokenOfJoinedIsNotLookedFor(t *testing.T) {
	w := newWorld(t)
	w.running()
	w.restart(w.driver)
	reads := 0
	w.controller.Tokens.Target = countReads{w.controller.Tokens.Target, &reads}
	w.delete()
	w.settle()
	if !w.gone() {
		t.Fatal("the Machine stays")
	}
	if reads != 0 {
		t.Errorf("%d reads of tokens", reads)
	}
}

// TestDeletionInMidCreation: the creation is ended first, and its VM is deleted.
func TestDeletionInMidCreation(t *testing.T) {
	w := newWorld(t)
	w.declare()
	w.pass()
	if len(w.tasks) != 1 {
		t.Fatalf("%d calls under way, want 1", len(w.tasks))
	}
	w.delete()
	w.pass()
	if len(w.tasks) != 1 {
		t.Fatal("a deletion runs beside the creation")
	}
	w.settle()
	if !w.gone() || len(w.driver.vms) != 0 {
		t.Error("something is left")
	}
}

// TestFinalizersOfOthers: ours go, also that of old versions, and theirs stay. Then the
// Machine is theirs.
func TestFinalizersOfOthers(t *testing.T) {
	w := newWorld(t)
	const foreign = "example.com/backup"
	w.running(func(m *v1alpha1.Machine) { m.Finalizers = []string{v1alpha1.FinalizerLegacy, foreign} })
	w.delete()
	w.settle()
	if diff := cmp.Diff([]string{foreign}, w.machine().Finalizers); diff != "" {
		t.Fatalf("finalizers (-want +got):\n%s", diff)
	}
	w.writes, w.driver.calls = nil, nil
	w.settleAfter(time.Hour)
	w.restart(w.driver)
	w.settle()
	if len(w.writes) != 0 || len(w.driver.calls) != 0 {
		t.Errorf("a Machine that is held by others only is still worked upon: %v\n%s", w.driver.calls, w.said())
	}
}

// TestOnlyTheOldFinalizer: Machines of very old versions can be deleted too.
func TestOnlyTheOldFinalizer(t *testing.T) {
	w := newWorld(t)
	w.driver.vms[machineName] = "sim:///m1"
	w.declare(inPhase(v1alpha1.MachineRunning), func(m *v1alpha1.Machine) { m.Finalizers = []string{v1alpha1.FinalizerLegacy} })
	w.delete()
	w.settle()
	if !w.gone() || len(w.driver.vms) != 0 {
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
		for name, given := range map[string]func(w *world){
			"all is there":       func(*world) {},
			"VM is gone":         func(w *world) { clear(w.driver.vms) },
			"VM and node gone":   func(w *world) { clear(w.driver.vms); w.dropNode() },
			"only the node gone": func(w *world) { w.dropNode() },
		} {
			t.Run(description+", "+name, func(t *testing.T) {
				w := newWorld(t)
				w.running()
				w.delete()
				machine := w.machine()
				machine.Status.CurrentStatus.Phase = v1alpha1.MachineTerminating
				machine.Status.LastOperation = v1alpha1.LastOperation{Type: v1alpha1.MachineOperationDelete, State: v1alpha1.MachineStateProcessing, Description: description}
				if err := w.control.Status().Update(t.Context(), machine); err != nil {
					t.Fatal(err)
				}
				given(w)
				w.restart(w.driver)
				w.settle()
				if !w.gone() || w.node() != nil || len(w.driver.vms) != 0 {
					t.Error("something is left")
				}
			})
		}
	}
}

// TestDeletionWaitsForTheTarget: while the target is away the VM goes, and the Machine
// stays for the sake of its node.
func TestDeletionWaitsForTheTarget(t *testing.T) {
	w := newWorld(t)
	w.running()
	since := w.target.since
	w.target.since = time.Time{}
	w.delete()
	result := w.settle()
	if len(w.driver.vms) != 0 {
		t.Error("the VM waits for the target")
	}
	if w.gone() || w.node() == nil {
		t.Error("the Machine is gone, or its node was deleted in a target that does not answer")
	}
	if result.RequeueAfter <= 0 {
		t.Error("nothing brings the next pass")
	}
	w.target.since = since
	w.settle()
	if !w.gone() || w.node() != nil {
		t.Error("something is left when the target is back")
	}
}

// TestNoteOfADeletion: what a driver notes at a failed deletion comes back to it.
func TestNoteOfADeletion(t *testing.T) {
	w := newWorld(t)
	w.running()
	w.driver.note, w.driver.stays = "snapshot pending", true
	w.delete()
	w.settle()
	if got := w.machine().Status.LastKnownState; got != "snapshot pending" {
		t.Errorf("lastKnownState %q", got)
	}
}
