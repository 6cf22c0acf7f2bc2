package capi

import (
	"context"
	"errors"
	"strings"
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
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/test/support/lockstep"
)

var errDown = errors.New("the API server is down")

func ctrlRequest(h *harness) ctrl.Request { return ctrl.Request{NamespacedName: h.Key} }

func ctrlRequestOf(object client.Object) ctrl.Request {
	return ctrl.Request{NamespacedName: client.ObjectKeyFromObject(object)}
}

// TestDeletionWithoutOwners (R3, S29, S40): whichever object is deleted first, the VM is deleted, too.
func TestDeletionWithoutOwners(t *testing.T) {
	machine := func(h *harness) { h.remove(&core.Machine{ObjectMeta: metav1.ObjectMeta{Name: machineName}}) }
	cluster := func(h *harness) { h.remove(&core.Cluster{ObjectMeta: metav1.ObjectMeta{Name: clusterName}}) }
	for name, before := range map[string][]func(*harness){
		"all are there":   nil,
		"Machine is gone": {machine},
		"Cluster is gone": {cluster},
		"both are gone":   {machine, cluster},
		"the reference to Machine, too": {machine, cluster, func(h *harness) {
			h.changeInfra(func(m *infrav1.MillwrightMachine) { m.OwnerReferences, m.Labels = nil, nil })
		}},
		"infrastructure is not ready": {func(h *harness) { h.changeCluster(func(c *core.Cluster) { c.Status = core.ClusterStatus{} }) }},
		"bootstrap data are gone":     {func(h *harness) { h.remove(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: bootstrapName}}) }},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.Settle()
			for _, step := range before {
				step(h)
			}
			h.restart()
			h.delete()
			h.Settle()
			if !h.gone() || len(h.Driver.VMs()) != 0 {
				t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
			}
		})
	}
}

// TestDeletionIsPaused (G2, K8): nothing is deleted and nothing let go.
func TestDeletionIsPaused(t *testing.T) {
	for name, tc := range map[string]struct{ pause, resume func(*harness) }{
		"cluster": {
			func(h *harness) { h.changeCluster(func(c *core.Cluster) { c.Spec.Paused = true }) },
			func(h *harness) { h.changeCluster(func(c *core.Cluster) { c.Spec.Paused = false }) },
		},
		"object": {
			func(h *harness) {
				h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Annotations[core.AnnotationPaused] = "" })
			},
			func(h *harness) {
				h.changeInfra(func(m *infrav1.MillwrightMachine) { delete(m.Annotations, core.AnnotationPaused) })
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.Settle()
			tc.pause(h)
			h.delete()
			calls := len(h.calls())
			h.Settle()
			h.wantCondition(infrav1.ConditionPaused, metav1.ConditionTrue, infrav1.ReasonPaused)
			if h.gone() || len(h.calls()) != calls || len(h.infra().Finalizers) != 1 {
				t.Errorf("gone %t, calls %v", h.gone(), h.calls()[calls:])
			}
			tc.resume(h)
			h.Settle()
			if !h.gone() || len(h.Driver.VMs()) != 0 {
				t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
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
			h := newHarness(t, change)
			h.Settle()
			h.delete()
			h.Settle()
			if !h.gone() || len(h.calls()) != 0 {
				t.Errorf("gone %t, calls %v", h.gone(), h.calls())
			}
		})
	}
}

