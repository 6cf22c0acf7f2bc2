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

// other is the controller of a second manager, with another driver.
func (h *harness) other() *Controller {
	return New(Options{
		Client: h.Record(h.client, indexes()), Live: h.Record(h.client, indexes()), Engine: h.engine, Events: h.events, Clock: h.Clock, Drivers: registry.Only("other", fake.New(fake.Config{})), JoinTimeout: joinTimeout,
	})
}

// passOf takes a pass of that controller.
func (h *harness) passOf(c *Controller) {
	h.Helper()
	if _, err := c.Reconcile(h.Context(), ctrlRequest(h)); err != nil {
		h.Fatalf("a pass failed: %v", err)
	}
}

// goes deletes the object, now: the client's clock is another one.
func (h *harness) goes() {
	h.Helper()
	h.delete()
	h.Clock.SetTime(h.infra().DeletionTimestamp.Time)
}

// TestTwoManagers: what one of them has said, the other one never changes, whatever the state
// of the object. Each write of one brings a pass of both.
func TestTwoManagers(t *testing.T) {
	credentials := func(g *given) {
		g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"}
		g.more = append(g.more, secret(g.infra.Namespace, "cloud", nil))
	}
	for name, tc := range map[string]struct {
		given  func(*given)
		before func(*harness)
		reason string
	}{
		"waits":            {func(g *given) { g.bootstrap.Data = nil }, func(*harness) {}, infrav1.ReasonWaitingForBootstrapData},
		"has no cluster":   {func(g *given) { g.cluster = nil }, func(*harness) {}, infrav1.ReasonWaitingForCluster},
		"is there":         {func(*given) {}, func(*harness) {}, infrav1.ReasonProvisioned},
		"becomes no node":  {func(*given) {}, func(h *harness) { h.Clock.Step(joinTimeout + time.Minute) }, infrav1.ReasonProvisioned},
		"cannot go":        {credentials, func(h *harness) { h.lose(); h.goes() }, infrav1.ReasonCredentialsMissing},
		"goes slowly":      {func(*given) {}, func(h *harness) { h.ignoreDeletes(true); h.goes() }, infrav1.ReasonDeleting},
		"has been refused": {func(g *given) { g.machine.Spec.FailureDomain = "nowhere" }, func(*harness) {}, infrav1.ReasonUnknownFailureDomain},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, tc.given)
			h.Settle()
			h.SettleAfter(joinTimeout / 2)
			other := h.other() // whose process is the younger one
			tc.before(h)
			for range 3 {
				h.Settle()
				h.passOf(other)
			}
			h.takeEvents()
			h.Writes = nil
			for range 10 {
				h.Clock.Step(slowRetry)
				h.passOf(h.controller)
				h.Call()
				h.passOf(other)
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

// TestUnknownDriver: the first manager reports a driver that no manager has, without
// holding the object.
func TestUnknownDriver(t *testing.T) {
	h := newHarness(t, func(g *given) { g.infra.Spec.Driver = "unknown" })
	other := h.other()
	for range 3 {
		h.Settle()
		h.passOf(other)
	}
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonUnknownDriver, `"unknown"`, `"test"`)
	if events := h.takeEvents(); len(events) != 1 || len(h.Writes) != 1 || len(h.infra().Finalizers) != 0 {
		t.Errorf("events %q, writes %v, finalizers %v", events, h.Writes, h.infra().Finalizers)
	}
}

// TestOthersAreLeftAloneWhilePaused (G2): not even this is said then.
func TestOthersAreLeftAloneWhilePaused(t *testing.T) {
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
			h.wantNothing(before)
			if name == "no owner" {
				return // that holds no deletion
			}
			h.delete()
			before = h.infra()
			h.SettleAfter(time.Hour)
			h.wantNothing(before)
		})
	}
}

// TestDeletionOfAnothersVM: a VM is left to the manager that has its driver. If there is none,
// that is said in time, and then held to.
func TestDeletionOfAnothersVM(t *testing.T) {
	h := newHarness(t)
	h.Settle()
	calls := len(h.calls())
	h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.Driver = "unknown" })
	h.goes()
	if result := h.Settle(); result.RequeueAfter <= 0 || result.RequeueAfter > slowRetry {
		t.Errorf("looks again after %v", result.RequeueAfter)
	}
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	other := h.other()
	for range 3 {
		h.SettleAfter(slowRetry)
		h.passOf(other)
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

// TestDeletionOfAnothersThatNeverHadAVM: the finalizer does not hold an object that no manager reconciles.
func TestDeletionOfAnothersThatNeverHadAVM(t *testing.T) {
	h := newHarness(t, func(g *given) { g.infra.Spec.Driver, g.infra.Finalizers = "unknown", []string{infrav1.Finalizer} })
	h.Settle()
	h.delete()
	h.Settle()
	if !h.gone() || len(h.calls()) != 0 {
		t.Errorf("gone %t, calls %v", h.gone(), h.calls())
	}
}

// TestOtherInstallation: what another installation has begun is left alone, whether it is
// there or goes, and that is said once.
func TestOtherInstallation(t *testing.T) {
	for name, before := range map[string]func(*harness){
		"has a VM": func(h *harness) { h.Settle() },
		"begun": func(h *harness) {
			h.Driver.FailAfter(fake.CreateMachine, codes.DeadlineExceeded)
			h.Pass()
			h.Pass()
			h.Call()
		},
		"is being deleted": func(h *harness) { h.Settle(); h.delete() },
		"has moved": func(h *harness) {
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
			if name == "has moved" {
				h.wantReady(metav1.ConditionFalse, infrav1.ReasonOtherInstallation, `"a"`, `"b"`)
			} else if len(h.Writes) != 0 {
				t.Errorf("writes %v: whose it is writes, too", h.Writes)
			}
			h.goesOn(name == "is being deleted")
		})
	}
}

// goesOn starts a manager of the installation a, which has its way with the one VM.
func (h *harness) goesOn(deleting bool) {
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
		h.Errorf("%d VMs were made", h.made)
	}
}
