package capi

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

// other is the controller of a second manager, with another driver.
func (w *world) other() *Controller {
	return New(Options{
		Client: w.recorded(), Live: w.recorded(), Engine: w.engine, Events: w.events, Clock: w.clock, Driver: "other", JoinTimeout: joinTimeout,
	})
}

// passOf takes a pass of that controller.
func (w *world) passOf(c *Controller) {
	w.Helper()
	if _, err := c.Reconcile(w.Context(), ctrlRequest(w)); err != nil {
		w.Fatalf("a pass failed: %v", err)
	}
}

// goes deletes the object, now: the client's clock is another one.
func (w *world) goes() {
	w.Helper()
	w.delete()
	w.clock.SetTime(w.infra().DeletionTimestamp.Time)
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
		before func(*world)
		reason string
	}{
		"waits":            {func(g *given) { g.bootstrap.Data = nil }, func(*world) {}, infrav1.ReasonWaitingForBootstrapData},
		"has no cluster":   {func(g *given) { g.cluster = nil }, func(*world) {}, infrav1.ReasonWaitingForCluster},
		"is there":         {func(*given) {}, func(*world) {}, infrav1.ReasonProvisioned},
		"becomes no node":  {func(*given) {}, func(w *world) { w.clock.Step(joinTimeout + time.Minute) }, infrav1.ReasonProvisioned},
		"cannot go":        {credentials, func(w *world) { w.lose(); w.goes() }, infrav1.ReasonCredentialsMissing},
		"goes slowly":      {func(*given) {}, func(w *world) { w.driver.stays = true; w.goes() }, infrav1.ReasonDeleting},
		"has been refused": {func(g *given) { g.machine.Spec.FailureDomain = "nowhere" }, func(*world) {}, infrav1.ReasonUnknownFailureDomain},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.given)
			w.settle()
			w.settleAfter(joinTimeout / 2)
			other := w.other() // whose process is the younger one
			tc.before(w)
			for range 3 {
				w.settle()
				w.passOf(other)
			}
			w.told()
			w.writes = nil
			for range 10 {
				w.clock.Step(slowRetry)
				w.passOf(w.controller)
				w.call()
				w.passOf(other)
			}
			if told := w.told(); len(w.writes) != 0 || len(told) != 0 {
				t.Errorf("writes %v, events %q", w.writes, told)
			}
			if ready := readyOf(w); ready == nil || ready.Reason != tc.reason {
				t.Errorf("Ready is %+v, want %s", ready, tc.reason)
			}
		})
	}
}

func readyOf(w *world) *metav1.Condition {
	w.Helper()
	return newScope(w.infra(), &memory{}, w.clock.Now()).ready()
}

// TestNobodysDriver: that nobody knows the driver is said by whoever comes first, without
// holding the object.
func TestNobodysDriver(t *testing.T) {
	w := newWorld(t, func(g *given) { g.infra.Spec.Driver = "nobody" })
	other := w.other()
	for range 3 {
		w.settle()
		w.passOf(other)
	}
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonUnknownDriver, `"nobody"`, `"test"`)
	if told := w.told(); len(told) != 1 || len(w.writes) != 1 || len(w.infra().Finalizers) != 0 {
		t.Errorf("events %q, writes %v, finalizers %v", told, w.writes, w.infra().Finalizers)
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
			w := newWorld(t, change, func(g *given) {
				g.infra.Spec.Driver, g.infra.Finalizers = "nobody", []string{infrav1.Finalizer}
			})
			if name == "unwatched" {
				w.controller.WatchFilter = "ours"
			}
			before := w.infra()
			w.settle()
			w.wantNothing(before)
			if name == "no owner" {
				return // that holds no deletion
			}
			w.delete()
			before = w.infra()
			w.settleAfter(time.Hour)
			w.wantNothing(before)
		})
	}
}

// TestDeletionOfAnothersVM: a VM is left to the manager that has its driver. If there is none,
// that is said in time, and then held to.
func TestDeletionOfAnothersVM(t *testing.T) {
	w := newWorld(t)
	w.settle()
	calls := len(w.driver.calls)
	w.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.Driver = "nobody" })
	w.goes()
	if result := w.settle(); result.RequeueAfter <= 0 || result.RequeueAfter > slowRetry {
		t.Errorf("looks again after %v", result.RequeueAfter)
	}
	w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	other := w.other()
	for range 3 {
		w.settleAfter(slowRetry)
		w.passOf(other)
	}
	w.wantReady(metav1.ConditionFalse, infrav1.ReasonUnknownDriver, "cannot be deleted", `"nobody"`)
	told := w.told()
	told = slices.DeleteFunc(told, func(event string) bool { return !strings.HasPrefix(event, corev1.EventTypeWarning) })
	if len(told) != 1 || len(w.driver.calls) != calls {
		t.Errorf("events %q, calls %v", told, w.driver.calls[calls:])
	}
	w.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.Driver = "test" })
	w.settle()
	if !w.gone() || len(w.driver.vms) != 0 {
		t.Errorf("gone %t, VMs %v", w.gone(), w.driver.vms)
	}
}

// TestDeletionOfAnothersThatNeverHadAVM: our finalizer holds nothing that nobody sees to.
func TestDeletionOfAnothersThatNeverHadAVM(t *testing.T) {
	w := newWorld(t, func(g *given) { g.infra.Spec.Driver, g.infra.Finalizers = "nobody", []string{infrav1.Finalizer} })
	w.settle()
	w.delete()
	w.settle()
	if !w.gone() || len(w.driver.calls) != 0 {
		t.Errorf("gone %t, calls %v", w.gone(), w.driver.calls)
	}
}