// TestDeletionOfWhatWasRefused: a driver that refuses a spec refuses to look for its VM, too.
// That does not block the deletion, unless it was asked with another spec before.
func TestDeletionOfWhatWasRefused(t *testing.T) {
	refusing := []codes.Code{codes.InvalidArgument, codes.InvalidArgument, codes.InvalidArgument}
	for name, tc := range map[string]struct {
		before func(*harness)
		gone   bool
	}{
		"from the beginning": {func(h *harness) {
			h.Driver.Fail(fake.GetMachineStatus, refusing...)
			h.Settle()
		}, true},
		"only by its deletion": {func(h *harness) {
			h.Driver.Fail(fake.CreateMachine, refusing...)
			h.Settle()
			h.Driver.Fail(fake.DeleteMachine, refusing...)
		}, true},
		"after another spec": {func(h *harness) {
			h.Driver.FailAfter(fake.CreateMachine, codes.DeadlineExceeded) // there is a VM
			h.Settle()
			h.changeInfra(func(m *infrav1.MillwrightMachine) {
				m.Spec.ProviderID, m.Status.ProviderID, m.Spec.ProviderSpec = "", "", raw(`{"size":"huge"}`)
			})
			h.Driver.Fail(fake.GetMachineStatus, refusing...)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			tc.before(h)
			h.restart()
			h.delete()
			h.Settle()
			if h.gone() != tc.gone {
				t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
			}
		})
	}
}

// TestDeletionInMidCreation: a VM whose ID is not stored yet is deleted, by its ID.
func TestDeletionInMidCreation(t *testing.T) {
	h := newHarness(t)
	h.Driver.FailAfter(fake.CreateMachine, codes.DeadlineExceeded)
	h.Settle()
	h.delete()
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 || h.made != 1 {
		t.Errorf("gone %t, VMs %v of %d", h.gone(), h.Driver.VMs(), h.made)
	}
	if id := h.deleted()[0].Machine.Spec.ProviderID; id != "test:///vm-1" {
		t.Errorf("deleted by the ID %q", id)
	}
}

// TestDeletionFails: the finalizer stays until the VM is gone, and why is said.
func TestDeletionFails(t *testing.T) {
	h := newHarness(t)
	h.Settle()
	h.Driver.Fail(fake.DeleteMachine, codes.Unavailable)
	h.delete()
	result := h.Settle()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonDeletionFailed, "out of order")
	if result.RequeueAfter <= 0 || len(h.infra().Finalizers) != 1 {
		t.Errorf("looks again after %v, finalizers %v", result.RequeueAfter, h.infra().Finalizers)
	}
	h.ignoreDeletes(true)
	if result = h.SettleAfter(time.Hour); h.gone() || result.RequeueAfter <= 0 {
		t.Error("gone although the VM is there")
	}
	h.ignoreDeletes(false)
	h.SettleAfter(time.Hour)
	if !h.gone() {
		t.Error("it stays")
	}
}

// TestDeletionIsReported (M9): while the VM goes, Ready says so, and nothing more is written.
func TestDeletionIsReported(t *testing.T) {
	h := newHarness(t)
	h.Settle()
	h.ignoreDeletes(true)
	h.delete()
	h.Settle()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonDeleting)
	h.Writes = nil
	h.SettleAfter(time.Minute)
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonDeleting)
	if len(h.Writes) != 0 {
		t.Errorf("writes without a change: %v", h.Writes)
	}
}

// TestMarksByHand: a mark that the VM is gone, from a template or written by hand before the deletion, does not
// make it so: the VM goes, and only then the object and the finalizer of its Secret.
func TestMarksByHand(t *testing.T) {
	for name, value := range map[string]string{"empty": "", "a time": "2026-01-01T00:00:00Z", "huge": strings.Repeat("x", 1<<17)} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, withCredentials, func(g *given) {
				g.infra.Annotations = map[string]string{infrav1.AnnotationInstanceGone: value}
			})
			h.Settle()
			h.ignoreDeletes(true)
			h.delete()
			h.Settle()
			if h.gone() || len(h.deleted()) == 0 {
				t.Fatalf("gone %t after %d deletions, VMs %v", h.gone(), len(h.deleted()), h.Driver.VMs())
			}
			h.wantHeld(true)
			h.ignoreDeletes(false)
			h.SettleAfter(time.Hour)
			if !h.gone() || len(h.Driver.VMs()) != 0 {
				t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
			}
		})
	}
}

