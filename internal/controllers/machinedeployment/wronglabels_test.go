package machinedeployment

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// restsWithin is the maximum number of passes until a deployment without changes settles.
const restsWithin = 6

// inPlaceServer returns a server with two Machines of an old set, whose nodes are to be updated in place.
func inPlaceServer(t *testing.T) *server {
	t.Helper()
	s := duringRollout(t, 2, 0, fixture.InPlace("0", "1"))
	s.InPlace = true
	s.rests(t)
	return s
}

// rests runs passes until nothing is written any longer.
func (s *server) rests(t *testing.T) {
	t.Helper()
	for range restsWithin {
		s.writes = nil
		s.pass(t)
		if len(s.writes) == 0 {
			return
		}
	}
	t.Errorf("the deployment does not settle: %q", s.writes)
}

func (s *server) label(t *testing.T, c client.Client, object client.Object, key, value string) {
	t.Helper()
	must(c.Get(t.Context(), client.ObjectKeyFromObject(object), object))
	labels := maps.Clone(object.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	labels[key] = value
	object.SetLabels(labels)
	must(c.Update(t.Context(), object))
}

// nothingLost checks that both Machines exist, are not being deleted, and are still desired.
func (s *server) nothingLost(t *testing.T) {
	t.Helper()
	machines, desired := &v1alpha1.MachineList{}, int32(0)
	must(s.live.List(t.Context(), machines))
	for _, set := range s.all() {
		desired += set.Spec.Replicas
	}
	leaves := func(machine v1alpha1.Machine) bool { return !machine.DeletionTimestamp.IsZero() }
	if len(machines.Items) != 2 || slices.ContainsFunc(machines.Items, leaves) || desired != 2 {
		t.Errorf("%d machines exist, %d desired by their sets", len(machines.Items), desired)
	}
}

// TestInPlaceUpdate_WrongLabels checks that in whatever order a user sets labels on a node, even with invalid values,
// the deployment settles, loses no Machine, and reports the wrong label.
func TestInPlaceUpdate_WrongLabels(t *testing.T) {
	keys := []string{v1alpha1.LabelKeyNodeCandidateForUpdate, v1alpha1.LabelKeyNodeSelectedForUpdate, v1alpha1.LabelKeyNodeUpdateResult}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		for _, value := range []string{"true", "successful", "failed", "yes"} {
			s := inPlaceServer(t)
			for _, i := range order {
				s.label(t, s.target, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pool-a-1"}}, keys[i], value)
				s.rests(t)
				s.nothingLost(t)
			}
			is := s.progress()
			if is.Reason != v1alpha1.DeploymentReasonUpdateBlocked || !strings.Contains(is.Message, "machine pool-a-1: ") {
				t.Errorf("value %q, order %v: %+v", value, order, is)
			}
		}
	}
}

// TestInPlaceUpdate_ResultOnMachineIsRemoved checks that a label that only the deployment may set during a move is removed without
// effect if a user sets it before.
func TestInPlaceUpdate_ResultOnMachineIsRemoved(t *testing.T) {
	s := inPlaceServer(t)
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: fixture.Namespace, Name: "pool-a-0"}}
	s.label(t, s.live, machine, v1alpha1.LabelKeyNodeUpdateResult, v1alpha1.LabelValueNodeUpdateSuccessful)
	s.rests(t)
	s.nothingLost(t)
	must(s.live.Get(t.Context(), client.ObjectKeyFromObject(machine), machine))
	if _, left := machine.Labels[v1alpha1.LabelKeyNodeUpdateResult]; left {
		t.Error("the label was not removed")
	}
}

// TestInPlaceUpdate_CurrentSetMayGrow checks that an in-place update removes a label with which a user prevents the current
// set from creating Machines, since the update needs the surge.
func TestInPlaceUpdate_CurrentSetMayGrow(t *testing.T) {
	s := inPlaceServer(t)
	set := &v1alpha1.MachineSet{ObjectMeta: metav1.ObjectMeta{Namespace: fixture.Namespace, Name: "pool-b"}}
	s.label(t, s.live, set, v1alpha1.LabelKeyMachineSetScaleUpDisabled, "true")
	s.rests(t)
	s.nothingLost(t)
	if _, left := s.all()["pool-b"].Labels[v1alpha1.LabelKeyMachineSetScaleUpDisabled]; left {
		t.Error("the label was not removed")
	}
}

