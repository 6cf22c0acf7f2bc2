package rollout

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestScale_WaitsForAllSets checks that the former size remains recorded while a set may
// have machines that are not counted, so that the next pass also detects that the deployment was scaled.
func TestScale_WaitsForAllSets(t *testing.T) {
	t.Parallel()
	owner := fixture.Deployment(8, fixture.Rolling("1", "1"), fixture.OfClass("b"))
	f := NewFacts(owner, sets{fixture.Set("a", 3, fixture.ScaledFor(4, 5), fixture.Unsettled), fixture.Set("b", 1, fixture.ScaledFor(4, 5))}, fixture.Noon)
	for _, set := range f.All() {
		if got := sizeOf(f, set); got != "4" {
			t.Errorf("%s is recorded as scaled for %s", set.Name, got)
		}
	}
}

// sizeOf returns the size of the deployment that a set records in a refresh.
func sizeOf(f Facts, set *v1alpha1.MachineSet) string {
	for _, op := range planRefresh(New(f), nil, nil) {
		if op.Set == set {
			set = op.Next
		}
	}
	return set.Annotations[v1alpha1.AnnotationKeyDesiredReplicas]
}

// TestRefresh_NotInSamePassAsScaling checks that a set is scaled and refreshed with one write.
func TestRefresh_NotInSamePassAsScaling(t *testing.T) {
	t.Parallel()
	f := NewFacts(fixture.Deployment(4, func(d *v1alpha1.MachineDeployment) { d.Spec.MinReadySeconds = 9 }), sets{fixture.Set("a", 3)}, fixture.Noon)
	if got := planRefresh(New(f), nil, nil); len(got) != 1 {
		t.Fatalf("got %+v", got)
	}
	if got := planRefresh(New(f), []Operation{{Action: Scale, Set: f.Current, Replicas: 4}}, nil); len(got) > 0 {
		t.Errorf("got %+v", got)
	}
}

func isFrozen(set *v1alpha1.MachineSet) {
	metav1.SetMetaDataLabel(&set.ObjectMeta, v1alpha1.LabelKeyFreeze, isTrue)
}

// TestRefresh_SkipsDeletedSet checks that a set that is being deleted is not refreshed, even if it is frozen
// and its deployment must be unfrozen.
func TestRefresh_SkipsDeletedSet(t *testing.T) {
	t.Parallel()
	owner := fixture.Deployment(3, fixture.OfClass("b"))
	owner.Annotations = map[string]string{v1alpha1.AnnotationKeyUnfreeze: isTrue}
	f := NewFacts(owner, sets{fixture.Set("a", 3, isFrozen, fixture.Leaving)}, fixture.Noon)
	if got := planRefresh(New(f), nil, nil); len(got) > 0 {
		t.Errorf("got %+v", got)
	}
}

// TestOldSet_WithoutMachinesKeepsSize checks the recorded size of an old set without machines, even if the
// set is frozen.
func TestOldSet_WithoutMachinesKeepsSize(t *testing.T) {
	t.Parallel()
	owner := fixture.Deployment(4, fixture.Rolling("1", "1"), fixture.OfClass("c"))
	f := NewFacts(owner, sets{fixture.Set("a", 0, isFrozen, fixture.ScaledFor(2, 3)), fixture.Set("b", 3, fixture.ScaledFor(4, 5)), fixture.Set("c", 1, fixture.ScaledFor(4, 5))}, fixture.Noon)
	if got := sizeOf(f, f.Old[0]); got != "2" {
		t.Errorf("the set is recorded as scaled for %s", got)
	}
}

func createsNone(set *v1alpha1.MachineSet) {
	metav1.SetMetaDataLabel(&set.ObjectMeta, v1alpha1.LabelKeyMachineSetScaleUpDisabled, isTrue)
}