// TestDeletionHoldsWhatItNeeds: while a VM may exist that cannot be found, the object is not
// given up.
func TestDeletionHoldsWhatItNeeds(t *testing.T) {
	h := newHarness(t, func(g *given) {
		g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"}
		g.more = append(g.more, secret(g.infra.Namespace, "cloud", nil))
	})
	h.Settle()
	h.lose()
	h.delete()
	h.Settle()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonCredentialsMissing, "cannot be deleted", `"cloud"`)
	h.create(secret(h.Key.Namespace, "cloud", nil))
	h.SettleAfter(time.Minute)
	if !h.gone() || len(h.Driver.VMs()) != 0 {
		t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
	}
}

// TestProviderIDChangedByHand: it is said, nothing is made, and the VM goes in the end.
func TestProviderIDChangedByHand(t *testing.T) {
	h := newHarness(t)
	h.Settle()
	calls := len(h.calls())
	h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.ProviderID = "test:///other" })
	h.Settle()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonProviderIDChanged, "test:///other", "test:///vm-1")
	if len(h.calls()) != calls {
		t.Errorf("calls %v", h.calls()[calls:])
	}
	h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.ProviderID = "" })
	h.Settle()
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if got := h.infra().Spec.ProviderID; got != "test:///vm-1" {
		t.Errorf("provider ID %q", got)
	}
	h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.ProviderID = "test:///other" })
	h.delete()
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 || h.made != 1 {
		t.Errorf("gone %t, VMs %v of %d", h.gone(), h.Driver.VMs(), h.made)
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
	h := newHarness(t, func(g *given) {
		g.more = append(g.more, owner(g))
		g.infra.Spec.ProviderID = "test:///vm-0"
	})
	h.addVM("m0", "test:///vm-0")
	h.Settle()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonProviderIDTaken, "test:///vm-0", "ns/m0")
	h.delete()
	h.Settle()
	if !h.gone() || len(h.calls()) != 0 {
		t.Errorf("gone %t, calls %v", h.gone(), h.calls())
	}
}

// TestVMOfTheOtherAPI: a driver that does not tell APIs apart finds the VM of a Machine of
// that name. It stays that Machine's, also when this object goes.
func TestVMOfTheOtherAPI(t *testing.T) {
	h := newHarness(t)
	h.addVM(machineName, "test:///vm-0")
	h.controller.instances.Owners[1] = ownedBy(ownership.Owner{Kind: ownership.KindMachine, Key: types.NamespacedName{Namespace: "ns", Name: "m1"}, UID: "other", Since: h.Clock.Now().Add(time.Hour)}) // it has it all the same
	h.Settle()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonProviderIDTaken, "test:///vm-0", "Machine ns/m1")
	if got := h.infra(); got.Spec.ProviderID != "" || got.Status.Ready {
		t.Errorf("took the VM: %+v", got.Status)
	}
	h.delete()
	h.Settle()
	if !h.gone() || len(h.Driver.Calls(fake.DeleteMachine)) != 0 {
		t.Errorf("gone %t, calls %v", h.gone(), h.calls())
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
		// has reports whether the MillwrightMachine gets the VM.
		has bool
		// held reports whether its deletion then waits.
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
			h := newHarness(t, func(g *given) { g.infra.Spec.ProviderID = "test:///vm-0" })
			h.addVM(machineName, "test:///vm-0")
			if name != "it became certain" {
				h.controller.instances.Owners[1] = ownedBy(tc.theirs)
			}
			h.Settle()
			h.controller.instances.Owners[1] = ownedBy(tc.theirs)
			if !tc.has {
				h.wantReady(metav1.ConditionFalse, infrav1.ReasonProviderIDTaken, "test:///vm-0", "Machine ns/other")
				return
			}
			h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
			h.delete()
			h.Settle()
			if h.gone() == tc.held || len(h.Driver.VMs()) == 0 == tc.held {
				t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
			}
			if tc.held {
				h.wantReady(metav1.ConditionFalse, infrav1.ReasonProviderIDTaken, "is also that of Machine ns/other")
			}
		})
	}
}

