package capi

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

// otherManager returns the controller of a second manager with another driver.
func (h *harness) otherManager() *Controller {
	return New(Options{
		Client: h.Record(h.client, indexes()), Live: h.Record(h.client, indexes()), Engine: h.engine, Events: h.events, Clock: h.Clock, Drivers: registry.Only("other", fake.New(fake.Config{})), JoinTimeout: joinTimeout,
	})
}

// reconcileWith runs one reconcile of a controller.
func (h *harness) reconcileWith(c *Controller) {
	h.Helper()
	if _, err := c.Reconcile(h.Context(), ctrlRequest(h)); err != nil {
		h.Fatalf("the reconcile failed: %v", err)
	}
}

// deleteNow deletes the object at the harness's time, as the fake client uses the real time.
func (h *harness) deleteNow() {
	h.Helper()
	h.delete()
	h.Clock.SetTime(h.infra().DeletionTimestamp.Time)
}

// TestManagers_DoNotOverwriteEachOther checks that two managers never overwrite each other's status, in any state of the object. Otherwise
// each write of one would trigger a reconcile of both.
func TestManagers_DoNotOverwriteEachOther(t *testing.T) {
	credentials := func(g *given) {
		g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"}
		g.more = append(g.more, secret(g.infra.Namespace, "cloud", nil))
	}
	for name, tc := range map[string]struct {
		given  func(*given)
		before func(*harness)
		reason string
	}{
		"waits for data":   {func(g *given) { g.bootstrap.Data = nil }, func(*harness) {}, infrav1.ReasonWaitingForBootstrapData},
		"no cluster":       {func(g *given) { g.cluster = nil }, func(*harness) {}, infrav1.ReasonWaitingForCluster},
		"provisioned":      {func(*given) {}, func(*harness) {}, infrav1.ReasonProvisioned},
		"join timeout":     {func(*given) {}, func(h *harness) { h.Clock.Step(joinTimeout + time.Minute) }, infrav1.ReasonProvisioned},
		"deletion blocked": {credentials, func(h *harness) { h.loseSecret(); h.deleteNow() }, infrav1.ReasonCredentialsMissing},
		"slow deletion":    {func(*given) {}, func(h *harness) { h.ignoreDeletes(true); h.deleteNow() }, infrav1.ReasonDeleting},
		"refused":          {func(g *given) { g.machine.Spec.FailureDomain = "nowhere" }, func(*harness) {}, infrav1.ReasonUnknownFailureDomain},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, tc.given)
			h.Settle()
			h.SettleAfter(joinTimeout / 2)
			other := h.otherManager() // started later
			tc.before(h)
			for range 3 {
				h.Settle()
				h.reconcileWith(other)
			}
			h.takeEvents()
			h.Writes = nil
			for range 10 {
				h.Clock.Step(slowRetry)
				h.reconcileWith(h.controller)
				h.Call()
				h.reconcileWith(other)
			}
			if events := h.takeEvents(); len(h.Writes) != 0 || len(events) != 0 {
				t.Errorf("writes %v, events %q", h.Writes, events)
			}
			if ready := readyOf(h); ready == nil || ready.Reason != tc.reason {
				t.Errorf("Ready is %+v, want %s", ready, tc.reason)
			}
		})
	}
}

func readyOf(h *harness) *metav1.Condition {
	h.Helper()
	return newScope(h.infra(), &memory{}, h.Clock.Now()).ready()
}

// TestMachine_UnknownDriverIsReportedOnce checks that only the first manager reports a driver that no manager has, and that the object gets
// no finalizer.
func TestMachine_UnknownDriverIsReportedOnce(t *testing.T) {
	h := newHarness(t, func(g *given) { g.infra.Spec.Driver = "unknown" })
	other := h.otherManager()
	for range 3 {
		h.Settle()
		h.reconcileWith(other)
	}
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonUnknownDriver, `"unknown"`, `"test"`)
	if events := h.takeEvents(); len(events) != 1 || len(h.Writes) != 1 || len(h.infra().Finalizers) != 0 {
		t.Errorf("events %q, writes %v, finalizers %v", events, h.Writes, h.infra().Finalizers)
	}
}

