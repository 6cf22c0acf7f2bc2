package rollout_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/pool/rollout/status"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

var updateEvents = strings.Fields("reconcile reconcile begin set set sets machines nodes turn turn turns controllers controllers")

// TestInPlaceUpdate_KeepsBounds runs an update with slow controllers and outdated caches, updates that fail
// and are repaired or given up, pauses and template changes. At every moment, at most as many Machines exist as
// replicas and surge allow, at most maxUnavailable are updated, and enough others are available. If updates
// succeed, the rollout completes.
func TestInPlaceUpdate_KeepsBounds(t *testing.T) {
	t.Parallel()
	tier.Check(t, func(t *rapid.T) {
		bound := rapid.SampledFrom([]string{"0", "1", "2", "30%", "100%"})
		w := begunUpdates(t, fixture.InPlace(bound.Draw(t, "surge"), bound.Draw(t, "unavailable")))
		surge, unavailable := rollout.Bounds(w.deployment)
		desired := int(reserve.Desired(w.deployment))
		events := append(slices.Clone(updateEvents), strings.Fields("fail repair giveup template pause resume")...)
		for _, event := range rapid.SliceOfN(rapid.SampledFrom(events), 120, 120).Draw(t, "events") {
			happens(t, w, event)
			undergoing, usable := w.undergoing()
			switch {
			case w.active() > desired+int(surge):
				t.Fatalf("%d machines exist, at most %d allowed: %s", w.active(), desired+int(surge), w)
			case undergoing > int(unavailable+surge):
				t.Fatalf("%d machines are being updated, at most %d allowed: %s", undergoing, unavailable+surge, w)
			case usable < desired-int(unavailable):
				t.Fatalf("%d machines are available, at least %d required: %s", usable, desired-int(unavailable), w)
			case w.broken != "":
				t.Fatalf("%s: %s", w.broken, w)
			}
		}
		completes(t, w)
	})
}

// TestInPlaceUpdate_Completes checks that an update completes if users also scale the deployment, change the
// strategy's limits and orchestration type, select nodes and write labels in any order, and if Machines fail
// and sets are deleted. A Machine is not deleted during its update while others can be deleted. In the end, the
// desired Machines exist, and the controller writes nothing.
func TestInPlaceUpdate_Completes(t *testing.T) {
	t.Parallel()
	tier.Check(t, func(t *rapid.T) {
		w := begunUpdates(t, fixture.InPlace("0", "1"))
		events := append(slices.Clone(updateEvents), strings.Fields("fail repair giveup template pause resume scale excess break bounds manual auto select label unlabel delete")...)
		for _, event := range rapid.SliceOfN(rapid.SampledFrom(events), 120, 120).Draw(t, "events") {
			happens(t, w, event)
			if w.broken != "" {
				t.Fatalf("%s: %s", w.broken, w)
			}
		}
		completes(t, w)
	})
}

// begunUpdates returns a model of a deployment whose template changed.
func begunUpdates(t *rapid.T, strategy change) *updates {
	w := newUpdates(fixture.Deployment(rapid.Int32Range(1, 7).Draw(t, "replicas"), strategy))
	w.deployment.Spec.ExcessReplicas = rapid.SampledFrom([]*intstr.IntOrString{nil, ptr.To(intstr.FromInt32(1)), ptr.To(intstr.FromString("50%"))}).Draw(t, "excess")
	if !w.settle(nil) {
		t.Fatalf("the first machines do not become available: %s", w)
	}
	w.template("b")
	return w
}

// completes checks that the update completes once nothing fails any more.
func completes(t *rapid.T, w *updates) {
	w.deployment.Spec.Paused = false
	w.deployment.Spec.Strategy.InPlaceUpdate.OrchestrationType = v1alpha1.OrchestrationTypeAuto
	w.logf("from now on nothing fails")
	for _, name := range slices.Sorted(maps.Keys(w.machines)) {
		w.repair(name)
	}
	if !w.settle(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))) || w.broken != "" {
		t.Fatalf("the update does not complete: %s %s", w.broken, w)
	}
	w.controllers()
	if is := status.Progress(w.deployment.Status); is.Reason != v1alpha1.DeploymentReasonComplete {
		t.Fatalf("the rollout is complete, but Progressing is %s: %s", is.Reason, is.Message)
	}
	writes := w.writes
	for range 3 {
		w.controllers()
	}
	if w.writes > writes {
		t.Fatalf("the controller still writes: %s", w)
	}
}

func (w *updates) template(class string) {
	w.deployment.Generation++
	w.deployment.Spec.Template.Spec.Class.Name = class
}

// repair corrects what prevents the update of a node from completing.
func (w *updates) repair(name string) {
	machine, node := w.machines[name].DeepCopy(), w.nodes[name]
	if node == nil {
		return
	}
	node = node.DeepCopy()
	result, is := node.Labels[v1alpha1.LabelKeyNodeUpdateResult]
	phase := machine.Status.CurrentStatus.Phase
	updating := phase == v1alpha1.MachineInPlaceUpdating || phase == v1alpha1.MachineInPlaceUpdateFailed
	switch {
	case is && updating, inplaceupdate.State(machine) == v1alpha1.UpdateFailed:
		node.Labels[v1alpha1.LabelKeyNodeUpdateResult] = v1alpha1.LabelValueNodeUpdateSuccessful
	case is && result != v1alpha1.LabelValueNodeUpdateSuccessful, is && !inplaceupdate.Updated(machine, node) && !inplaceupdate.Selected(node) && !inplaceupdate.Moved(machine):
		inplaceupdate.Finish(node)
	}
	w.put(machine, node)
}

