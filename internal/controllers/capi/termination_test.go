package capi

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
)

var errDown = errors.New("the API server is down")

func ctrlRequest(w *world) ctrl.Request { return ctrl.Request{NamespacedName: w.key()} }

func ctrlRequestOf(object client.Object) ctrl.Request {
	return ctrl.Request{NamespacedName: client.ObjectKeyFromObject(object)}
}

// TestDeletionWithoutOwners (R3, S29, S40): whoever went first, the VM goes too.
func TestDeletionWithoutOwners(t *testing.T) {
	machine := func(w *world) { w.remove(&core.Machine{ObjectMeta: metav1.ObjectMeta{Name: machineName}}) }
	cluster := func(w *world) { w.remove(&core.Cluster{ObjectMeta: metav1.ObjectMeta{Name: clusterName}}) }
	for name, before := range map[string][]func(*world){
		"all are there":   nil,
		"Machine is gone": {machine},
		"Cluster is gone": {cluster},
		"both are gone":   {machine, cluster},
		"the reference to Machine, too": {machine, cluster, func(w *world) {
			w.changeInfra(func(m *infrav1.MillwrightMachine) { m.OwnerReferences, m.Labels = nil, nil })
		}},
		"infrastructure is not ready": {func(w *world) { w.changeCluster(func(c *core.Cluster) { c.Status = core.ClusterStatus{} }) }},
		"bootstrap data are gone":     {func(w *world) { w.remove(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: bootstrapName}}) }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.settle()
			for _, step := range before {
				step(w)
			}
			w.restart()
			w.delete()
			w.settle()
			if !w.gone() || len(w.driver.vms) != 0 {
				t.Errorf("gone %t, VMs %v", w.gone(), w.driver.vms)
			}
		})
	}
}

// TestDeletionIsPaused (G2, K8): nothing is deleted and nothing let go.
func TestDeletionIsPaused(t *testing.T) {
	for name, tc := range map[string]struct{ pause, resume func(*world) }{
		"cluster": {
			func(w *world) { w.changeCluster(func(c *core.Cluster) { c.Spec.Paused = true }) },
			func(w *world) { w.changeCluster(func(c *core.Cluster) { c.Spec.Paused = false }) },
		},
		"object": {
			func(w *world) {
				w.changeInfra(func(m *infrav1.MillwrightMachine) { m.Annotations[core.AnnotationPaused] = "" })
			},
			func(w *world) {
				w.changeInfra(func(m *infrav1.MillwrightMachine) { delete(m.Annotations, core.AnnotationPaused) })
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.settle()
			tc.pause(w)
			w.delete()
			calls := len(w.driver.calls)
			w.settle()
			w.wantCondition(infrav1.ConditionPaused, metav1.ConditionTrue, infrav1.ReasonPaused)
			if w.gone() || len(w.driver.calls) != calls || len(w.infra().Finalizers) != 1 {
				t.Errorf("gone %t, calls %v", w.gone(), w.driver.calls[calls:])
			}
			tc.resume(w)
			w.settle()
			if !w.gone() || len(w.driver.vms) != 0 {
				t.Errorf("gone %t, VMs %v", w.gone(), w.driver.vms)
			}
		})
	}
}

// TestDeletionBeforeCreation (S41): what never had a VM goes at once, unasked.
func TestDeletionBeforeCreation(t *testing.T) {
	for name, change := range map[string]func(*given){
		"no owner ever":     func(g *given) { g.infra.OwnerReferences, g.infra.Finalizers = nil, []string{infrav1.Finalizer} },
		"no bootstrap data": func(g *given) { g.machine.Spec.Bootstrap.DataSecretName = nil },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, change)
			w.settle()
			w.delete()
			w.settle()
			if !w.gone() || len(w.driver.calls) != 0 {
				t.Errorf("gone %t, calls %v", w.gone(), w.driver.calls)
			}
		})
	}
}

