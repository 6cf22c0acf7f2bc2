package rollout

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

const (
	candidate = v1alpha1.LabelKeyNodeCandidateForUpdate
	selected  = v1alpha1.LabelKeyNodeSelectedForUpdate
	result    = v1alpha1.LabelKeyNodeUpdateResult
)

// updated returns a Machine of an old set and its node with labels.
func updated(phase v1alpha1.MachinePhase, reason string, labels map[string]string) (*v1alpha1.Machine, *corev1.Node) {
	machine := fixture.Running(fixture.Set("a", 1), "m")
	machine.Status.CurrentStatus.Phase = phase
	machine.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.NodeInPlaceUpdate, Status: corev1.ConditionTrue, Reason: reason}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m", Labels: labels}}
	node.Status.Conditions = machine.Status.Conditions
	return machine, node
}

func TestBlocked(t *testing.T) {
	t.Parallel()
	failed := map[string]string{candidate: "true", selected: "true", result: "failed"}
	for reason, test := range map[string]struct {
		phase     v1alpha1.MachinePhase
		condition string
		labels    map[string]string
		failure   string
		manual    bool
		want      string
	}{
		"it waits for its turn":       {v1alpha1.MachineRunning, v1alpha1.CandidateForUpdate, map[string]string{candidate: "true"}, "", false, ""},
		"it waits for users":          {v1alpha1.MachineRunning, v1alpha1.CandidateForUpdate, map[string]string{candidate: "true"}, "", true, "its node is not selected"},
		"a user has selected it":      {v1alpha1.MachineRunning, v1alpha1.SelectedForUpdate, map[string]string{candidate: "true", selected: "true"}, "", true, ""},
		"it is being updated":         {v1alpha1.MachineInPlaceUpdating, v1alpha1.ReadyForUpdate, map[string]string{candidate: "true", selected: "true"}, "", false, ""},
		"the agent reports a reason":  {v1alpha1.MachineInPlaceUpdateFailed, v1alpha1.UpdateFailed, failed, "no space left", false, "the update of its node failed: no space left"},
		"the agent reports no reason": {v1alpha1.MachineInPlaceUpdateFailed, v1alpha1.UpdateFailed, failed, "", false, "the update of its node failed: took too long"},
		"it is replaced":              {v1alpha1.MachineFailed, v1alpha1.UpdateFailed, failed, "no space left", false, ""},
		"a label has another value":   {v1alpha1.MachineRunning, v1alpha1.CandidateForUpdate, map[string]string{candidate: "yes"}, "", false, `its node has invalid labels: label ` + candidate + ` is "yes", not "true"`},
		"an invalid result":           {v1alpha1.MachineInPlaceUpdating, v1alpha1.ReadyForUpdate, map[string]string{candidate: "true", selected: "true", result: "done"}, "", false, `its node has invalid labels: label ` + result + ` is "done", neither "successful" nor "failed"`},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			machine, node := updated(test.phase, test.condition, test.labels)
			machine.Status.LastOperation.Description = "took too long"
			if test.failure != "" {
				node.Annotations = map[string]string{v1alpha1.AnnotationKeyMachineUpdateFailedReason: test.failure}
			}
			set := fixture.Set("a", 1)
			r := New(Facts{
				Deployment: fixture.Deployment(1, fixture.InPlace("0", "1")), Old: []*v1alpha1.MachineSet{set},
				Machines: map[string][]*v1alpha1.Machine{set.Name: {machine}}, Nodes: &Nodes{OfOld: []Node{{machine, node}}},
			})
			var want []string
			if test.want != "" {
				want = []string{"machine " + machine.Name + ": " + test.want}
			}
			if diff := cmp.Diff(want, r.blocked(test.manual)); diff != "" {
				t.Errorf("want - got +:\n%s", diff)
			}
		})
	}
}