// happens applies an event to a randomly chosen set and Machine.
func happens(t *rapid.T, w *updates, event string) {
	w.logf("%s", event)
	sets, names := slices.Sorted(maps.Keys(w.sets)), slices.Sorted(maps.Keys(w.machines))
	var set, name string
	if len(sets) > 0 {
		set = rapid.SampledFrom(sets).Draw(t, "set")
	}
	if len(names) > 0 {
		name = rapid.SampledFrom(names).Draw(t, "machine")
	}
	switch event {
	case "reconcile":
		w.reconcile()
	case "begin":
		w.beginSet(set)
	case "set":
		w.runSet(set)
	case "sets":
		w.showSets()
	case "machines":
		w.showMachines()
	case "nodes":
		w.showNodes()
	case "turns":
		for _, name := range names {
			w.turn(name)
		}
	case "controllers":
		w.controllers()
	default:
		happensToAll(t, w, event, set, name)
	}
}

func happensToAll(t *rapid.T, w *updates, event, set, name string) {
	switch event {
	case "template":
		w.template(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "class"))
	case "pause", "resume":
		w.deployment.Generation++
		w.deployment.Spec.Paused = event == "pause"
	case "scale", "excess", "bounds", "manual", "auto":
		userChanges(t, w, event)
	case "delete":
		if w.sets[set] != nil {
			w.deleteSet(set)
		}
	default:
		if w.machines[name] != nil {
			machineEvent(t, w, event, name)
		}
	}
}

func userChanges(t *rapid.T, w *updates, event string) {
	w.deployment.Generation++
	update := w.deployment.Spec.Strategy.InPlaceUpdate
	switch event {
	case "scale":
		w.deployment.Spec.Replicas = rapid.Int32Range(0, 7).Draw(t, "desired")
	case "excess":
		w.deployment.Spec.ExcessReplicas = ptr.To(intstr.Parse(rapid.SampledFrom([]string{"0", "1", "2", "100%"}).Draw(t, "excess")))
	case "bounds":
		bound := rapid.SampledFrom([]string{"0", "2", "30%"})
		kind := update.OrchestrationType
		fixture.InPlace(bound.Draw(t, "surge"), bound.Draw(t, "unavailable"))(w.deployment)
		w.deployment.Spec.Strategy.InPlaceUpdate.OrchestrationType = kind
	case "manual":
		update.OrchestrationType = v1alpha1.OrchestrationTypeManual
	case "auto":
		update.OrchestrationType = v1alpha1.OrchestrationTypeAuto
	}
}

// deleteSet deletes a set as a user. The set deletes its Machines and is gone after the last one.
func (w *updates) deleteSet(name string) {
	for _, machine := range w.machines {
		if machine.OwnerReferences[0].UID == w.sets[name].UID {
			machine = machine.DeepCopy()
			machine.DeletionTimestamp = &atNoon
			w.next(machine)
			w.machines[machine.Name] = machine
		}
	}
	delete(w.sets, name)
	delete(w.wrote, name)
	delete(w.counts, name)
}

func machineEvent(t *rapid.T, w *updates, event, name string) {
	machine, node := w.machines[name].DeepCopy(), w.nodes[name]
	if event == "turn" {
		w.turn(name)
		return
	}
	if node == nil || !machine.DeletionTimestamp.IsZero() {
		return
	}
	node = node.DeepCopy()
	phase := &machine.Status.CurrentStatus.Phase
	switch event {
	case "fail":
		if *phase != v1alpha1.MachineInPlaceUpdating || node.Labels[v1alpha1.LabelKeyNodeUpdateResult] != "" {
			return
		}
		node.Labels[v1alpha1.LabelKeyNodeUpdateResult] = v1alpha1.LabelValueNodeUpdateFailed
	case "giveup":
		if *phase != v1alpha1.MachineInPlaceUpdateFailed {
			return
		}
		*phase = v1alpha1.MachineFailed
	case "repair":
		w.repair(name)
		return
	case "break":
		*phase = v1alpha1.MachineFailed
	case "select":
		node.Labels[v1alpha1.LabelKeyNodeSelectedForUpdate] = "true"
	case "label":
		node.Labels[rapid.SampledFrom(updateLabels).Draw(t, "label")] = rapid.SampledFrom([]string{"true", "successful", "failed", "x"}).Draw(t, "value")
	case "unlabel":
		delete(node.Labels, rapid.SampledFrom(updateLabels).Draw(t, "label"))
	}
	w.put(machine, node)
}

var (
	updateLabels = []string{v1alpha1.LabelKeyNodeCandidateForUpdate, v1alpha1.LabelKeyNodeSelectedForUpdate, v1alpha1.LabelKeyNodeUpdateResult}
	atNoon       = metav1.NewTime(fixture.Noon)
)