// TestDeletionOfWhatWasRefused: a driver that refuses a spec refuses to look for its VM, too.
// That holds nobody up, unless it was asked with another spec before.
func TestDeletionOfWhatWasRefused(t *testing.T) {
	refusing := []codes.Code{codes.InvalidArgument, codes.InvalidArgument, codes.InvalidArgument}
	for name, tc := range map[string]struct {
		before func(*world)
		gone   bool
	}{
		"from the beginning": {func(w *world) {
			w.driver.fails(instance.MethodStatus, refusing...)
			w.settle()
		}, true},
		"only by its deletion": {func(w *world) {
			w.driver.fails(instance.MethodCreate, refusing...)
			w.settle()
			w.driver.fails(instance.MethodDelete, refusing...)
		}, true},
		"after another spec": {func(w *world) {
			w.driver.lost = true // there is a VM
			w.settle()
			w.changeInfra(func(m *infrav1.MillwrightMachine) {
				m.Spec.ProviderID, m.Status.ProviderID, m.Spec.ProviderSpec = "", "", raw(`{"size":"huge"}`)
			})
			w.driver.fails(instance.MethodStatus, refusing...)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tc.before(w)
			w.restart()
			w.delete()
			w.settle()
			if w.gone() != tc.gone {
				t.Errorf("gone %t, VMs %v", w.gone(), w.driver.vms)
			}
		})
	}
}

// TestDeletionInMidCreation: the VM whose ID nobody knows yet goes, too, and by its ID.
func TestDeletionInMidCreation(t *testing.T) {
	w := newWorld(t)
	w.driver.lost = true
	w.settle()
	w.delete()
	w.settle()
	if !w.gone() || len(w.driver.vms) != 0 || w.driver.count != 1 {
		t.Errorf("gone %t, VMs %v of %d", w.gone(), w.driver.vms, w.driver.count)
	}
	if id := w.driver.deleted[0].Machine.Spec.ProviderID; id != "test:///vm-1" {
		t.Errorf("deleted by the ID %q", id)
	}
}

// TestDeletionFails: the finalizer stays until the VM is gone, and why is said.
func TestDeletionFails(t *testing.T) {
	w := newWorld(t)
	w.settle()
	w.driver.fails(instance.MethodDelete, codes.Unavailable)
	w.delete()
	result := w.settle()
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonDeletionFailed, "out of order")
	if result.RequeueAfter <= 0 || len(w.infra().Finalizers) != 1 {
		t.Errorf("looks again after %v, finalizers %v", result.RequeueAfter, w.infra().Finalizers)
	}
	w.driver.stays = true
	if result = w.settleAfter(time.Hour); w.gone() || result.RequeueAfter <= 0 {
		t.Error("gone although the VM is there")
	}
	w.driver.stays = false
	w.settleAfter(time.Hour)
	if !w.gone() {
		t.Error("it stays")
	}
}

// TestDeletionIsTold (M9): while the VM goes, Ready says so, and nothing more is written.
func TestDeletionIsTold(t *testing.T) {
	w := newWorld(t)
	w.settle()
	w.driver.stays = true
	w.delete()
	w.settle()
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonDeleting)
	w.writes = nil
	w.settleAfter(time.Minute)
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonDeleting)
	if len(w.writes) != 0 {
		t.Errorf("writes without a change: %v", w.writes)
	}
}

// TestDeletionHoldsWhatItNeeds: where a VM may exist that nobody could find, it is not given
// up.
func TestDeletionHoldsWhatItNeeds(t *testing.T) {
	w := newWorld(t, func(g *given) {
		g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"}
		g.more = append(g.more, secret(g.infra.Namespace, "cloud", nil))
	})
	w.settle()
	w.lose()
	w.delete()
	w.settle()
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonCredentialsMissing, "cannot be deleted", `"cloud"`)
	w.create(secret(w.namespace, "cloud", nil))
	w.settleAfter(time.Minute)
	if !w.gone() || len(w.driver.vms) != 0 {
		t.Errorf("gone %t, VMs %v", w.gone(), w.driver.vms)
	}
}

// TestProviderIDChangedByHand: it is said, nothing is made, and the VM goes in the end.
func TestProviderIDChangedByHand(t *testing.T) {
	w := newWorld(t)
	w.settle()
	calls := len(w.driver.calls)
	w.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.ProviderID = "test:///other" })
	w.settle()
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonProviderIDChanged, "test:///other", "test:///vm-1")
	if len(w.driver.calls) != calls {
		t.Errorf("calls %v", w.driver.calls[calls:])
	}
	w.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.ProviderID = "" })
	w.settle()
	w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if got := w.infra().Spec.ProviderID; got != "test:///vm-1" {
		t.Errorf("provider ID %q", got)
	}
	w.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.ProviderID = "test:///other" })
	w.delete()
	w.settle()
	if !w.gone() || len(w.driver.vms) != 0 || w.driver.count != 1 {
		t.Errorf("gone %t, VMs %v of %d", w.gone(), w.driver.vms, w.driver.count)
	}
}

