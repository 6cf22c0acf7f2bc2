package inplaceupdate

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

const (
	running  = v1alpha1.MachineRunning
	updating = v1alpha1.MachineInPlaceUpdating
)

// machineIn returns a Machine in a phase, with the progress of its node's update, or none if it is empty.
func machineIn(phase v1alpha1.MachinePhase, state string) *v1alpha1.Machine {
	return fixture.Machine(func(m *v1alpha1.Machine) {
		m.Status.CurrentStatus.Phase = phase
		if state != "" {
			m.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.NodeInPlaceUpdate, Reason: state}}
		}
	})
}

// moved returns a running Machine that was moved to its set.
func moved() *v1alpha1.Machine {
	machine := machineIn(running, "")
	machine.Labels[result] = successful
	return machine
}

func TestMachine_State(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		machine                                      *v1alpha1.Machine
		updating, waits, moved, concerned, failedNow bool
	}{
		"never a candidate":  {machine: machineIn(running, "")},
		"candidate":          {machine: machineIn(running, v1alpha1.CandidateForUpdate), concerned: true},
		"drained":            {machine: machineIn(running, v1alpha1.SelectedForUpdate), updating: true, concerned: true},
		"updating":           {machine: machineIn(updating, v1alpha1.ReadyForUpdate), updating: true, concerned: true},
		"updated":            {machine: machineIn(v1alpha1.MachineInPlaceUpdateSuccessful, v1alpha1.UpdateSuccessful), updating: true},
		"running again":      {machine: machineIn(running, v1alpha1.UpdateSuccessful), waits: true},
		"update failed":      {machine: machineIn(v1alpha1.MachineInPlaceUpdateFailed, v1alpha1.UpdateFailed), concerned: true, failedNow: true},
		"failed, no reason":  {machine: machineIn(v1alpha1.MachineInPlaceUpdateFailed, ""), concerned: true, failedNow: true},
		"unknown since then": {machine: machineIn(v1alpha1.MachineUnknown, v1alpha1.UpdateSuccessful)},
		"moved":              {machine: moved(), moved: true, concerned: true},
	} {
		for what, is := range map[string]struct{ got, want bool }{
			"updating": {Updating(test.machine), test.updating}, "waits": {Waits(test.machine), test.waits}, "moved": {Moved(test.machine), test.moved},
			"concerned": {Concerned(test.machine), test.concerned}, "failed": {Failed(test.machine, nil), test.failedNow},
		} {
			if is.got != is.want {
				t.Errorf("%s: %s is %t, want %t", name, what, is.got, is.want)
			}
		}
	}
}

func TestManual_DependsOnOrchestrationType(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		deployment *v1alpha1.MachineDeployment
		want       bool
	}{
		"manual":           {fixture.Deployment(1, fixture.InPlaceByHand("", "")), true},
		"automatic":        {fixture.Deployment(1, fixture.InPlace("", "")), false},
		"another strategy": {fixture.Deployment(1, fixture.Recreate), false},
	} {
		if got := Manual(test.deployment); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}

func TestTransfer_ReplacesControllerAndLabels(t *testing.T) {
	t.Parallel()
	from, to := fixture.Set("a", 1, fixture.WithUID), fixture.Set("b", 1, fixture.WithUID)
	other := metav1.OwnerReference{Kind: "Backup", Name: "other", UID: "other"}
	machine := fixture.Running(from, "m")
	machine.OwnerReferences = append(machine.OwnerReferences, other, metav1.OwnerReference{Kind: "MachineSet", Name: to.Name, UID: to.UID})
	machine.Labels["own"] = "yes"
	from.Spec.Template.Labels["old"], machine.Labels["old"] = "yes", "yes"
	Transfer(machine, from, to)
	want := []metav1.OwnerReference{other, *metav1.NewControllerRef(to, setKind)}
	if diff := cmp.Diff(want, machine.OwnerReferences); diff != "" {
		t.Errorf("owners, want - got +\n%s", diff)
	}
	labels := map[string]string{"own": "yes", result: successful}
	for key, value := range to.Spec.Template.Labels {
		labels[key] = value
	}
	if diff := cmp.Diff(labels, machine.Labels); diff != "" {
		t.Errorf("labels, want - got +\n%s", diff)
	}
	if Settle(machine); Moved(machine) {
		t.Error("a settled machine counts as just moved")
	}
}