// TestInPlaceUpdate_ExcessMachinesFirst checks that excess Machines are updated first, because no Pods run on
// them.
func TestInPlaceUpdate_ExcessMachinesFirst(t *testing.T) {
	t.Parallel()
	old := fixture.Set("a", 3)
	f := Facts{
		Deployment: fixture.Deployment(3, fixture.InPlace("0", "1")), Old: []*v1alpha1.MachineSet{old}, Current: fixture.Set("b", 0),
		Machines: map[string][]*v1alpha1.Machine{}, Nodes: &Nodes{},
	}
	for _, name := range []string{"a", "b", "c"} {
		machine, node := updated(v1alpha1.MachineRunning, v1alpha1.CandidateForUpdate, map[string]string{candidate: "true"})
		machine.Name, node.Name = name, name
		if name == "c" {
			machine.Spec = *reserve.Marked(&machine.Spec, reserve.NoSchedule)
		}
		f.Machines[old.Name], f.Nodes.OfOld = append(f.Machines[old.Name], machine), append(f.Nodes.OfOld, Node{machine, node})
	}
	if diff := cmp.Diff(map[string]bool{"c": true}, New(f).selectable()); diff != "" {
		t.Errorf("want - got +:\n%s", diff)
	}
}

// planCase is a situation with the changes that the deployment plans in it.
type planCase struct {
	deployment   *v1alpha1.MachineDeployment
	old, current string
	differs      func(*Facts)
	want         string
}