// TestOldSet_MayGrow checks that a set that an in-place update prevented from creating Machines may
// create them when it becomes the current set under another strategy. Later, the label belongs to the user.
func TestOldSet_MayGrow(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		revision string
		labelled bool
	}{
		"it becomes the current one": {revision: "1"},
		"it is the current one":      {revision: "3", labelled: true},
	} {
		t.Run(name, func(t *testing.T) {
			set := fixture.Set("a", 0, fixture.OfRevision(test.revision), createsNone)
			f := NewFacts(fixture.Deployment(3, fixture.Rolling("1", "1")), sets{set, fixture.Set("b", 3, fixture.OfRevision("2"))}, fixture.Noon)
			if f.Current == nil || f.Current.Name != set.Name {
				t.Fatalf("the current set is %v", f.Current)
			}
			if _, labelled := refreshed(New(f), f.Current, f.Current.Spec.Replicas, 0).Labels[v1alpha1.LabelKeyMachineSetScaleUpDisabled]; labelled != test.labelled {
				t.Errorf("it is labelled: %t", labelled)
			}
		})
	}
}

// TestOldSet_MayNotGrow checks that an old set that is scaled during an in-place update keeps the label that
// prevents it from creating Machines.
func TestOldSet_MayNotGrow(t *testing.T) {
	t.Parallel()
	for name, strategy := range map[string]func(*v1alpha1.MachineDeployment){"in place": fixture.InPlace("0", "1"), "rolling": fixture.Rolling("0", "1")} {
		f := NewFacts(fixture.Deployment(3, strategy, fixture.OfClass("b")), sets{fixture.Set("a", 2, fixture.OfRevision("1"), createsNone), fixture.Set("b", 1, fixture.OfRevision("2"))}, fixture.Noon)
		if len(f.Old) != 1 {
			t.Fatalf("the old sets are %v", f.Old)
		}
		for _, replicas := range []int32{1, 0} {
			got := next(New(f), Operation{Action: Scale, Set: f.Old[0], Replicas: replicas}, 0)
			if _, labelled := got.Labels[v1alpha1.LabelKeyMachineSetScaleUpDisabled]; !labelled {
				t.Errorf("%s: scaled to %d, it may create Machines", name, replicas)
			}
		}
	}
}

// TestRefresh_SkipsSetsWithoutMachines checks that old sets, of which a deployment may have hundreds, are only written
// if they have Machines, are frozen, or may preserve Machines. Others would get nothing that has an effect.
func TestRefresh_SkipsSetsWithoutMachines(t *testing.T) {
	t.Parallel()
	preserves := func(set *v1alpha1.MachineSet) { set.Spec.AutoPreserveFailedMachineMax = 1 }
	leaving := fixture.Reports(1, 0)
	for name, test := range map[string]struct {
		set  *v1alpha1.MachineSet
		want bool
	}{
		"an old set with machines":             {fixture.Set("a", 1), true},
		"an old set without machines":          {fixture.Set("a", 0), false},
		"it is frozen":                         {fixture.Set("a", 0, isFrozen), true},
		"its last machine is being deleted":    {fixture.Set("a", 0, leaving), false},
		"its last machine may be preserved":    {fixture.Set("a", 0, leaving, preserves), true},
		"it could preserve, but has none":      {fixture.Set("a", 0, preserves), false},
		"the current set, none desired so far": {fixture.Set("b", 0), true},
	} {
		d := fixture.Deployment(0, fixture.OfClass("b"), annotated(v1alpha1.AnnotationKeyReplacement, "{}"))
		plan := planRefresh(New(NewFacts(d, sets{test.set}, fixture.Noon)), nil, nil)
		if got := len(plan) > 0; got != test.want {
			t.Errorf("%s: refreshed: %t, want %t", name, got, test.want)
		}
	}
}

// TestRefresh_ReasonNamesWhatChanged checks that the reason distinguishes changes of the spec from changes of
// annotations.
func TestRefresh_ReasonNamesWhatChanged(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]change{
		"fields":      func(d *v1alpha1.MachineDeployment) { d.Spec.MinReadySeconds = 9 },
		"annotations": annotated("example.com/team", "blue"),
	} {
		f := NewFacts(fixture.Deployment(3, change), sets{fixture.Set("a", 3)}, fixture.Noon)
		plan := planRefresh(New(f), nil, nil)
		if len(plan) != 1 || !strings.Contains(plan[0].Reason, want) {
			t.Errorf("the plan is %+v, want one operation because of changed %s", plan, want)
		}
	}
}