// TestInPlaceUpdate_BlockedWithoutMachineController checks that an update is reported as blocked after a while if no machine
// controller runs that can update nodes in place. The deployment settles, loses nothing, and continues when
// another controller starts.
func TestInPlaceUpdate_BlockedWithoutMachineController(t *testing.T) {
	s := inPlaceServer(t)
	if is := s.progress(); is.Reason != v1alpha1.DeploymentReasonUpdated {
		t.Errorf("condition before the timeout: %+v", is)
	}
	if after := s.pass(t).RequeueAfter; after == 0 || after > time.Minute {
		t.Errorf("the next pass is due in %v", after)
	}
	s.lines = nil
	s.Clock = clocktesting.NewFakePassiveClock(s.Clock.Now().Add(time.Minute))
	s.rests(t)
	s.rests(t)
	s.nothingLost(t)
	is := s.progress()
	if is.Reason != v1alpha1.DeploymentReasonUpdateBlocked || !strings.Contains(is.Message, "no machine controller has responded to the in-place update of pool-a-0, pool-a-1") {
		t.Errorf("got %+v", is)
	}
	if len(s.lines) != 1 || !strings.HasPrefix(s.lines[0], v1alpha1.DeploymentReasonUpdateBlocked) {
		t.Errorf("events %q, want one about the blocked update", s.lines)
	}
	for _, name := range []string{"pool-a-0", "pool-a-1"} {
		node := s.node(t, name)
		node.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.NodeInPlaceUpdate, Status: corev1.ConditionTrue, Reason: v1alpha1.CandidateForUpdate}}
		must(s.target.Status().Update(t.Context(), node))
	}
	s.rests(t)
	s.nothingLost(t)
	if is := s.progress(); is.Reason != v1alpha1.DeploymentReasonUpdated {
		t.Errorf("condition after the response: %+v", is)
	}
}

// TestInPlaceUpdate_NodeOfCurrentSetIsUncordoned checks a selected node whose set became the current one. The state of
// the update on its Machine may change between two passes.
func TestInPlaceUpdate_NodeOfCurrentSetIsUncordoned(t *testing.T) {
	s := duringRollout(t, 0, 2, fixture.InPlace("0", "1"))
	s.InPlace = true
	s.rests(t)
	update := func(phase v1alpha1.MachinePhase, reason string, labels map[string]string) {
		condition := corev1.NodeCondition{Type: v1alpha1.NodeInPlaceUpdate, Status: corev1.ConditionTrue, Reason: reason}
		s.setNode(t, "pool-b-0", func(node *corev1.Node) {
			node.Labels, node.Spec.Unschedulable = labels, true
			node.Status.Conditions = []corev1.NodeCondition{condition}
		})
		machine := &v1alpha1.Machine{}
		must(s.live.Get(t.Context(), client.ObjectKey{Namespace: fixture.Namespace, Name: "pool-b-0"}, machine))
		machine.Status.CurrentStatus.Phase, machine.Status.Conditions = phase, []corev1.NodeCondition{condition}
		must(s.live.Update(t.Context(), machine))
		s.rests(t)
	}
	labels := map[string]string{v1alpha1.LabelKeyNodeCandidateForUpdate: "true", v1alpha1.LabelKeyNodeSelectedForUpdate: "true"}
	update(v1alpha1.MachineInPlaceUpdating, v1alpha1.ReadyForUpdate, labels)
	if node := s.node(t, "pool-b-0"); !node.Spec.Unschedulable {
		t.Fatal("the deployment does not wait for the update")
	}
	labels = maps.Clone(labels)
	labels[v1alpha1.LabelKeyNodeUpdateResult] = v1alpha1.LabelValueNodeUpdateSuccessful
	update(v1alpha1.MachineRunning, v1alpha1.UpdateSuccessful, labels)
	if node := s.node(t, "pool-b-0"); node.Spec.Unschedulable || node.Labels[v1alpha1.LabelKeyNodeSelectedForUpdate] != "" {
		t.Errorf("the node was not put back into use: cordoned %t, labels %v", node.Spec.Unschedulable, node.Labels)
	}
}