func checkPlans(t *testing.T, cases map[string]planCase) {
	t.Helper()
	for reason, test := range cases {
		t.Run(reason, func(t *testing.T) {
			r := situation{test.deployment, test.old, test.current, test.differs}.rollout()
			if got := strings.Join(changes(Plan(r)), ", "); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// updatedInPlace returns a deployment that is updated in place.
func updatedInPlace(replicas int32, surge, unavailable string) *v1alpha1.MachineDeployment {
	return fixture.Deployment(replicas, fixture.InPlace(surge, unavailable))
}

func oneUnavailable(replicas int32) *v1alpha1.MachineDeployment {
	return updatedInPlace(replicas, "0", "1")
}

func oneSurge(replicas int32) *v1alpha1.MachineDeployment { return updatedInPlace(replicas, "1", "0") }

// paused pauses a deployment.
func paused(deployment *v1alpha1.MachineDeployment) *v1alpha1.MachineDeployment {
	fixture.Paused(deployment)
	return deployment
}

// Changes of facts.
var (
	nodesUnknown = func(f *Facts) { f.Nodes = nil }
	nodesStale   = func(f *Facts) { f.Nodes.Stale = true }
	oldDeleted   = func(f *Facts) { fixture.Leaving(f.Old[0]) }
)

// oldReports sets the number of Machines that the old set has reported, all of which are available.
func oldReports(n int32) func(*Facts) { return func(f *Facts) { fixture.Reports(n, n)(f.Old[0]) } }

// TestInPlaceUpdate_SelectsNodes checks that nodes are selected as long as the current set lacks Machines and enough
// others remain available, but only nodes whose Machines stay and can be updated.
func TestInPlaceUpdate_SelectsNodes(t *testing.T) {
	t.Parallel()
	two, most := updatedInPlace(3, "0", "2"), updatedInPlace(3, "1", "2")
	checkPlans(t, map[string]planCase{
		"one can be spared":               {oneUnavailable(3), "3 m1; m2; m3", "0", nil, "select m1"},
		"the surge allows one":            {oneSurge(2), "2 m1; m2", "1 n1", nil, "select m1"},
		"one has failed, not counted yet": {oneUnavailable(3), "3 m1; m2; m3 unknown", "0", oldReports(3), ""},
		"one is leaving, not counted yet": {oneUnavailable(3), "3 m1; m2; m3 leaving", "0", oldReports(3), "pool-a to 2"},
		"no others are lacking":           {most, "2 m1; m2 updating", "2 n1; n2", nil, ""},
		"the updated one is leaving":      {most, "2 m1; m2 updating leaving", "2 n1; n2", nil, "select m1, pool-a to 1"},
		"the first is not running":        {two, "3 m1 pending; m2; m3", "0", nil, "select m2"},
		"the first was selected before":   {two, "3 m1 candidate selected; m2; m3", "0", nil, "select m2"},
		"the first is named":              {oneUnavailable(3), "3 m1 named; m2; m3", "0", nil, "select m2"},
		"the first has no node":           {oneUnavailable(3), "3 m1 nodeless; m2; m3", "0", nil, "select m2"},
		"the set is about to delete one":  {updatedInPlace(4, "0", "2"), "2 m1; m2; m3", "1 n1", nil, ""},
		"the deployment was scaled down":  {oneUnavailable(3), "3 m1; m2; m3", "1 n1", nil, "pool-a to 2"},
		"the nodes are outdated":          {oneUnavailable(3), "3 m1; m2; m3", "0", nodesStale, ""},
	})
}

// TestInPlaceUpdate_MovesUpdatedMachines checks that updated Machines move to the current set as long as it lacks some,
// but not those that are to be deleted.
func TestInPlaceUpdate_MovesUpdatedMachines(t *testing.T) {
	t.Parallel()
	creates := func(f *Facts) { delete(f.Old[0].Labels, v1alpha1.LabelKeyMachineSetScaleUpDisabled) }
	checkPlans(t, map[string]planCase{
		"updated":                  {oneUnavailable(2), "1 m1 updated", "1 n1", nil, "transfer m1"},
		"more than are lacking":    {updatedInPlace(2, "1", "1"), "2 m1 updated; m2 updated", "1 n1", nil, "transfer m1"},
		"not updated yet":          {oneUnavailable(2), "1 m1 updating", "1 n1", nil, ""},
		"moved before":             {oneUnavailable(2), "1 m1 updated moved", "1 n1", nil, ""},
		"named for deletion":       {oneUnavailable(2), "1 m1 updated named", "1 n1", nil, ""},
		"its set would replace it": {oneUnavailable(2), "1 m1 updated", "1 n1", creates, ""},
		"paused":                   {paused(oneUnavailable(2)), "1 m1 updated", "1 n1", nil, ""},
	})
}

// TestInPlaceUpdate_SettlesMovedMachines checks that a moved Machine becomes one like any other as soon as its set
// counts it and its node is in use. Before that, the set might delete another one.
func TestInPlaceUpdate_SettlesMovedMachines(t *testing.T) {
	t.Parallel()
	unsettled := func(f *Facts) { fixture.Unsettled(f.Current) }
	one := oneUnavailable(3)
	checkPlans(t, map[string]planCase{
		"counted":                      {one, "1 m1 pending", "2 n1; n2 moved", nil, "settle n2"},
		"not counted yet":              {one, "1 m1 updating", "1 n1; n2 moved", nil, "pool-b to 2"},
		"the set has all it may have":  {oneUnavailable(2), "0", "2 n1; n2; n3 moved", nil, "settle n3"},
		"not counted by an old set":    {oneSurge(2), "2 m1; m2; m3 moved", "0", nil, "pool-a to 3"},
		"the set has not observed it":  {one, "1 m1 pending", "2 n1; n2 moved", unsettled, ""},
		"its node is not in use":       {one, "1 m1 pending", "2 n1; n2 moved successful", nil, ""},
		"its node is unknown":          {one, "1 m1 pending", "2 n1; n2 moved nodeless", nil, "settle n2"},
		"being deleted":                {one, "1 m1 pending", "2 n1; n2 moved leaving", nil, ""},
		"paused":                       {paused(oneUnavailable(3)), "1 m1 pending", "2 n1; n2 moved", nil, ""},
		"all nodes are unknown":        {one, "1 m1 pending", "2 n1; n2 moved", nodesUnknown, ""},
		"the cache lacks writes to it": {one, "1 m1 pending", "2 n1; n2 moved", nodesStale, ""},
	})
}

// TestInPlaceUpdate_RemovesSurplusMachines checks which Machines are removed beyond the desired number: those named for
// deletion first, then unavailable ones, then others as long as enough remain available, and of the current set only
// what it has too many.
func TestInPlaceUpdate_RemovesSurplusMachines(t *testing.T) {
	t.Parallel()
	checkPlans(t, map[string]planCase{
		"one of two":                        {oneUnavailable(2), "2 m1; m2", "1 n1", nil, "pool-a to 1"},
		"the nodes are unknown":             {oneUnavailable(2), "2 m1; m2", "1 n1", nodesUnknown, "pool-a to 1"},
		"the nodes are outdated":            {oneUnavailable(2), "2 m1; m2", "1 n1", nodesStale, ""},
		"the set is about to delete one":    {oneUnavailable(2), "2 m1; m2; m3", "1 n1", nil, ""},
		"an unavailable new one is kept":    {oneUnavailable(3), "1 m1", "3 n1; n2; n3 pending", nil, "pool-a to 0"},
		"too many new ones":                 {oneUnavailable(3), "1 m1 updating", "4 n1; n2; n3; n4", nil, "pool-b to 3"},
		"a named new one":                   {oneUnavailable(3), "1 m1", "3 n1 named; n2; n3", nil, "pool-b to 2"},
		"scaled to zero during an update":   {oneUnavailable(0), "1 m1 updating", "0", nil, "pool-a to 0"},
		"an unavailable old one":            {oneSurge(2), "1 m1 pending", "2 n1; n2", nil, "pool-a to 0"},
		"none can be spared":                {oneSurge(2), "1 m1", "2 n1; n2 unknown", nil, ""},
		"none can be spared, one is named":  {oneSurge(2), "1 m1 named", "2 n1; n2 unknown", nil, "pool-a to 0"},
		"its update failed":                 {oneSurge(2), "1 m1 failed", "2 n1; n2", nil, "pool-a to 0"},
		"it was updated, but is not needed": {oneSurge(2), "1 m1 updated", "2 n1; n2", nil, "pool-a to 0"},
		// The set would delete m1 instead of m2.
		"one is leaving":   {oneSurge(2), "1 m1; m2 pending leaving", "2 n1; n2 unknown", nil, ""},
		"one is preserved": {oneSurge(3), "2 m1; m2 unknown preserved", "3 n1; n2; n3 pending", nil, ""},
		"one was moved":    {oneSurge(3), "2 m1; m2 unknown moved", "3 n1; n2; n3 pending", nil, "settle m2"},
	})
}

// TestInPlaceUpdate_ReplicasFollowMachines checks that the replicas of a set grow with the Machines that were moved to
// it, and shrink with those that left it, so that it neither creates nor deletes Machines.
func TestInPlaceUpdate_ReplicasFollowMachines(t *testing.T) {
	t.Parallel()
	unsettled := func(f *Facts) { fixture.Unsettled(f.Old[0]) }
	one := oneUnavailable(3)
	checkPlans(t, map[string]planCase{
		"no current set yet":                {updatedInPlace(2, "1", "1"), "3 m1; m2; m3", "", nil, "create 0"},
		"the set has not reported":          {oneSurge(3), "3 m1; m2; m3", "", unsettled, ""},
		"the cache lacks a machine":         {oneSurge(3), "3 m1; m2", "0", oldReports(3), ""},
		"one is gone":                       {one, "3 m1; m2", "0", nil, "pool-a to 2"},
		"one is being deleted":              {one, "3 m1; m2; m3 leaving", "0", nil, "pool-a to 2"},
		"the new set has yet to create one": {one, "1 m1 pending", "2 n1", nil, ""},
		"the new set has yet to delete one": {one, "1 m1 pending", "1 n1; n2", nil, ""},
		"a moved one is leaving":            {one, "1 m1 pending", "1 n1; n2; n3 moved leaving", nil, ""},
		"the new set is full": {
			updatedInPlace(2, "1", "1"), "1 m1 pending", "2 n1; n2; n3 moved", nil, "pool-a to 0, settle n3",
		},
		"the old set is being deleted": {oneUnavailable(2), "2 m1 moved", "1 n1", oldDeleted, ""},
	})
}