// TestTwoWithOneProviderID: the second never has the VM, and does not take it along when it
// goes.
func TestTwoWithOneProviderID(t *testing.T) {
	owner := func(g *given) *infrav1.MillwrightMachine {
		other := g.infra.DeepCopy()
		other.Name, other.UID, other.Spec.ProviderID = "m0", "m0-uid", "test:///vm-0"
		other.Status.ProviderID, other.Status.Ready = "test:///vm-0", true
		return other
	}
	w := newWorld(t, func(g *given) {
		g.more = append(g.more, owner(g))
		g.infra.Spec.ProviderID = "test:///vm-0"
	})
	w.driver.vms["m0"] = "test:///vm-0"
	w.settle()
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonProviderIDTaken, "test:///vm-0", "ns/m0")
	w.delete()
	w.settle()
	if !w.gone() || len(w.driver.calls) != 0 {
		t.Errorf("gone %t, calls %v", w.gone(), w.driver.calls)
	}
}

// TestVMOfTheOtherAPI: a driver that does not tell APIs apart finds the VM of a Machine of
// that name. It stays that Machine's, also when this object goes.
func TestVMOfTheOtherAPI(t *testing.T) {
	w := newWorld(t)
	w.driver.vms[machineName] = "test:///vm-0"
	w.controller.instances.Owners[1] = ownedBy(ownership.Owner{Kind: ownership.KindMachine, Key: types.NamespacedName{Namespace: "ns", Name: "m1"}, UID: "other", Since: w.clock.Now().Add(time.Hour)}) // it has it all the same
	w.settle()
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonProviderIDTaken, "test:///vm-0", "Machine ns/m1")
	if got := w.infra(); got.Spec.ProviderID != "" || got.Status.Ready {
		t.Errorf("took the VM: %+v", got.Status)
	}
	w.delete()
	w.settle()
	if !w.gone() || w.driver.made(instance.MethodDelete) != 0 {
		t.Errorf("gone %t, calls %v", w.gone(), w.driver.calls)
	}
}

func ownedBy(others ...ownership.Owner) ownership.Finder {
	return func(context.Context, string, string) ([]ownership.Owner, error) { return others, nil }
}

// TestOwnersOfTheOtherAPI: who of the two has a VM that both name, and whether the other one
// may take it along.
func TestOwnersOfTheOtherAPI(t *testing.T) {
	theirs := func(change func(*ownership.Owner)) ownership.Owner {
		claim := ownership.Owner{Kind: ownership.KindMachine, Key: types.NamespacedName{Namespace: "ns", Name: "other"}, UID: "other", Since: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Add(time.Hour)}
		change(&claim)
		return claim
	}
	for name, tc := range map[string]struct {
		theirs ownership.Owner
		// has tells that our object gets the VM.
		has bool
		// held tells that its deletion then waits.
		held bool
	}{
		"it was there first":       {theirs(func(c *ownership.Owner) { c.Since = time.Time{} }), false, false},
		"it is certain":            {theirs(func(c *ownership.Owner) { c.Certain = true }), false, false},
		"it came later":            {theirs(func(*ownership.Owner) {}), true, false},
		"it became certain":        {theirs(func(c *ownership.Owner) { c.Certain = true }), true, true},
		"it came later, and goes":  {theirs(func(c *ownership.Owner) { c.Deleting = true }), true, false},
		"it is certain, and goes":  {theirs(func(c *ownership.Owner) { c.Certain, c.Deleting = true, true }), false, false},
		"it was first, but leaves": {theirs(func(c *ownership.Owner) { c.Since, c.Deleting = time.Time{}, true }), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(g *given) { g.infra.Spec.ProviderID = "test:///vm-0" })
			w.driver.vms[machineName] = "test:///vm-0"
			if name != "it became certain" {
				w.controller.instances.Owners[1] = ownedBy(tc.theirs)
			}
			w.settle()
			w.controller.instances.Owners[1] = ownedBy(tc.theirs)
			if !tc.has {
				w.wantReady(metav1.ConditionFalse, infrav1.ReasonProviderIDTaken, "test:///vm-0", "Machine ns/other")
				return
			}
			w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
			w.delete()
			w.settle()
			if w.gone() == tc.held || len(w.driver.vms) == 0 == tc.held {
				t.Errorf("gone %t, VMs %v", w.gone(), w.driver.vms)
			}
			if tc.held {
				w.wantReady(metav1.ConditionFalse, infrav1.ReasonProviderIDTaken, "is also that of Machine ns/other")
			}
		})
	}
}

