package rollout

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
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