// TestOwnerThatIsRefused: an object that only names the VM does not hold the deletion of another,
// in any namespace.
func TestOwnerThatIsRefused(t *testing.T) {
	h := newHarness(t)
	h.Settle()
	foreign := newGiven("elsewhere", h.Clock.Now().Add(time.Hour)).infra
	foreign.UID, foreign.Spec.ProviderID = "foreign-uid", h.infra().Spec.ProviderID
	h.create(foreign)
	h.delete()
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 {
		t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
	}
}

// TestHeldDeletionIsReportedOnce: not in each reconcile, also if the driver is called in vain in
// between.
func TestHeldDeletionIsReportedOnce(t *testing.T) {
	for name, hold := range map[string]func(*harness){
		"credentials": func(h *harness) { h.lose() },
		"owner": func(h *harness) {
			h.controller.instances.Owners[1] = ownedBy(ownership.Owner{Kind: ownership.KindMachine, Key: types.NamespacedName{Namespace: "ns", Name: "other"}, UID: "other", Certain: true})
		},
		"spec": func(h *harness) {
			h.matchSpec(true)
			h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.ProviderSpec = raw(`{"size":"big"}`); m.Generation++ })
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, func(g *given) {
				g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"}
				g.more = append(g.more, secret(g.infra.Namespace, "cloud", nil))
			})
			h.Settle()
			hold(h)
			h.takeEvents()
			h.delete()
			h.Settle()
			if events := h.takeEvents(); len(events) != 1 {
				t.Errorf("events %q, want one", events)
			}
			h.Writes = nil
			for range 5 {
				h.SettleAfter(checkSoon)
			}
			h.restart()
			if name == "owner" {
				h.controller.instances.Owners[1] = ownedBy(ownership.Owner{Kind: ownership.KindMachine, Key: types.NamespacedName{Namespace: "ns", Name: "other"}, UID: "other", Certain: true})
			}
			h.SettleAfter(checkSoon)
			if events := h.takeEvents(); len(events) != 0 || len(h.Writes) != 0 || h.gone() {
				t.Errorf("events %q, writes %v, gone %t", events, h.Writes, h.gone())
			}
		})
	}
}

// forgetID removes the provider ID, as only a user could.
func (h *harness) forgetID() {
	h.Helper()
	h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.ProviderID = "" })
	infra := h.infra()
	infra.Status.ProviderID = ""
	if err := h.client.Status().Update(h.Context(), infra); err != nil {
		h.Fatal(err)
	}
}

// TestVMIsLookedForElsewhere: a driver that is asked with another specification than the VM
// was made from may look in another place. It is not believed that there is none.
func TestVMIsLookedForElsewhere(t *testing.T) {
	const was, is = `{"size":"small"}`, `{"size":"big"}`
	own := func(h *harness, spec string) {
		h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.ProviderSpec = raw(spec); m.Generation++ })
	}
	class := func(h *harness, spec string) {
		change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.ProviderSpec = *raw(spec); c.Generation++ })
	}
	withClass := func(g *given) {
		g.infra.Spec.ProviderSpec, g.infra.Spec.MachineClassRef = nil, &infrav1.LocalReference{Name: "small"}
		g.more = append(g.more, newClass(g.infra.Namespace))
	}
	for name, tc := range map[string]struct {
		given func(*given)
		alter func(*harness, string)
		says  string
	}{
		"own spec": {func(*given) {}, own, "spec was changed"},
		"class":    {withClass, class, `MachineClass "small" or spec was changed`},
		"and the ID is lost": {func(*given) {}, func(h *harness, spec string) {
			own(h, spec)
			h.forgetID()
		}, "spec was changed"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, tc.given)
			h.matchSpec(true)
			h.Settle()
			tc.alter(h, is)
			h.delete()
			if result := h.Settle(); result.RequeueAfter <= 0 {
				t.Error("it does not look again")
			}
			h.restart()
			h.SettleAfter(time.Hour)
			if h.gone() || len(h.Driver.VMs()) == 0 {
				t.Fatalf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
			}
			h.wantReady(metav1.ConditionFalse, infrav1.ReasonSpecChanged, "cannot be deleted", tc.says, infrav1.Finalizer)
			tc.alter(h, was)
			h.SettleAfter(time.Hour)
			if !h.gone() || len(h.Driver.VMs()) != 0 {
				t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
			}
		})
	}
}

