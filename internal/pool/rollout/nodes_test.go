package rollout

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func TestInPlaceUpdate_PreservedNodeStaysProtected(t *testing.T) {
	t.Parallel()
	f := NewFacts(fixture.Deployment(1, fixture.OfClass("b")), sets{fixture.Set("a", 0), fixture.Set("b", 1)}, fixture.Noon)
	machine := fixture.Member(f.Current, "m")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: map[string]string{
		v1alpha1.AnnotationKeyScaleDownDisabled: "true", v1alpha1.AnnotationKeyScaleDownDisabledByMCM: "true",
	}}}
	f.Nodes = &Nodes{OfCurrent: []Node{{machine, node}}, Protect: true}
	if got := planNodes(New(f)); len(got) != 1 || len(got[0].Nodes[0].New.Annotations) != 0 {
		t.Errorf("the marks of a completed rollout were not removed: %+v", got)
	}
	machine.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: fixture.Noon.Add(1)}
	if got := planNodes(New(f)); len(got) != 0 {
		t.Errorf("the protection of a preserved node was removed: %+v", got)
	}
	if len(node.Annotations) != 2 {
		t.Error("the node of the cache was changed")
	}
}

// TestInPlaceUpdate_NodesOfCurrentSet tests the changes to a node whose Machine is in the current set. A
// finished node must not become a candidate again, or its Machine would wait for an update that never happens.
func TestInPlaceUpdate_NodesOfCurrentSet(t *testing.T) {
	t.Parallel()
	const candidate, selected, result = v1alpha1.LabelKeyNodeCandidateForUpdate, v1alpha1.LabelKeyNodeSelectedForUpdate, v1alpha1.LabelKeyNodeUpdateResult
	all := map[string]string{candidate: "true", selected: "true", result: v1alpha1.LabelValueNodeUpdateSuccessful}
	for name, tc := range map[string]struct {
		moved       bool
		phase       v1alpha1.MachinePhase
		state       string
		node        string // the node's condition; state is the Machine's copy
		labels      map[string]string
		want        map[string]string
		schedulable bool
	}{
		"updated, and moved": {moved: true, phase: v1alpha1.MachineInPlaceUpdateSuccessful, state: v1alpha1.UpdateSuccessful, labels: all, want: map[string]string{}, schedulable: true},
		"finished":           {moved: true, phase: v1alpha1.MachineInPlaceUpdateSuccessful, state: v1alpha1.UpdateSuccessful, want: map[string]string{}},
		"finished, settled":  {phase: v1alpha1.MachineInPlaceUpdateSuccessful, state: v1alpha1.UpdateSuccessful, want: map[string]string{}},
		"finished, not shown by its machine yet": {
			moved: true, phase: v1alpha1.MachineRunning, state: v1alpha1.ReadyForUpdate, node: v1alpha1.UpdateSuccessful, want: map[string]string{},
		},
		"selected before a rollback": {
			phase: v1alpha1.MachineInPlaceUpdating, state: v1alpha1.ReadyForUpdate, labels: map[string]string{selected: "true"},
			want: map[string]string{candidate: "true", selected: "true"},
		},
		"selected before a rollback, without a response yet": {
			phase: v1alpha1.MachineRunning, state: v1alpha1.CandidateForUpdate,
			labels: map[string]string{candidate: "true", selected: "true"},
			want:   map[string]string{candidate: "true", selected: "true"},
		},
		"a candidate from before a rollback": {phase: v1alpha1.MachineRunning, state: v1alpha1.CandidateForUpdate, labels: map[string]string{candidate: "true"}, want: map[string]string{}},
		"moved, and a user removed the result since": {
			moved: true, phase: v1alpha1.MachineInPlaceUpdateSuccessful, state: v1alpha1.UpdateSuccessful,
			labels: map[string]string{candidate: "true", selected: "true"}, want: map[string]string{}, schedulable: true,
		},
		"failed before a rollback, and a user removed the selection since": {
			phase: v1alpha1.MachineInPlaceUpdateFailed, state: v1alpha1.UpdateFailed,
			labels: map[string]string{candidate: "true", result: v1alpha1.LabelValueNodeUpdateFailed},
			want:   map[string]string{candidate: "true", result: v1alpha1.LabelValueNodeUpdateFailed},
		},
		"not concerned": {phase: v1alpha1.MachineRunning, want: map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			machine := fixture.Machine(func(machine *v1alpha1.Machine) {
				machine.Status.CurrentStatus.Phase = tc.phase
				if tc.state != "" {
					machine.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.NodeInPlaceUpdate, Reason: tc.state}}
				}
				if tc.moved {
					metav1.SetMetaDataLabel(&machine.ObjectMeta, result, v1alpha1.LabelValueNodeUpdateSuccessful)
				}
			})
			cached := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: tc.labels}, Spec: corev1.NodeSpec{Unschedulable: true}}
			if tc.node != "" {
				cached.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.NodeInPlaceUpdate, Reason: tc.node}}
			}
			node := cached.DeepCopy()
			updateCurrent(Node{Machine: machine, Node: cached}, node)
			if diff := cmp.Diff(tc.want, node.Labels, cmpopts.EquateEmpty()); diff != "" || node.Spec.Unschedulable == tc.schedulable {
				t.Errorf("unschedulable %v, labels (-want +got):\n%s", node.Spec.Unschedulable, diff)
			}
		})
	}
}

