package rollout_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/pool/rollout/status"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestRollingUpdate_KeepsBounds applies events in any order: slow controllers, outdated caches, machines that
// fail before or after they are available and are preserved or not, zone outages, and users that scale the
// deployment, change its template and pause it during a rollout. At every moment
//
//   - at most as many machines exist or are requested as replicas and surge allow, plus preserved machines beyond the replicas of their set, because rollouts do not wait for those. If a user lowers the replicas, there may be more for a while, but none are added. Machines that are deleted because they failed, or that were being deleted when a user scaled the deployment, do not count, because sets do not wait until they are gone.
//   - no available machine is deleted if fewer than required would remain available, except for failures that the controller could not know.
//
// In the end, when nothing is preserved or paused any more, the desired machines exist, all with the current
// template.
func TestRollingUpdate_KeepsBounds(t *testing.T) {
	t.Parallel()
	tier.Check(t, func(t *rapid.T) {
		bound := rapid.SampledFrom([]string{"", "0", "1", "2", "5", "0%", "10%", "30%", "100%"})
		strategy := fixture.Rolling(bound.Draw(t, "surge"), bound.Draw(t, "unavailable"))
		w := newModel(fixture.Deployment(rapid.Int32Range(0, 12).Draw(t, "replicas"), strategy))
		if !w.settle(nil) {
			t.Fatalf("the first machines do not become available: %s", w)
		}
		for _, event := range rapid.SliceOfN(rapid.SampledFrom(eventsOf(t)), 100, 100).Draw(t, "events") {
			before := w.promised()
			happen(t, w, event)
			if is := w.promised(); is > max(before, w.most()) {
				t.Fatalf("%d machines exist or are requested, at most %d allowed: %s", is, w.most(), w)
			}
			if w.broken != "" {
				t.Fatalf("%s: %s", w.broken, w)
			}
		}
		w.deployment.Spec.Paused = false
		w.each(func(_ *modelSet, m *modelMachine) { m.preserved = false })
		seed := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		if !w.settle(seed) {
			t.Fatalf("the rollout does not complete: %s %s", w, w.broken)
		}
		if is := status.Progress(w.deployment.Status); is.Reason != v1alpha1.DeploymentReasonComplete {
			t.Fatalf("the rollout is complete, but Progressing is %s: %s", is.Reason, is.Message)
		}
	})
}

// TestRollingUpdate_CompletesAfterAnyChange checks that a rollout completes if users also change its limits and its strategy.
// In the end, the desired machines exist, and the status shows it.
func TestRollingUpdate_CompletesAfterAnyChange(t *testing.T) {
	t.Parallel()
	tier.Check(t, func(t *rapid.T) {
		w := newModel(fixture.Deployment(rapid.Int32Range(0, 12).Draw(t, "replicas"), fixture.Rolling("", "")))
		if !w.settle(nil) {
			t.Fatalf("the first machines do not become available: %s", w)
		}
		events := append(eventsOf(t), "bounds", "recreate")
		for _, event := range rapid.SliceOfN(rapid.SampledFrom(events), 100, 100).Draw(t, "events") {
			happen(t, w, event)
			if strings.Contains(w.broken, "twice") {
				t.Fatal(w.broken)
			}
		}
		w.deployment.Spec.Paused = false
		w.each(func(_ *modelSet, m *modelMachine) { m.preserved = false })
		if seed := rapid.Uint64().Draw(t, "seed"); !w.completes(rand.New(rand.NewPCG(seed, 0))) {
			t.Fatalf("the rollout does not complete: %s", w)
		}
		if is := status.Progress(w.deployment.Status); is.Reason != v1alpha1.DeploymentReasonComplete {
			t.Fatalf("the rollout is complete, but Progressing is %s: %s", is.Reason, is.Message)
		}
	})
}