// TestOwnerThatIsRefused: an object that only names the VM holds nobody's deletion, wherever it
// is.
func TestOwnerThatIsRefused(t *testing.T) {
	w := newWorld(t)
	w.settle()
	foreign := newGiven("elsewhere", w.clock.Now().Add(time.Hour)).infra
	foreign.UID, foreign.Spec.ProviderID = "foreign-uid", w.infra().Spec.ProviderID
	w.create(foreign)
	w.delete()
	w.settle()
	if !w.gone() || len(w.driver.vms) != 0 {
		t.Errorf("gone %t, VMs %v", w.gone(), w.driver.vms)
	}
}

// TestHeldDeletionIsToldOnce: not with each pass, also if the driver is to be asked in vain in
// between.
func TestHeldDeletionIsToldOnce(t *testing.T) {
	for name, hold := range map[string]func(*world){
		"credentials": func(w *world) { w.lose() },
		"owner": func(w *world) {
			w.controller.instances.Owners[1] = ownedBy(ownership.Owner{Kind: ownership.KindMachine, Key: types.NamespacedName{Namespace: "ns", Name: "other"}, UID: "other", Certain: true})
		},
		"spec": func(w *world) {
			w.driver.local = true
			w.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.ProviderSpec = raw(`{"size":"big"}`); m.Generation++ })
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(g *given) {
				g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"}
				g.more = append(g.more, secret(g.infra.Namespace, "cloud", nil))
			})
			w.settle()
			hold(w)
			w.told()
			w.delete()
			w.settle()
			if told := w.told(); len(told) != 1 {
				t.Errorf("events %q, want one", told)
			}
			w.writes = nil
			for range 5 {
				w.settleAfter(checkSoon)
			}
			w.restart()
			if name == "owner" {
				w.controller.instances.Owners[1] = ownedBy(ownership.Owner{Kind: ownership.KindMachine, Key: types.NamespacedName{Namespace: "ns", Name: "other"}, UID: "other", Certain: true})
			}
			w.settleAfter(checkSoon)
			if told := w.told(); len(told) != 0 || len(w.writes) != 0 || w.gone() {
				t.Errorf("events %q, writes %v, gone %t", told, w.writes, w.gone())
			}
		})
	}
}

// forgetID takes back that there is a VM, as nobody but a user could.
func (w *world) forgetID() {
	w.Helper()
	w.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.ProviderID = "" })
	infra := w.infra()
	infra.Status.ProviderID = ""
	if err := w.client.Status().Update(w.Context(), infra); err != nil {
		w.Fatal(err)
	}
}

// TestVMIsLookedForElsewhere: a driver that is asked with another specification than the VM
// was made from may look in another place. It is not believed that there is none.
func TestVMIsLookedForElsewhere(t *testing.T) {
	const was, is = `{"size":"small"}`, `{"size":"big"}`
	own := func(w *world, spec string) {
		w.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.ProviderSpec = raw(spec); m.Generation++ })
	}
	class := func(w *world, spec string) {
		change(w, newClass(w.namespace), func(c *v1alpha1.MachineClass) { c.ProviderSpec = *raw(spec); c.Generation++ })
	}
	withClass := func(g *given) {
		g.infra.Spec.ProviderSpec, g.infra.Spec.MachineClassRef = nil, &infrav1.LocalReference{Name: "small"}
		g.more = append(g.more, newClass(g.infra.Namespace))
	}
	for name, tc := range map[string]struct {
		given func(*given)
		alter func(*world, string)
		says  string
	}{
		"own spec": {func(*given) {}, own, "spec was changed"},
		"class":    {withClass, class, `MachineClass "small" or spec was changed`},
		"and the ID is lost": {func(*given) {}, func(w *world, spec string) {
			own(w, spec)
			w.forgetID()
		}, "spec was changed"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.given)
			w.driver.local = true
			w.settle()
			tc.alter(w, is)
			w.delete()
			if result := w.settle(); result.RequeueAfter <= 0 {
				t.Error("it does not look again")
			}
			w.restart()
			w.settleAfter(time.Hour)
			if w.gone() || len(w.driver.vms) == 0 {
				t.Fatalf("gone %t, VMs %v", w.gone(), w.driver.vms)
			}
			w.wantReady(metav1.ConditionFalse, infrav1.ReasonSpecChanged, "cannot be deleted", tc.says, infrav1.Finalizer)
			tc.alter(w, was)
			w.settleAfter(time.Hour)
			if !w.gone() || len(w.driver.vms) != 0 {
				t.Errorf("gone %t, VMs %v", w.gone(), w.driver.vms)
			}
		})
	}
}

