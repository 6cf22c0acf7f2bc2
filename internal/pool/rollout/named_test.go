package rollout

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func TestParseNamed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]Named{
		"":                   nil,
		"a~" + fixture.Early: {{Name: "a", Time: fixture.Early}},
		"a~" + fixture.Early + ", b~" + fixture.Later: {{Name: "a", Time: fixture.Early}, {Name: "b", Time: fixture.Later}},
		"a,b": {{Name: "a"}, {Name: "b"}},
		"a~yesterday,~" + fixture.Early + ",,b~x~": nil,
	} {
		if diff := cmp.Diff(want, ParseNamed(text)); diff != "" {
			t.Errorf("%q: want - got +\n%s", text, diff)
		}
	}
}

// TestNamedMachines_DuringRollout checks that the sets of named Machines are scaled down.
func TestNamedMachines_DuringRollout(t *testing.T) {
	t.Parallel()
	f := NewFacts(fixture.Deployment(4, fixture.Rolling("0", "2"), fixture.OfClass("b")), sets{fixture.Set("a", 4, fixture.WithUID), fixture.Set("b", 2, fixture.WithUID)}, fixture.Noon)
	for _, name := range []string{"x", "y"} {
		machine := fixture.Member(f.Current, name)
		machine.Annotations = map[string]string{v1alpha1.AnnotationKeyMachinePriority: "1", v1alpha1.AnnotationKeyMarkedForDeletionTime: fixture.Later}
		f.Named = append(f.Named, Named{Name: name, Time: fixture.Later, Machine: machine})
	}
	for _, set := range f.All() {
		set.Annotations[v1alpha1.AnnotationKeyDesiredReplicas], set.Annotations[v1alpha1.AnnotationKeyMaxReplicas] = "6", "6"
	}
	if diff := cmp.Diff([]string{"pool-b to 0"}, brief(t, Plan(New(f)))); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}

// TestNamedMachines_AreCountedOnce checks that a named Machine that is being deleted is not subtracted
// again.
func TestNamedMachines_AreCountedOnce(t *testing.T) {
	t.Parallel()
	of4 := fixture.ScaledFor(4, 5)
	old, current := fixture.Set("a", 2, fixture.WithUID, of4), fixture.Set("b", 2, fixture.WithUID, of4)
	first, second := fixture.Member(old, "first"), fixture.Member(current, "second")
	first.DeletionTimestamp = &metav1.Time{Time: fixture.Noon}
	f := NewFacts(fixture.Deployment(2, fixture.Rolling("1", "1"), fixture.OfClass("b")), sets{old, current}, fixture.Noon)
	f.Named = []Named{{Name: "first", Time: fixture.Early, Machine: first}, {Name: "second", Time: fixture.Later, Machine: second}}
	if diff := cmp.Diff([]string{"pool-b to 1"}, brief(t, planReplicas(New(f)))); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}

// TestNamedMachines_BeyondScaling checks that a set loses no more Machines than it has, and no more than the deployment
// was scaled down by, however many are named.
func TestNamedMachines_BeyondScaling(t *testing.T) {
	t.Parallel()
	of4 := fixture.ScaledFor(4, 5)
	for reason, test := range map[string]struct {
		desired, ofOld, ofCurrent int32
		old, current              []string // the named Machines
		want                      []string
	}{
		"one too many is named": {3, 3, 2, []string{"m1"}, []string{"n1"}, []string{"pool-a to 2"}},
		"the set has only one":  {1, 1, 3, []string{"m1", "m2"}, nil, []string{"pool-a to 0", "pool-b to 1"}},
	} {
		old := fixture.Set("a", test.ofOld, fixture.WithUID, of4)
		current := fixture.Set("b", test.ofCurrent, fixture.WithUID, of4)
		deployment := fixture.Deployment(test.desired, fixture.Rolling("1", "1"), fixture.OfClass("b"))
		f := NewFacts(deployment, sets{old, current}, fixture.Noon)
		for set, names := range map[*v1alpha1.MachineSet][]string{old: test.old, current: test.current} {
			for _, name := range names {
				machine := fixture.Running(set, name, fixture.MarkedAt(fixture.Early))
				f.Named = append(f.Named, Named{Name: name, Time: fixture.Early, Machine: machine})
			}
		}
		if diff := cmp.Diff(test.want, brief(t, planReplicas(New(f)))); diff != "" {
			t.Errorf("%s: want - got +\n%s", reason, diff)
		}
	}
}

// FuzzParseNamed checks that parsing never panics, and that parsed entries are parsed in the same way again.
func FuzzParseNamed(f *testing.F) {
	f.Add("a~" + fixture.Early + ",b")
	f.Add("~,~~,a~~")
	f.Fuzz(func(t *testing.T, text string) {
		for _, n := range ParseNamed(text) {
			if n.Name == "" || strings.ContainsAny(n.Name, ",~") {
				t.Fatalf("%q leads to the name %q", text, n.Name)
			}
			if n.Time == "" {
				continue
			}
			if again := ParseNamed(n.Name + "~" + n.Time); len(again) != 1 || again[0] != n {
				t.Fatalf("%+v is parsed as %+v", n, again)
			}
		}
	})
}