// TestRollout_PausedDeploymentIsScaled checks that, wherever a rollout is paused, the sets together have the desired
// replicas. If the current set has some of them, the surge may be added.
func TestRollout_PausedDeploymentIsScaled(t *testing.T) {
	t.Parallel()
	tier.Check(t, func(t *rapid.T) {
		bound := rapid.SampledFrom([]string{"", "0", "2", "30%"})
		w := newModel(fixture.Deployment(rapid.Int32Range(1, 12).Draw(t, "replicas"), fixture.Rolling(bound.Draw(t, "surge"), bound.Draw(t, "unavailable"))))
		if !w.settle(nil) {
			t.Fatalf("the first machines do not become available: %s", w)
		}
		events := strings.Fields("reconcile set cache machine machines controllers template scale fail preserve")
		for _, event := range rapid.SliceOfN(rapid.SampledFrom(events), 40, 40).Draw(t, "events") {
			happen(t, w, event)
		}
		w.deployment.Spec.Paused = true
		rounds := func(n int) {
			for range n {
				w.round(nil)
			}
		}
		rounds(rapid.SampledFrom([]int{5, 30}).Draw(t, "rounds")) // 5 rounds leave no time for everything
		was, before := w.desired(), w.deployment.Spec.Replicas
		desired := rapid.Int32Range(0, 20).Filter(func(n int32) bool { return n != before }).Draw(t, "desired")
		begun := slices.ContainsFunc(w.sets, func(s *modelSet) bool { return w.current(s) && counts.Desired(s.stored) > 0 })
		w.scaleTo(desired)
		rounds(30)
		minAvailable, most := desired, desired
		if desired < before {
			minAvailable = min(was, desired)
		}
		if surge, _ := rollout.Bounds(w.deployment); begun && desired > 0 {
			most += surge
		}
		if is := w.desired(); is < minAvailable || is > most {
			t.Fatalf("%d machines are requested, want %d to %d: %s", is, minAvailable, most, w)
		}
		if w.broken != "" {
			t.Fatalf("%s: %s", w.broken, w)
		}
	})
}

// eventsOf returns the events of one run. Frequent events are repeated.
func eventsOf(t *rapid.T) []string {
	events := strings.Fields("reconcile reconcile reconcile set set set cache cache cache machine machine machines controllers controllers")
	everything := rapid.Bool().Draw(t, "everything")
	for _, some := range []string{"template", "scale", "excess", "fail", "outage", "preserve", "hold name", "delete", "pause resume"} {
		if everything || rapid.Bool().Draw(t, some) {
			events = append(events, strings.Fields(some)...)
		}
	}
	slices.Sort(events)
	return append([]string{"nothing"}, events...) // the event to which a failing run is reduced
}

// happen applies an event to a randomly chosen set and machine.
func happen(t *rapid.T, w *model, event string) {
	if len(w.sets) == 0 {
		w.reconcile() // a user deleted the last one
		return
	}
	s := rapid.SampledFrom(w.sets).Draw(t, "set")
	var m *modelMachine
	if len(s.machines) > 0 {
		m = rapid.SampledFrom(s.machines).Draw(t, "machine")
	}
	switch event {
	case "reconcile":
		w.reconcile()
	case "set":
		w.runSet(s)
	case "cache":
		s.history = s.history[rapid.IntRange(0, len(s.history)-1).Draw(t, "versions"):]
	case "controllers":
		w.controllers()
	case "machines":
		w.each(w.turn)
	case "machine":
		w.turn(s, m)
	case "fail":
		s.fail(m)
	case "outage":
		outage(w)
	default:
		userDoes(t, w, event, s, m)
	}
}

func userDoes(t *rapid.T, w *model, event string, s *modelSet, m *modelMachine) {
	w.deployment.Generation++
	switch event {
	case "preserve":
		s.preserve(m)
	case "hold":
		s.hold(m)
	case "name":
		if desired := w.deployment.Spec.Replicas; m != nil && m.preserved && !m.named && desired > 0 {
			m.named = true
			w.scaleTo(desired - 1)
		}
	case "delete":
		w.deleteSet(s)
	case "pause", "resume":
		w.deployment.Spec.Paused = event == "pause"
	case "bounds":
		bound := rapid.SampledFrom([]string{"0", "2", "30%"})
		fixture.Rolling(bound.Draw(t, "surge"), bound.Draw(t, "unavailable"))(w.deployment)
	case "recreate":
		fixture.Recreate(w.deployment)
	case "scale":
		w.scaleTo(rapid.Int32Range(0, 12).Draw(t, "replicas"))
	case "excess":
		w.deployment.Spec.ExcessReplicas = ptr.To(intstr.Parse(rapid.SampledFrom([]string{"0", "1", "2", "5", "30%", "100%"}).Draw(t, "excess")))
		w.scaleTo(w.deployment.Spec.Replicas)
	case "template":
		w.deployment.Spec.Template.Spec.Class.Name = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "class")
	}
}