// TestVMIsFoundAllTheSame: most drivers need nothing but the ID. Then a changed class holds
// nothing, also if the process ends after the VM is gone and before that is known.
func TestVMIsFoundAllTheSame(t *testing.T) {
	for _, restart := range []bool{false, true} {
		w := newWorld(t, func(g *given) {
			g.infra.Spec.ProviderSpec, g.infra.Spec.MachineClassRef = nil, &infrav1.LocalReference{Name: "small"}
			g.more = append(g.more, newClass(g.infra.Namespace))
		})
		w.settle()
		change(w, newClass(w.namespace), func(c *v1alpha1.MachineClass) { c.ProviderSpec = *raw(`{"size":"big"}`) })
		w.delete()
		w.refuse = func(string) error { return errDown }
		for range 5 {
			_, _ = w.controller.Reconcile(t.Context(), ctrlRequest(w)) // what was found cannot be noted
			w.call()
		}
		if n := w.driver.made(instance.MethodDelete); n != 0 {
			t.Errorf("%d deletions before it is noted that the VM was there", n)
		}
		w.refuse = nil
		for w.driver.made(instance.MethodDelete) == 0 {
			w.pass()
			w.call()
		}
		if restart {
			w.restart()
		}
		w.settle()
		if !w.gone() || len(w.driver.vms) != 0 {
			t.Errorf("restart %t: gone %t, VMs %v", restart, w.gone(), w.driver.vms)
		}
	}
}

// TestStricterDriver: what a driver refuses to look for may be there all the same, if it did
// not refuse to make it.
func TestStricterDriver(t *testing.T) {
	for name, before := range map[string]func(*world){
		"found": func(w *world) {
			w.settle()
			w.forgetID()
		},
		"answer lost": func(w *world) {
			w.driver.lost = true
			for w.driver.made(instance.MethodCreate) == 0 {
				w.pass()
				w.call()
			}
			w.pass()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			before(w)
			w.restart()
			w.driver.fails(instance.MethodStatus, codes.InvalidArgument, codes.InvalidArgument, codes.InvalidArgument)
			w.delete()
			w.settle()
			w.wantReady(metav1.ConditionFalse, infrav1.ReasonDeletionFailed, "InvalidArgument")
			if len(w.driver.vms) != 1 {
				t.Fatalf("VMs %v", w.driver.vms)
			}
			w.driver.failures = map[instance.Method][]error{}
			w.settleAfter(time.Hour)
			if !w.gone() || len(w.driver.vms) != 0 {
				t.Errorf("gone %t, VMs %v", w.gone(), w.driver.vms)
			}
		})
	}
}

// TestAdoptedVMGoesToo: one whose ID was given beforehand is the object's, even if nobody
// had come to look for it yet.
func TestAdoptedVMGoesToo(t *testing.T) {
	w := newWorld(t, func(g *given) {
		g.infra.Spec.ProviderID = "test:///vm-0"
		g.machine.Spec.Bootstrap.DataSecretName = nil
	})
	w.driver.vms[machineName] = "test:///vm-0"
	w.settle()
	w.delete()
	w.settle()
	if !w.gone() || len(w.driver.vms) != 0 {
		t.Errorf("gone %t, VMs %v", w.gone(), w.driver.vms)
	}
}