// TestRefreshed_SharePreservation checks that a set gets its share of the Machines that are preserved automatically,
// also if the deployment had none before or has none now.
func TestRefreshed_SharePreservation(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ was, whole int32 }{{0, 3}, {3, 0}, {2, 3}} {
		d, set := fixture.Deployment(3), fixture.Set("a", 3)
		d.Spec.AutoPreserveFailedMachineMax, set.Spec.AutoPreserveFailedMachineMax = test.whole, test.was
		got := refreshed(New(NewFacts(d, sets{set}, fixture.Noon)), set, 3, 0).Spec.AutoPreserveFailedMachineMax
		if got != test.whole {
			t.Errorf("the only set, which preserved at most %d, may preserve %d, want %d", test.was, got, test.whole)
		}
	}
}

// TestRefreshed_Unfreezes checks that only frozen sets get the annotation that unfreezes them, and only if the
// deployment has it.
func TestRefreshed_Unfreezes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ asked, frozen bool }{{true, true}, {true, false}, {false, true}} {
		d, set := fixture.Deployment(3), fixture.Set("a", 3)
		if test.asked {
			annotated(v1alpha1.AnnotationKeyUnfreeze, isTrue)(d)
		}
		if test.frozen {
			isFrozen(set)
		}
		next := refreshed(New(NewFacts(d, sets{set}, fixture.Noon)), set, 3, 0)
		if _, got := next.Annotations[v1alpha1.AnnotationKeyUnfreeze]; got != (test.asked && test.frozen) {
			t.Errorf("requested %t, frozen %t: it is unfrozen: %t", test.asked, test.frozen, got)
		}
	}
}

// TestRefreshed_SetWithoutAnnotations checks that a set from which a user removed all annotations gets those of its
// deployment.
func TestRefreshed_SetWithoutAnnotations(t *testing.T) {
	t.Parallel()
	set := fixture.Set("a", 3, func(set *v1alpha1.MachineSet) { set.Annotations = nil })
	r := New(NewFacts(fixture.Deployment(3, annotated("example.com/team", "blue")), sets{set}, fixture.Noon))
	if got := refreshed(r, set, 3, 0).Annotations["example.com/team"]; got != "blue" {
		t.Errorf("the annotation is %q", got)
	}
}

