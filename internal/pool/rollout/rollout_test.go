package rollout

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// withMachines returns facts of an in-place update, in which the cache shows all Machines that the sets report.
func withMachines(f Facts) Facts {
	f.Machines = map[string][]*v1alpha1.Machine{}
	for _, set := range f.All() {
		for i := range set.Status.Replicas {
			addMachine(f, set, fmt.Sprintf("%s-%d", set.Name, i))
		}
	}
	return f
}

// addMachine adds a Running Machine to a set.
func addMachine(f Facts, set *v1alpha1.MachineSet, name string, changes ...func(*v1alpha1.Machine)) {
	f.Machines[set.Name] = append(f.Machines[set.Name], fixture.Running(set, name, changes...))
}

// moved marks a Machine that was updated in place and moved to its set.
func moved(machine *v1alpha1.Machine) {
	machine.Labels[v1alpha1.LabelKeyNodeUpdateResult] = v1alpha1.LabelValueNodeUpdateSuccessful
}

// TestRollout_Progress checks when a rollout is complete, and when nodes have marks of one.
func TestRollout_Progress(t *testing.T) {
	t.Parallel()
	facts := func(change change, all ...*v1alpha1.MachineSet) Facts {
		return NewFacts(fixture.Deployment(3, fixture.OfClass("b"), change), all, fixture.Noon)
	}
	retaining := func(set string, f Facts) Facts {
		f.Retained = map[string]int32{set: 1}
		return f
	}
	was := func(set *v1alpha1.MachineSet) { set.Annotations[v1alpha1.AnnotationKeyPreferNoSchedule] = isTrue }
	rolling, inPlace := fixture.Rolling("1", "0"), fixture.InPlace("0", "1")
	none, old, begun, current := fixture.Set("a", 0), fixture.Set("a", 3), fixture.Set("b", 1), fixture.Set("b", 3)
	last, leaving := fixture.Set("a", 1), fixture.Set("b", 3, fixture.Reports(4, 3))
	kept := fixture.Set("a", 0, fixture.Reports(1, 0))
	m1, m2 := responded("m-1"), responded("m-2", "zone")
	const rolledOut, marks, unmarks = "rolled out", "marks nodes", "unmarks nodes of the current set"
	for name, test := range map[string]struct {
		f    Facts
		want string
	}{
		"complete":                       {facts(rolling, none, current), rolledOut},
		"complete, it was an old set":    {facts(rolling, none, fixture.Set("b", 3, was)), rolledOut + ", " + unmarks},
		"one machine is not available":   {facts(rolling, none, fixture.Set("b", 3, fixture.Reports(3, 2))), ""},
		"one machine is being deleted":   {facts(rolling, none, leaving), ""},
		"one machine is retained":        {retaining("pool-b", facts(rolling, none, leaving)), rolledOut},
		"the set has not observed it":    {facts(rolling, none, fixture.Set("b", 3, fixture.Unsettled)), ""},
		"no set of the template":         {facts(rolling, old), marks},
		"it has begun":                   {facts(rolling, old, begun), marks},
		"only an old machine is left":    {facts(rolling, last, current), marks},
		"it is retained":                 {retaining("pool-a", facts(rolling, kept, current)), rolledOut},
		"paused":                         {facts(fixture.Paused, old, begun), ""},
		"with the strategy Recreate":     {facts(fixture.Recreate, old, begun), ""},
		"in place":                       {withMachines(facts(inPlace, old, begun)), marks},
		"in place, not possible":         {facts(inPlace, old, begun), ""},
		"VMs can be updated":             {withLiveUpdate(facts(updatesClass, old), m1, m2), ""},
		"VMs are updated, none done yet": {withLiveUpdate(facts(updatesClass, current), m1, m2), ""},
		"VMs are updated, all done":      {withLiveUpdate(facts(updatesClass, current)), rolledOut},
	} {
		t.Run(name, func(t *testing.T) {
			r := New(test.f)
			is := map[string]bool{rolledOut: r.RolledOut, marks: r.MarksNodes, unmarks: r.UnmarksCurrent}
			got := slices.DeleteFunc(slices.Sorted(maps.Keys(is)), func(what string) bool { return !is[what] })
			if got := strings.Join(got, ", "); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestRollout_WasComplete checks which status reports that the rollout of the current set was complete. Later changes
// of its Machines are then no rollout.
func TestRollout_WasComplete(t *testing.T) {
	t.Parallel()
	reports := func(kind v1alpha1.MachineDeploymentConditionType, reason string) change {
		return func(d *v1alpha1.MachineDeployment) {
			d.Status.Conditions = []v1alpha1.MachineDeploymentCondition{{Type: kind, Reason: reason}}
		}
	}
	const progressing = v1alpha1.MachineDeploymentProgressing
	complete := reports(progressing, v1alpha1.DeploymentReasonComplete)
	updates := func(d *v1alpha1.MachineDeployment) { updatesClass(d); complete(d) }
	changed := func(d *v1alpha1.MachineDeployment) { complete(d); d.Generation++ }
	second, third := fixture.Set("b", 3, fixture.OfRevision("2")), fixture.Set("b", 3, fixture.OfRevision("3"))
	first := fixture.Set("b", 3, fixture.OfRevision("1"))
	facts := func(change change, all ...*v1alpha1.MachineSet) Facts {
		d := fixture.Deployment(3, fixture.OfClass("b"), annotated(v1alpha1.AnnotationKeyRevision, "2"))
		d.Status.ObservedGeneration = d.Generation
		change(d)
		return NewFacts(d, all, fixture.Noon)
	}
	for name, test := range map[string]struct {
		f    Facts
		want bool
	}{
		"complete":                         {facts(complete, second), true},
		"complete, and changed since":      {facts(changed, second), true},
		"the rollout is in progress":       {facts(reports(progressing, "MachineSetUpdated"), second), false},
		"the condition is of another type": {facts(reports("Other", v1alpha1.DeploymentReasonComplete), second), false},
		"no conditions yet":                {facts(func(*v1alpha1.MachineDeployment) {}, second), false},
		"no set of the template":           {facts(complete, fixture.Set("a", 0)), false},
		"an old set has machines":          {facts(complete, fixture.Set("a", 1), second), false},
		"an old set has none":              {facts(complete, fixture.Set("a", 0), second), true},
		"VMs are being updated":            {withLiveUpdate(facts(updates, second), responded("m")), false},
		"VMs are updated":                  {withLiveUpdate(facts(updates, second)), true},
		"the status is about an older set": {facts(complete, third), false},
		"newer sets were deleted":          {facts(complete, first), true},
		"the template was changed to it":   {facts(changed, first), false},
	} {
		if got := New(test.f).WasComplete; got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}

// TestRollout_WasCompleteScalesImmediately checks that a deployment whose rollout was complete is scaled immediately and
// without a surge, even if it is not known whether an old set has Machines.
func TestRollout_WasCompleteScalesImmediately(t *testing.T) {
	t.Parallel()
	for name, strategy := range map[string]change{
		"rolling": fixture.Rolling("1", "0"), "in place, not possible": fixture.InPlace("1", "0"),
	} {
		d := fixture.Deployment(9, strategy, fixture.OfClass("b"), annotated(v1alpha1.AnnotationKeyRevision, "2"))
		d.Status.Conditions = []v1alpha1.MachineDeploymentCondition{
			{Type: v1alpha1.MachineDeploymentProgressing, Reason: v1alpha1.DeploymentReasonComplete},
		}
		all := sets{fixture.Set("a", 0, fixture.Unsettled), fixture.Set("b", 3, fixture.OfRevision("2"))}
		if diff := cmp.Diff([]string{"pool-b to 9"}, brief(t, Plan(New(NewFacts(d, all, fixture.Noon))))); diff != "" {
			t.Errorf("%s: want - got +\n%s", name, diff)
		}
	}
}

// TestRollout_InPlaceUpdateIsShown checks when the numbers of the sets include the Machines that an in-place update
// moved.
func TestRollout_InPlaceUpdateIsShown(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change        func(f Facts)
		shown, moving bool
	}{
		"all machines are shown":      {func(Facts) {}, true, false},
		"one is not shown yet":        {func(f Facts) { f.Current.Status.Replicas++ }, false, true},
		"one was moved to an old set": {func(f Facts) { addMachine(f, f.Old[0], "m", moved) }, true, true},
		"one was moved":               {func(f Facts) { addMachine(f, f.Current, "m", moved) }, true, false},
	} {
		d := fixture.Deployment(3, fixture.InPlace("0", "1"), fixture.OfClass("b"))
		f := withMachines(NewFacts(d, sets{fixture.Set("a", 2), fixture.Set("b", 1)}, fixture.Noon))
		test.change(f)
		if r := New(f); r.Shown != test.shown || r.Moving != test.moving {
			t.Errorf("%s: shown: %t, moving: %t; want %t and %t", name, r.Shown, r.Moving, test.shown, test.moving)
		}
	}
	f := NewFacts(fixture.Deployment(3, fixture.Rolling("1", "0")), sets{fixture.Set("a", 3)}, fixture.Noon)
	if r := New(f); !r.Shown || r.Moving {
		t.Errorf("without an in-place update: shown: %t, moving: %t; want true and false", r.Shown, r.Moving)
	}
}

// TestRollout_Limits checks within which limits Machines are created and removed.
func TestRollout_Limits(t *testing.T) {
	t.Parallel()
	facts := func(replicas int32, class string, strategy change, all ...*v1alpha1.MachineSet) Facts {
		return NewFacts(fixture.Deployment(replicas, strategy, fixture.OfClass(class)), all, fixture.Noon)
	}
	rolling, inPlace := fixture.Rolling("1", "0"), fixture.InPlace("0", "1")
	leaving := withMachines(facts(3, "a", inPlace, fixture.Set("a", 1, fixture.ScaledFor(3, 3), fixture.Reports(3, 1))))
	for _, machine := range leaving.Machines["pool-a"][1:] {
		machine.DeletionTimestamp = &metav1.Time{Time: fixture.Noon}
	}
	lacking := withMachines(facts(3, "a", inPlace, fixture.Set("a", 3, createsNone, fixture.Reports(2, 2))))
	movedBack := withMachines(facts(3, "b", inPlace, fixture.Set("a", 0), fixture.Set("b", 2)))
	addMachine(movedBack, movedBack.Old[0], "m", moved)
	for name, test := range map[string]struct {
		f    Facts
		want []string
	}{
		"scaled down when the rollout begins: a surge is allowed": {
			facts(8, "b", fixture.Rolling("2", "0"), fixture.Set("a", 10)), []string{"create 0", "pool-a to 8"},
		},
		"in place, not possible, scaled up: no surge": {
			facts(5, "b", fixture.InPlace("1", "0"), fixture.Set("a", 2), fixture.Set("b", 1)), []string{"pool-b to 3"},
		},
		"a set without a recorded size is scaled immediately": {
			facts(5, "a", rolling, fixture.Set("a", 2, silent, fixture.Reports(4, 2))), []string{"pool-a to 5"},
		},
		"a set that a user scaled up is scaled down immediately": {
			facts(3, "a", rolling, fixture.Set("a", 5, fixture.ScaledFor(3, 4), fixture.Unsettled)),
			[]string{"pool-a to 3"},
		},
		"in place: machines that a rollout took are leaving":           {leaving, nil},
		"in place, complete: a machine that is gone will be replaced":  {lacking, nil},
		"in place: a machine was moved to an old set, which counts it": {movedBack, []string{"pool-a to 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, brief(t, Plan(New(test.f)))); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

// TestRollout_RecordsSizes checks that sets record the size of the deployment once all of them have their shares of
// it. Until then, the former sizes show that the deployment was scaled.
func TestRollout_RecordsSizes(t *testing.T) {
	t.Parallel()
	set, of3 := fixture.Set, fixture.ScaledFor(3, 4)
	facts := func(replicas int32, class string, changes []change, all ...*v1alpha1.MachineSet) Facts {
		return NewFacts(fixture.Deployment(replicas, append(changes, fixture.OfClass(class))...), all, fixture.Noon)
	}
	rolling, recreate := []change{fixture.Rolling("1", "0")}, []change{fixture.Recreate}
	inPlace, paused := []change{fixture.InPlace("0", "1")}, []change{fixture.Paused, fixture.Rolling("0", "1")}
	pausedSurge := append(paused[:1:1], rolling...)
	for name, test := range map[string]struct {
		f    Facts
		want string
	}{
		"scaled up in a rollout, new machines start": {
			facts(4, "b", rolling, set("a", 3, of3), set("b", 2, of3, fixture.Reports(2, 0))), "4, 4",
		},
		"scaled up in a rollout, old machines leave": {
			facts(4, "b", rolling, set("a", 3, of3, fixture.Reports(4, 3)), set("b", 1, of3)), "4, 4",
		},
		"scaled up in a rollout, one set grows": {
			facts(4, "b", rolling, set("a", 3, of3), set("b", 1, of3)), "3, 4",
		},
		"scaled up in a rollout in place": {
			withMachines(facts(4, "b", inPlace, set("a", 3, of3), set("b", 1, of3))), "4, 4",
		},
		"complete: nothing is written": {
			facts(4, "b", rolling, set("a", 0, of3), set("b", 4, of3)), "3, 3",
		},
		"another strategy, old machines leave": {
			facts(4, "b", recreate, set("a", 0, of3, fixture.Reports(1, 0)), set("b", 4, of3)), "3, 3",
		},
		"paused: all have their shares": {
			facts(8, "c", paused, set("a", 6, fixture.ScaledFor(8, 8)), set("b", 2, fixture.ScaledFor(7, 7))), "8, 8",
		},
		"paused: some machines cannot be created yet": {
			facts(8, "c", paused, set("a", 3, of3, fixture.Reports(7, 3)), set("b", 1, of3)), "3, 3",
		},
		"paused: unknown sizes": {
			facts(8, "c", paused, set("a", 3, silent), set("b", 1, silent)), ", ",
		},
		"paused in a rollout, one size is unknown, a machine leaves": {
			facts(4, "b", pausedSurge, set("a", 3, silent, fixture.Reports(4, 3)), set("b", 1, fixture.ScaledFor(4, 5))),
			"4, 4",
		},
	} {
		t.Run(name, func(t *testing.T) {
			plan := Plan(New(test.f))
			var got []string
			for _, set := range test.f.All() {
				for _, op := range plan {
					if op.Set == set {
						set = op.Next
					}
				}
				got = append(got, set.Annotations[v1alpha1.AnnotationKeyDesiredReplicas])
			}
			if got := strings.Join(got, ", "); got != test.want {
				t.Errorf("the sets are recorded as scaled for %q, want %q", got, test.want)
			}
		})
	}
}