// TestVMIsFoundAllTheSame: most drivers need nothing but the ID. Then a changed class holds
// nothing, also if the process ends after the VM is gone and before that is known.
func TestVMIsFoundAllTheSame(t *testing.T) {
	for _, restart := range []bool{false, true} {
		h := newHarness(t, func(g *given) {
			g.infra.Spec.ProviderSpec, g.infra.Spec.MachineClassRef = nil, &infrav1.LocalReference{Name: "small"}
			g.more = append(g.more, newClass(g.infra.Namespace))
		})
		h.Settle()
		change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.ProviderSpec = *raw(`{"size":"big"}`) })
		h.delete()
		h.Refuse = func(lockstep.Write) error { return errDown }
		for range 5 {
			_, _ = h.controller.Reconcile(t.Context(), ctrlRequest(h)) // what was found cannot be noted
			h.Call()
		}
		if n := len(h.Driver.Calls(fake.DeleteMachine)); n != 0 {
			t.Errorf("%d deletions before it is noted that the VM was there", n)
		}
		h.Refuse = nil
		for len(h.Driver.Calls(fake.DeleteMachine)) == 0 {
			h.Pass()
			h.Call()
		}
		if restart {
			h.restart()
		}
		h.Settle()
		if !h.gone() || len(h.Driver.VMs()) != 0 {
			t.Errorf("restart %t: gone %t, VMs %v", restart, h.gone(), h.Driver.VMs())
		}
	}
}

// TestStricterDriver: what a driver refuses to look for may be there all the same, if it did
// not refuse to make it.
func TestStricterDriver(t *testing.T) {
	for name, before := range map[string]func(*harness){
		"found": func(h *harness) {
			h.Settle()
			h.forgetID()
		},
		"answer lost": func(h *harness) {
			h.Driver.FailAfter(fake.CreateMachine, codes.DeadlineExceeded)
			h.UntilCalled(fake.CreateMachine)
			h.Pass()
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			before(h)
			h.restart()
			h.Driver.Fail(fake.GetMachineStatus, codes.InvalidArgument, codes.InvalidArgument, codes.InvalidArgument)
			h.delete()
			h.Settle()
			h.wantReady(metav1.ConditionFalse, infrav1.ReasonDeletionFailed, "InvalidArgument")
			if len(h.Driver.VMs()) != 1 {
				t.Fatalf("VMs %v", h.Driver.VMs())
			}
			h.Driver.ForgetFailures()
			h.SettleAfter(time.Hour)
			if !h.gone() || len(h.Driver.VMs()) != 0 {
				t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
			}
		})
	}
}

// TestAdoptedVMGoesToo: a VM whose ID a user has set is the object's, even if no reconcile
// had come to look for it yet.
func TestAdoptedVMGoesToo(t *testing.T) {
	h := newHarness(t, func(g *given) {
		g.infra.Spec.ProviderID = "test:///vm-0"
		g.machine.Spec.Bootstrap.DataSecretName = nil
	})
	h.addVM(machineName, "test:///vm-0")
	h.Settle()
	h.delete()
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 {
		t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
	}
}