// TestNode_IsMarkedDuringRollout checks the marks of nodes: during a rollout, Pods should avoid nodes of old sets, and
// autoscalers should not remove any node. For an in-place update, nodes of old sets are candidates, and as many are
// selected as can be spared.
func TestNode_IsMarkedDuringRollout(t *testing.T) {
	t.Parallel()
	rolling, inPlace := fixture.Deployment(2, fixture.Rolling("1", "1")), oneUnavailable(2)
	byHand := fixture.Deployment(2, fixture.InPlaceByHand("0", "1"))
	unprotected := func(f *Facts) { f.Nodes.Protect = false }
	recorded := func(f *Facts) { f.Old[0].Annotations[v1alpha1.AnnotationKeyPreferNoSchedule] = "True" }
	const (
		silent    = ": Marked 1 node of machines that will be replaced"
		replaced  = "NodesMarked" + silent
		updated   = "NodesMarked: Marked 1 node of machines that will be updated in place"
		selected  = "NodesSelected: Selected for an in-place update: m1"
		ofCurrent = ": 1 node of new machines updated during the rollout"
		unmarked  = "NodesUnmarked: Unmarked 1 node: the rollout is complete"
	)
	for reason, test := range map[string]struct {
		deployment   *v1alpha1.MachineDeployment
		old, current string
		differs      func(*Facts)
		want         []string
	}{
		"rolling": {
			rolling, "1 m1", "1 n1", nil, []string{replaced, "m1 taint protected", ofCurrent, "n1 protected"},
		},
		"rolling, marked before": {rolling, "1 m1 taint protected", "1 n1 protected", nil, nil},
		"rolling, two nodes": {rolling, "2 m1; m2", "", nil, []string{
			"NodesMarked: Marked 2 nodes of machines that will be replaced", "m1 taint protected", "m2 taint protected",
		}},
		"the set has recorded the event": {rolling, "1 m1", "", recorded, []string{silent, "m1 taint protected"}},
		"its machine is about to go":     {rolling, "0 m1", "", nil, []string{silent, "m1 taint protected"}},
		"no autoscaler":                  {rolling, "1 m1", "1 n1", unprotected, []string{replaced, "m1 taint"}},
		"users keep the nodes":           {rolling, "1 m1 kept", "1 n1 kept", nil, []string{replaced, "m1 taint kept"}},
		"it was an old one":              {rolling, "", "2 n1 taint; n2", nil, []string{unmarked, "n1 "}},
		"labels of another strategy":     {rolling, "", "1 n1 candidate", nil, nil},
		"paused":                         {fixture.Deployment(2, fixture.Paused), "1 m1", "1 n1 taint", nil, nil},

		"complete":                {rolling, "0 m1 preserved", "2 n1 protected; n2", nil, []string{unmarked, "n1 "}},
		"complete, users keep it": {rolling, "", "2 n1 kept; n2", nil, nil},
		"complete, in place":      {inPlace, "0 m1 preserved", "2 n1; n2", nil, nil},

		"in place, one can be spared": {
			inPlace, "1 m1", "1 n1 protected", nil, []string{selected, "m1 taint protected candidate selected"},
		},
		"in place, none can be spared": {
			inPlace, "1 m1", "1 n1 protected pending", nil, []string{updated, "m1 taint protected candidate"},
		},
		"in place, by hand":               {byHand, "1 m1", "1 n1 protected", nil, []string{updated, "m1 taint protected candidate"}},
		"in place, no candidate any more": {inPlace, "", "2 n1 candidate; n2", nil, []string{unmarked, "n1 "}},
		"in place, it waits to be moved": {
			inPlace, "1 m1 updated cordoned taint protected", "1 n1 protected", nil, nil,
		},
		"in place, moved to a set that is old now": {
			inPlace, "1 m1 updated moved cordoned", "1 n1 protected", nil, []string{updated, "m1 taint protected candidate"},
		},
		// The node was in use before an administrator cordoned it.
		"in place, moved, in use, cordoned": {
			inPlace, "1 m1 moved cordoned", "1 n1 protected", nil, []string{updated, "m1 taint protected candidate cordoned"},
		},
	} {
		t.Run(reason, func(t *testing.T) {
			r := situation{test.deployment, test.old, test.current, test.differs}.rollout()
			if diff := cmp.Diff(test.want, patches(planNodes(r))); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

// TestNode_MessageAfterPreservationExpires checks the message about an old node whose Machine was preserved beyond the
// rollout. When that is over, its protection is removed, just before its set deletes the Machine.
func TestNode_MessageAfterPreservationExpires(t *testing.T) {
	t.Parallel()
	complete := fixture.Deployment(2, func(d *v1alpha1.MachineDeployment) {
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1alpha1.AnnotationKeyRevision, "1")
		d.Status.Conditions = []v1alpha1.MachineDeploymentCondition{{
			Type: v1alpha1.MachineDeploymentProgressing, Reason: v1alpha1.DeploymentReasonComplete,
		}}
	})
	r := situation{complete, "0 m1 taint protected", "2 n1; n2", nil}.rollout()
	for _, op := range planNodes(r) {
		if strings.Contains(op.Reason, "will be replaced") {
			t.Errorf("the rollout is complete, but the message is %q", op.Reason)
		}
	}
	if diff := cmp.Diff([]string{"m1 taint"}, patches(planNodes(r))[1:]); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}

// TestNode_IsUnmarkedAfterRollout checks that a rollout counts as finished on the nodes when none of them has marks of
// it. The nodes are not read again after that.
func TestNode_IsUnmarkedAfterRollout(t *testing.T) {
	t.Parallel()
	rolling, inPlace := fixture.Deployment(2), fixture.Deployment(2, fixture.InPlace("0", "1"))
	for reason, test := range map[string]struct {
		deployment   *v1alpha1.MachineDeployment
		old, current string
		differs      func(*Facts)
		want         bool
	}{
		"complete":                         {rolling, "", "2 n1; n2", nil, true},
		"complete, preserved machines":     {rolling, "0 m1 preserved", "2 n1; n2 preserved", nil, true},
		"the nodes are unknown":            {rolling, "", "2 n1; n2", nodesUnknown, false},
		"some nodes are unknown":           {rolling, "", "2 n1; n2", nodesStale, false},
		"in progress":                      {rolling, "", "1 n1", nil, false},
		"a taint is removed now":           {rolling, "", "2 n1; n2 taint", nil, false},
		"an old preserved node is marked":  {rolling, "0 m1 preserved protected", "2 n1; n2", nil, false},
		"a preserved node is marked":       {rolling, "", "2 n1; n2 preserved protected", nil, false},
		"in place":                         {inPlace, "", "2 n1; n2", nil, true},
		"in place, a node may drain":       {inPlace, "", "2 n1; n2 candidate selected", nil, false},
		"another strategy, labels of that": {rolling, "", "2 n1; n2 candidate selected", nil, true},
	} {
		r := situation{test.deployment, test.old, test.current, test.differs}.rollout()
		if got := r.NodesUnmarked(Plan(r)); got != test.want {
			t.Errorf("%s: %t, want %t", reason, got, test.want)
		}
	}
}

// TestNode_IsProtectedUntilPreservationExpires checks when the next pass has to remove the protection of a node that is
// preserved longer than the rollout takes. No event triggers that pass.
func TestNode_IsProtectedUntilPreservationExpires(t *testing.T) {
	t.Parallel()
	type preserved struct {
		marks string
		after time.Duration
	}
	const marked = "protected"
	for reason, test := range map[string]struct {
		replicas int32 // of the set, of two desired
		nodes    [2]preserved
		unknown  bool
		want     time.Duration
	}{
		"none is preserved":        {2, [2]preserved{{marked, 0}, {marked, 0}}, false, 0},
		"one is preserved":         {2, [2]preserved{{marked, 0}, {marked, time.Hour}}, false, time.Hour},
		"the second expires first": {2, [2]preserved{{marked, time.Hour}, {marked, time.Minute}}, false, time.Minute},
		"the first expires first":  {2, [2]preserved{{marked, time.Minute}, {marked, time.Hour}}, false, time.Minute},
		"one has no marks":         {2, [2]preserved{{"", time.Minute}, {marked, time.Hour}}, false, time.Hour},
		"one has expired":          {2, [2]preserved{{marked, -time.Minute}, {marked, time.Hour}}, false, time.Hour},
		"all have expired":         {2, [2]preserved{{marked, -time.Minute}, {marked, -time.Hour}}, false, 0},
		"the rollout continues":    {1, [2]preserved{{marked, time.Minute}, {marked, time.Hour}}, false, 0},
		"the nodes are unknown":    {2, [2]preserved{{marked, time.Minute}, {marked, time.Hour}}, true, 0},
	} {
		description := fmt.Sprintf("%d n1 %s; n2 %s", test.replicas, test.nodes[0].marks, test.nodes[1].marks)
		r := situation{fixture.Deployment(2), "", description, func(f *Facts) {
			for i, n := range f.Nodes.OfCurrent {
				if after := test.nodes[i].after; after != 0 {
					fixture.PreservedUntil(fixture.Noon.Add(after))(n.Machine)
				}
			}
			if test.unknown {
				f.Nodes = nil
			}
		}}.rollout()
		if got := r.ProtectedFor(); got != test.want {
			t.Errorf("%s: %s, want %s", reason, got, test.want)
		}
	}
}

func TestSameTaint(t *testing.T) {
	t.Parallel()
	taint := corev1.Taint{Key: "a", Value: "b", Effect: corev1.TaintEffectNoSchedule}
	for reason, test := range map[string]struct {
		change func(*corev1.Taint)
		want   bool
	}{
		"added at another time": {func(t *corev1.Taint) { t.TimeAdded = &metav1.Time{Time: fixture.Noon} }, true},
		"another key":           {func(t *corev1.Taint) { t.Key = "x" }, false},
		"another value":         {func(t *corev1.Taint) { t.Value = "x" }, false},
		"another effect":        {func(t *corev1.Taint) { t.Effect = corev1.TaintEffectNoExecute }, false},
	} {
		other := taint
		test.change(&other)
		if got := SameTaint(taint, other); got != test.want {
			t.Errorf("%s: %t, want %t", reason, got, test.want)
		}
	}
}
