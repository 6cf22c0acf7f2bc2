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

// TestDeletion_InAnyOrder checks that the VM is deleted in whichever order the objects are deleted (R3, S29, S40).
func TestDeletion_InAnyOrder(t *testing.T) {
	machine := func(h *harness) { h.remove(&core.Machine{ObjectMeta: metav1.ObjectMeta{Name: machineName}}) }
	cluster := func(h *harness) { h.remove(&core.Cluster{ObjectMeta: metav1.ObjectMeta{Name: clusterName}}) }
	for name, before := range map[string][]func(*harness){
		"all exist":       nil,
		"Machine deleted": {machine},
		"Cluster deleted": {cluster},
		"both deleted":    {machine, cluster},
		"owner reference removed": {machine, cluster, func(h *harness) {
			h.changeInfra(func(m *infrav1.MillwrightMachine) { m.OwnerReferences, m.Labels = nil, nil })
		}},
		"infrastructure not ready": {func(h *harness) { h.changeCluster(func(c *core.Cluster) { c.Status = core.ClusterStatus{} }) }},
		"bootstrap data deleted":   {func(h *harness) { h.remove(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: bootstrapName}}) }},
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

// TestDeletion_Paused checks that a paused object neither deletes its VM nor loses its finalizer (G2, K8).
func TestDeletion_Paused(t *testing.T) {
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

// TestDeletion_BeforeCreation checks that an object that never had a VM is deleted immediately without a call of the
// driver (S41).
func TestDeletion_BeforeCreation(t *testing.T) {
	for name, change := range map[string]func(*given){
		"no owner":          func(g *given) { g.infra.OwnerReferences, g.infra.Finalizers = nil, []string{infrav1.Finalizer} },
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

// TestDeletion_OfRefusedSpec checks that a spec that the driver refuses does not block the deletion, unless an
// earlier spec may have led to a VM.
func TestDeletion_OfRefusedSpec(t *testing.T) {
	refusals := []codes.Code{codes.InvalidArgument, codes.InvalidArgument, codes.InvalidArgument}
	for name, tc := range map[string]struct {
		before func(*harness)
		gone   bool
	}{
		"every call refused": {func(h *harness) {
			h.Driver.Fail(fake.GetMachineStatus, refusals...)
			h.Settle()
		}, true},
		"creation and deletion refused": {func(h *harness) {
			h.Driver.Fail(fake.CreateMachine, refusals...)
			h.Settle()
			h.Driver.Fail(fake.DeleteMachine, refusals...)
		}, true},
		"earlier spec was accepted": {func(h *harness) {
			h.Driver.FailAfter(fake.CreateMachine, codes.DeadlineExceeded) // the VM exists
			h.Settle()
			h.changeInfra(func(m *infrav1.MillwrightMachine) {
				m.Spec.ProviderID, m.Status.ProviderID, m.Spec.ProviderSpec = "", "", raw(`{"size":"huge"}`)
			})
			h.Driver.Fail(fake.GetMachineStatus, refusals...)
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

// TestDeletion_DuringCreation checks that a VM is deleted by its provider ID even if the ID has not been stored.
func TestDeletion_DuringCreation(t *testing.T) {
	h := newHarness(t)
	h.Driver.FailAfter(fake.CreateMachine, codes.DeadlineExceeded)
	h.Settle()
	h.delete()
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 || h.made != 1 {
		t.Errorf("gone %t, VMs %v of %d", h.gone(), h.Driver.VMs(), h.made)
	}
	if id := h.deleted()[0].Machine.Spec.ProviderID; id != "test:///vm-1" {
		t.Errorf("deleted with the provider ID %q", id)
	}
}

// TestDeletion_FinalizerStaysAfterFailure checks that the finalizer stays until the VM is gone, and that the condition reports the error.
func TestDeletion_FinalizerStaysAfterFailure(t *testing.T) {
	h := newHarness(t)
	h.Settle()
	h.Driver.Fail(fake.DeleteMachine, codes.Unavailable)
	h.delete()
	result := h.Settle()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonDeletionFailed, "failed as configured")
	if result.RequeueAfter <= 0 || len(h.infra().Finalizers) != 1 {
		t.Errorf("requeued after %v, finalizers %v", result.RequeueAfter, h.infra().Finalizers)
	}
	h.ignoreDeletes(true)
	if result = h.SettleAfter(time.Hour); h.gone() || result.RequeueAfter <= 0 {
		t.Error("the object is gone or not requeued, but the VM exists")
	}
	h.ignoreDeletes(false)
	h.SettleAfter(time.Hour)
	if !h.gone() {
		t.Error("the object still exists")
	}
}

// TestDeletion_IsReported checks that Ready reports a running deletion, without further writes (M9).
func TestDeletion_IsReported(t *testing.T) {
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

// TestDeletion_ManualAnnotationIsIgnored checks that the annotation that the VM is gone has no effect if it was set before the deletion, by
// a template or a user. The VM is deleted first, and then the object and the finalizer of its Secret.
func TestDeletion_ManualAnnotationIsIgnored(t *testing.T) {
	for name, value := range map[string]string{"empty": "", "time": "2026-01-01T00:00:00Z", "huge": strings.Repeat("x", 1<<17)} {
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
			h.wantProtected(true)
			h.ignoreDeletes(false)
			h.SettleAfter(time.Hour)
			if !h.gone() || len(h.Driver.VMs()) != 0 {
				t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
			}
		})
	}
}

// TestDeletion_WaitsForMissingCredentials checks that the object stays while its VM may exist but cannot be looked up.
func TestDeletion_WaitsForMissingCredentials(t *testing.T) {
	h := newHarness(t, func(g *given) {
		g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"}
		g.more = append(g.more, secret(g.infra.Namespace, "cloud", nil))
	})
	h.Settle()
	h.loseSecret()
	h.delete()
	h.Settle()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonCredentialsMissing, "cannot be deleted", `"cloud"`)
	h.create(secret(h.Key.Namespace, "cloud", nil))
	h.SettleAfter(time.Minute)
	if !h.gone() || len(h.Driver.VMs()) != 0 {
		t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
	}
}

// TestMachine_ManualProviderIDChangeIsReported checks that a changed provider ID is reported, no VM is created, and the original VM is
// deleted with the object.
func TestMachine_ManualProviderIDChangeIsReported(t *testing.T) {
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

// TestOwnership_SecondObjectWithProviderID checks that the second object with a provider ID does not get the VM, and does not delete
// it.
func TestOwnership_SecondObjectWithProviderID(t *testing.T) {
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

// TestOwnership_ClaimInOtherNamespaceDoesNotCount checks that an object gets its VM although an older object of another
// namespace has the provider ID in its spec, which a user there wrote before the VM was created.
func TestOwnership_ClaimInOtherNamespaceDoesNotCount(t *testing.T) {
	h := newHarness(t)
	foreign := newGiven("elsewhere", h.Clock.Now().Add(-time.Hour)).infra
	foreign.UID, foreign.Spec.ProviderID = "foreign-uid", "test:///vm-1"
	h.create(foreign)
	h.Settle()
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	if got := h.infra().Spec.ProviderID; got != foreign.Spec.ProviderID {
		t.Fatalf("the VM is %q, want the claimed one", got)
	}
	h.delete()
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 {
		t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
	}
}

// TestOwnership_VMOfOtherAPI checks that a VM that a driver finds for a Machine with the same name stays with that Machine,
// also when this object is deleted. Such a driver does not distinguish the two APIs.
func TestOwnership_VMOfOtherAPI(t *testing.T) {
	h := newHarness(t)
	h.addVM(machineName, "test:///vm-0")
	h.controller.instances.Owners[1] = ownedBy(ownership.Owner{Kind: ownership.KindMachine, Key: types.NamespacedName{Namespace: "ns", Name: "m1"}, UID: "other", Since: h.Clock.Now().Add(time.Hour)}) // later, but it owns the VM
	h.Settle()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonProviderIDTaken, "test:///vm-0", "Machine ns/m1")
	if got := h.infra(); got.Spec.ProviderID != "" || got.Status.Ready {
		t.Errorf("the object took the VM: %+v", got.Status)
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

// TestOwnership_BetweenAPIs checks which of a MillwrightMachine and a Machine with the same provider ID owns the VM,
// and whether the MillwrightMachine may delete it.
func TestOwnership_BetweenAPIs(t *testing.T) {
	machine := func(change func(*ownership.Owner)) ownership.Owner {
		claim := ownership.Owner{Kind: ownership.KindMachine, Key: types.NamespacedName{Namespace: "ns", Name: "other"}, UID: "other", Since: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Add(time.Hour)}
		change(&claim)
		return claim
	}
	for name, tc := range map[string]struct {
		machine ownership.Owner
		// owns is set if the MillwrightMachine gets the VM.
		owns bool
		// blocked is set if its deletion then waits.
		blocked bool
	}{
		"Machine is older":       {machine(func(c *ownership.Owner) { c.Since = time.Time{} }), false, false},
		"Machine is certain":     {machine(func(c *ownership.Owner) { c.Certain = true }), false, false},
		"Machine is newer":       {machine(func(*ownership.Owner) {}), true, false},
		"Machine became certain": {machine(func(c *ownership.Owner) { c.Certain = true }), true, true},
		"newer, deleting":        {machine(func(c *ownership.Owner) { c.Deleting = true }), true, false},
		"certain, deleting":      {machine(func(c *ownership.Owner) { c.Certain, c.Deleting = true, true }), false, false},
		"older, deleting":        {machine(func(c *ownership.Owner) { c.Since, c.Deleting = time.Time{}, true }), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, func(g *given) { g.infra.Spec.ProviderID = "test:///vm-0" })
			h.addVM(machineName, "test:///vm-0")
			if name != "Machine became certain" {
				h.controller.instances.Owners[1] = ownedBy(tc.machine)
			}
			h.Settle()
			h.controller.instances.Owners[1] = ownedBy(tc.machine)
			if !tc.owns {
				h.wantReady(metav1.ConditionFalse, infrav1.ReasonProviderIDTaken, "test:///vm-0", "Machine ns/other")
				return
			}
			h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
			h.delete()
			h.Settle()
			if h.gone() == tc.blocked || len(h.Driver.VMs()) == 0 == tc.blocked {
				t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
			}
			if tc.blocked {
				h.wantReady(metav1.ConditionFalse, infrav1.ReasonProviderIDTaken, "also belongs to Machine ns/other")
			}
		})
	}
}

// TestDeletion_RefusedOwnerDoesNotBlock checks that an object that only names the VM does not block the deletion of the VM's owner,
// in any namespace.
func TestDeletion_RefusedOwnerDoesNotBlock(t *testing.T) {
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

// TestDeletion_BlockedIsReportedOnce checks that a blocked deletion is reported once, not in each reconcile and not after
// each failed call.
func TestDeletion_BlockedIsReportedOnce(t *testing.T) {
	for name, block := range map[string]func(*harness){
		"credentials": func(h *harness) { h.loseSecret() },
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
			block(h)
			h.takeEvents()
			h.delete()
			h.Settle()
			if events := h.takeEvents(); len(events) != 1 {
				t.Errorf("events %q, want one", events)
			}
			h.Writes = nil
			for range 5 {
				h.SettleAfter(checkRetryInterval)
			}
			h.restart()
			if name == "owner" {
				h.controller.instances.Owners[1] = ownedBy(ownership.Owner{Kind: ownership.KindMachine, Key: types.NamespacedName{Namespace: "ns", Name: "other"}, UID: "other", Certain: true})
			}
			h.SettleAfter(checkRetryInterval)
			if events := h.takeEvents(); len(events) != 0 || len(h.Writes) != 0 || h.gone() {
				t.Errorf("events %q, writes %v, gone %t", events, h.Writes, h.gone())
			}
		})
	}
}

// forgetID removes the provider ID, as only a user can.
func (h *harness) forgetID() {
	h.Helper()
	h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.ProviderID = "" })
	infra := h.infra()
	infra.Status.ProviderID = ""
	if err := h.client.Status().Update(h.Context(), infra); err != nil {
		h.Fatal(err)
	}
}

// TestDeletion_ChangedSpecBlocks checks that a NotFound is ignored if the driver was called with another specification
// than the VM was created with, as it may have looked in another place.
func TestDeletion_ChangedSpecBlocks(t *testing.T) {
	const before, after = `{"size":"small"}`, `{"size":"big"}`
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
		given   func(*given)
		setSpec func(*harness, string)
		want    string
	}{
		"own spec": {func(*given) {}, own, "spec was changed"},
		"class":    {withClass, class, `MachineClass "small" or spec was changed`},
		"provider ID removed": {func(*given) {}, func(h *harness, spec string) {
			own(h, spec)
			h.forgetID()
		}, "spec was changed"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, tc.given)
			h.matchSpec(true)
			h.Settle()
			tc.setSpec(h, after)
			h.delete()
			if result := h.Settle(); result.RequeueAfter <= 0 {
				t.Error("the object is not requeued")
			}
			h.restart()
			h.SettleAfter(time.Hour)
			if h.gone() || len(h.Driver.VMs()) == 0 {
				t.Fatalf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
			}
			h.wantReady(metav1.ConditionFalse, infrav1.ReasonSpecChanged, "cannot be deleted", tc.want, infrav1.Finalizer)
			tc.setSpec(h, before)
			h.SettleAfter(time.Hour)
			if !h.gone() || len(h.Driver.VMs()) != 0 {
				t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
			}
		})
	}
}

// TestDeletion_ChangedClassDoesNotBlock checks that a changed class does not block the deletion if the driver finds the VM by its
// provider ID, as most drivers do. This also holds if the process exits after the VM is gone but before that is
// recorded.
func TestDeletion_ChangedClassDoesNotBlock(t *testing.T) {
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
			_, _ = h.controller.Reconcile(t.Context(), ctrlRequest(h)) // the result cannot be recorded
			h.Call()
		}
		if n := len(h.Driver.Calls(fake.DeleteMachine)); n != 0 {
			t.Errorf("%d deletions before the VM was recorded as found", n)
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

// TestDeletion_RefusedLookupDoesNotEndIt checks that a refused lookup does not end the deletion if the driver did not refuse the
// creation.
func TestDeletion_RefusedLookupDoesNotEndIt(t *testing.T) {
	for name, before := range map[string]func(*harness){
		"found": func(h *harness) {
			h.Settle()
			h.forgetID()
		},
		"response lost": func(h *harness) {
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

// TestDeletion_DeletesAdoptedVM checks that a VM whose provider ID a user has set is deleted with the object, even if no
// reconcile has looked it up yet.
func TestDeletion_DeletesAdoptedVM(t *testing.T) {
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