// TestRefreshed_MarksOldSets checks what old sets get during a rollout: the time of the last scaling, a record that
// their nodes are marked, and, if nodes are updated in place, the label that prevents them from creating Machines.
func TestRefreshed_MarksOldSets(t *testing.T) {
	t.Parallel()
	rolling, inPlace := fixture.Rolling("1", "0"), fixture.InPlace("0", "1")
	paused := func(strategy change) change {
		return func(d *v1alpha1.MachineDeployment) { strategy(d); fixture.Paused(d) }
	}
	facts := func(change change, old int32) Facts {
		d := fixture.Deployment(3, fixture.OfClass("b"), change)
		annotated(v1alpha1.AnnotationKeyLastReplicaChange, fixture.Later)(d)
		set := fixture.Set("a", old, fixture.Reports(max(1, old), old))
		return NewFacts(d, sets{set, fixture.Set("b", 1)}, fixture.Noon)
	}
	withNodes := func(f Facts) Facts {
		f.Nodes = &Nodes{}
		return f
	}
	const (
		scaled, marked, createsNone = "scaled", "nodes marked", "creates none"
		all                         = createsNone + ", " + marked + ", " + scaled
	)
	for name, test := range map[string]struct {
		f    Facts
		want string
	}{
		"rolling":                        {withNodes(facts(rolling, 2)), marked + ", " + scaled},
		"rolling, nodes are not known":   {facts(rolling, 2), scaled},
		"rolling, it has no replicas":    {withNodes(facts(rolling, 0)), ""},
		"paused":                         {withNodes(facts(paused(rolling), 2)), scaled},
		"in place":                       {withNodes(withMachines(facts(inPlace, 2))), all},
		"in place, nodes are not known":  {withMachines(facts(inPlace, 2)), createsNone + ", " + scaled},
		"in place, it has no replicas":   {withNodes(withMachines(facts(inPlace, 0))), createsNone},
		"in place, paused":               {withNodes(withMachines(facts(paused(inPlace), 2))), scaled},
		"in place, without its machines": {withNodes(facts(inPlace, 2)), scaled},
	} {
		old := test.f.Old[0]
		next := refreshed(New(test.f), old, old.Spec.Replicas, 0)
		var got []string
		if inplaceupdate.CreatesNone(next) {
			got = append(got, createsNone)
		}
		if next.Annotations[v1alpha1.AnnotationKeyPreferNoSchedule] != "" {
			got = append(got, marked)
		}
		if next.Annotations[v1alpha1.AnnotationKeyLastReplicaChange] != "" {
			got = append(got, scaled)
		}
		if got := strings.Join(got, ", "); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// TestRefreshed_CurrentSetIsNotMarked checks that the record of marked nodes is removed from a set that becomes the
// current one, but only when its nodes are known, because their marks are then removed before it.
func TestRefreshed_CurrentSetIsNotMarked(t *testing.T) {
	t.Parallel()
	set := fixture.Set("a", 3)
	set.Annotations[v1alpha1.AnnotationKeyPreferNoSchedule] = isTrue
	f := NewFacts(fixture.Deployment(3), sets{set}, fixture.Noon)
	for _, nodes := range []*Nodes{nil, {}} {
		f.Nodes = nodes
		next := refreshed(New(f), set, 3, 0)
		if _, marked := next.Annotations[v1alpha1.AnnotationKeyPreferNoSchedule]; marked != (nodes == nil) {
			t.Errorf("nodes known: %t; the record remains: %t", nodes != nil, marked)
		}
	}
}

// TestCurrentSet_MayGrowInPlace checks when an in-place update removes the label that prevents the current set from
// creating Machines: if the rollout is complete, or if the replicas do not exceed its Machines, because it may have
// been an old set that lost Machines.
func TestCurrentSet_MayGrowInPlace(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		old, replicas, machines, next int32
		labelled                      bool
	}{
		"complete, one machine is missing":      {0, 3, 2, 3, false},
		"it has its machines":                   {2, 1, 1, 1, false},
		"one machine is missing":                {2, 2, 1, 2, true},
		"one machine is missing, scaled down":   {2, 2, 1, 1, false},
		"one machine is missing and scaled up":  {2, 2, 1, 3, true},
		"it has its machines, and is scaled up": {2, 1, 1, 3, false},
	} {
		reports := fixture.Reports(test.machines, test.machines)
		current := fixture.Set("b", test.replicas, createsNone, fixture.OfRevision("2"), reports)
		d := fixture.Deployment(3, fixture.InPlace("0", "1"), fixture.OfClass("b"))
		f := withMachines(NewFacts(d, sets{fixture.Set("a", test.old), current}, fixture.Noon))
		if labelled := inplaceupdate.CreatesNone(refreshed(New(f), current, test.next, 0)); labelled != test.labelled {
			t.Errorf("%s: it is labelled: %t, want %t", name, labelled, test.labelled)
		}
	}
}

// TestHistory_KeepsSetWithMovedMachine checks that a set is not deleted if the cache already shows a Machine that was
// moved to it.
func TestHistory_KeepsSetWithMovedMachine(t *testing.T) {
	t.Parallel()
	d := fixture.Deployment(3, fixture.InPlace("0", "1"), fixture.Paused, fixture.OfClass("b"))
	d.Spec.RevisionHistoryLimit = ptr.To(int32(0))
	f := withMachines(NewFacts(d, sets{fixture.Set("a", 0), fixture.Set("b", 3)}, fixture.Noon))
	addMachine(f, f.Old[0], "m", moved)
	if got := planHistory(New(f)); len(got) > 0 {
		t.Errorf("the plan is %+v", got)
	}
}