// TestMachine_PausedWithUnknownDriverIsUnchanged checks that an unknown driver is not reported for a paused object (G2).
func TestMachine_PausedWithUnknownDriverIsUnchanged(t *testing.T) {
	for name, change := range map[string]func(*given){
		"cluster":   func(g *given) { g.cluster.Spec.Paused = true },
		"object":    func(g *given) { g.infra.Annotations = map[string]string{core.AnnotationPaused: ""} },
		"moved":     func(g *given) { g.infra.Annotations = map[string]string{core.AnnotationMoved: ""} },
		"unwatched": func(g *given) { g.infra.Labels[core.LabelWatchFilter] = "theirs" },
		"no owner":  func(g *given) { g.infra.OwnerReferences = nil },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, change, func(g *given) {
				g.infra.Spec.Driver, g.infra.Finalizers = "unknown", []string{infrav1.Finalizer}
			})
			if name == "unwatched" {
				h.controller.WatchFilter = "ours"
			}
			before := h.infra()
			h.Settle()
			h.wantUnchanged(before)
			if name == "no owner" {
				return // its deletion is not blocked
			}
			h.delete()
			before = h.infra()
			h.SettleAfter(time.Hour)
			h.wantUnchanged(before)
		})
	}
}

// TestDeletion_OfUnknownDriverIsReported checks that a VM is left to the manager that has its driver. If there is none, the
// condition reports this after some time, and keeps reporting it.
func TestDeletion_OfUnknownDriverIsReported(t *testing.T) {
	h := newHarness(t)
	h.Settle()
	calls := len(h.calls())
	h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.Driver = "unknown" })
	h.deleteNow()
	if result := h.Settle(); result.RequeueAfter <= 0 || result.RequeueAfter > slowRetry {
		t.Errorf("requeued after %v", result.RequeueAfter)
	}
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	other := h.otherManager()
	for range 3 {
		h.SettleAfter(slowRetry)
		h.reconcileWith(other)
	}
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonUnknownDriver, "cannot be deleted", `"unknown"`)
	events := h.takeEvents()
	events = slices.DeleteFunc(events, func(event string) bool { return !strings.HasPrefix(event, corev1.EventTypeWarning) })
	if len(events) != 1 || len(h.calls()) != calls {
		t.Errorf("events %q, calls %v", events, h.calls()[calls:])
	}
	h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.Driver = "test" })
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 {
		t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
	}
}

// TestDeletion_OfUnknownDriverWithoutVM checks that the finalizer does not block an object that no manager
// reconciles.
func TestDeletion_OfUnknownDriverWithoutVM(t *testing.T) {
	h := newHarness(t, func(g *given) { g.infra.Spec.Driver, g.infra.Finalizers = "unknown", []string{infrav1.Finalizer} })
	h.Settle()
	h.delete()
	h.Settle()
	if !h.gone() || len(h.calls()) != 0 {
		t.Errorf("gone %t, calls %v", h.gone(), h.calls())
	}
}

// TestMachine_OfOtherInstallationIsIgnored checks that a VM of another installation is not touched, whether or not its object is being
// deleted, and that this is reported once.
func TestMachine_OfOtherInstallationIsIgnored(t *testing.T) {
	for name, before := range map[string]func(*harness){
		"VM exists": func(h *harness) { h.Settle() },
		"creation begun": func(h *harness) {
			h.Driver.FailAfter(fake.CreateMachine, codes.DeadlineExceeded)
			h.Pass()
			h.Pass()
			h.Call()
		},
		"deleting": func(h *harness) { h.Settle(); h.delete() },
		"moved": func(h *harness) {
			h.Settle()
			h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Status = infrav1.MillwrightMachineStatus{} })
			moved := h.infra()
			moved.Status = infrav1.MillwrightMachineStatus{}
			if err := h.client.Status().Update(h.Context(), moved); err != nil {
				h.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.controller.Installation = "a"
			before(h)
			if got := h.infra().Annotations[infrav1.AnnotationInstallation]; got != "a" {
				t.Fatalf("installation %q", got)
			}
			calls, vms := len(h.calls()), len(h.Driver.VMs())
			h.restart()
			h.controller.Installation, h.Writes = "b", nil
			h.Settle()
			h.SettleAfter(time.Hour)
			events := h.takeEvents()
			if len(h.calls()) != calls || len(h.Driver.VMs()) != vms || len(events) != 1 {
				t.Errorf("calls %v, VMs %v, events %q", h.calls()[calls:], h.Driver.VMs(), events)
			}
			if name == "moved" {
				h.wantReady(metav1.ConditionFalse, infrav1.ReasonOtherInstallation, `"a"`, `"b"`)
			} else if len(h.Writes) != 0 {
				t.Errorf("writes %v: they conflict with those of the other installation", h.Writes)
			}
			h.wantFinished(name == "deleting")
		})
	}
}

// wantFinished checks that a manager of installation a finishes the work with the same VM.
func (h *harness) wantFinished(deleting bool) {
	h.Helper()
	h.restart()
	h.controller.Installation = "a"
	h.Settle()
	switch {
	case !deleting:
		h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	case !h.gone() || len(h.Driver.VMs()) != 0:
		h.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
	}
	if h.made != 1 {
		h.Errorf("%d VMs were created", h.made)
	}
}