func TestTransfer_OfMachineWithoutLabels(t *testing.T) {
	t.Parallel()
	machine := fixture.Machine(func(m *v1alpha1.Machine) { m.Labels = nil })
	if Transfer(machine, fixture.Set("a", 1), fixture.Set("b", 1)); !Moved(machine) {
		t.Errorf("the machine has the labels %v", machine.Labels)
	}
}

func TestMachine_StateOnNode(t *testing.T) {
	t.Parallel()
	type states struct{ undergoing, drains, selectable, updated, behind, unanswered bool }
	for name, test := range map[string]struct {
		machine *v1alpha1.Machine
		node    *corev1.Node
		want    states
	}{
		"node is unknown":                     {machineIn(running, ""), nil, states{selectable: true}},
		"no labels":                           {machineIn(running, ""), labelledNode(""), states{selectable: true}},
		"candidate":                           {machineIn(running, ""), labelledNode("", candidate), states{selectable: true, unanswered: true}},
		"candidate since an earlier update":   {machineIn(running, ""), labelledNode(v1alpha1.UpdateSuccessful, candidate), states{selectable: true, unanswered: true}},
		"candidate, acknowledged":             {machineIn(running, v1alpha1.CandidateForUpdate), labelledNode(v1alpha1.CandidateForUpdate, candidate), states{selectable: true}},
		"candidate, not running":              {machineIn(v1alpha1.MachineUnknown, ""), labelledNode("", candidate), states{selectable: true}},
		"candidate, just moved":               {moved(), labelledNode("", candidate), states{}},
		"candidate with a result":             {machineIn(running, ""), labelledNode("", candidate, result+"="+successful), states{}},
		"just moved":                          {moved(), labelledNode(""), states{}},
		"selected":                            {machineIn(running, v1alpha1.CandidateForUpdate), labelledNode(v1alpha1.CandidateForUpdate, candidate, selected), states{undergoing: true, drains: true}},
		"selected only":                       {machineIn(running, ""), labelledNode("", selected), states{undergoing: true}},
		"drain has begun, labels removed":     {machineIn(running, v1alpha1.SelectedForUpdate), labelledNode(""), states{undergoing: true}},
		"agent reports failure":               {machineIn(running, ""), labelledNode("", result+"="+failed), states{undergoing: true}},
		"phase shows failure":                 {machineIn(v1alpha1.MachineInPlaceUpdateFailed, ""), labelledNode(""), states{undergoing: true}},
		"agent reports success":               {machineIn(running, ""), labelledNode("", result+"="+successful), states{}},
		"agent reports success, machine too":  {machineIn(running, v1alpha1.UpdateSuccessful), labelledNode("", result+"="+successful), states{updated: true}},
		"agent reports success, node too":     {machineIn(running, ""), labelledNode(v1alpha1.UpdateSuccessful, result+"="+successful), states{updated: true}},
		"conditions only":                     {machineIn(running, v1alpha1.UpdateSuccessful), labelledNode(v1alpha1.UpdateSuccessful), states{selectable: true}},
		"failed, but the condition succeeded": {machineIn(running, v1alpha1.UpdateSuccessful), labelledNode(v1alpha1.UpdateSuccessful, result+"="+failed), states{undergoing: true}},
		"node is behind":                      {machineIn(running, v1alpha1.UpdateSuccessful), labelledNode("", candidate, selected), states{undergoing: true, drains: true, behind: true, unanswered: true}},
		"node is behind, but still updating":  {machineIn(v1alpha1.MachineInPlaceUpdateSuccessful, v1alpha1.UpdateSuccessful), labelledNode("", selected), states{undergoing: true}},
		"node shows the result":               {machineIn(running, v1alpha1.UpdateSuccessful), labelledNode("", candidate, selected, result+"="+successful), states{undergoing: true, drains: true, updated: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := states{
				Undergoing(test.machine, test.node), SelectedCandidate(test.node), Selectable(test.machine, test.node),
				Updated(test.machine, test.node), Behind(test.machine, test.node), Unanswered(test.machine, test.node),
			}
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
