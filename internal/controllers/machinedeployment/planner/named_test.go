package planner

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

func TestParseNamed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]Named{
		"":                                 nil,
		"a~" + early:                       {{Name: "a", Time: early}},
		"a~" + early + ", b~" + later:      {{Name: "a", Time: early}, {Name: "b", Time: later}},
		"a,b":                              {{Name: "a"}, {Name: "b"}},
		"a~yesterday,~" + early + ",,b~x~": nil,
	} {
		if diff := cmp.Diff(want, ParseNamed(text)); diff != "" {
			t.Errorf("%q: want - got +\n%s", text, diff)
		}
	}
}

// TestNamedMachinesOfARollout: it is their sets that shrink.
func TestNamedMachinesOfARollout(t *testing.T) {
	t.Parallel()
	f := NewFacts(newDeployment(4, rolling("0", "2"), class("b")), sets{setOf("a", 4, withUID), setOf("b", 2, withUID)}, noon)
	for _, name := range []string{"x", "y"} {
		machine := member(f.Current, name)
		machine.Annotations = map[string]string{v1alpha1.AnnotationKeyMachinePriority: "1", v1alpha1.AnnotationKeyMarkedForDeletionTime: later}
		f.Named = append(f.Named, Named{Name: name, Time: later, Machine: machine})
	}
	for _, set := range f.All() {
		set.Annotations[v1alpha1.AnnotationKeyDesiredReplicas], set.Annotations[v1alpha1.AnnotationKeyMaxReplicas] = "6", "6"
	}
	if diff := cmp.Diff([]string{"pool-b to 0"}, brief(t, Plan(f))); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}

// TestANamedMachineThatGoesIsNotTakenTwice: its set asks for one less already.
func TestANamedMachineThatGoesIsNotTakenTwice(t *testing.T) {
	t.Parallel()
	of4 := scaledFor(4, 5)
	old, current := setOf("a", 2, withUID, of4), setOf("b", 2, withUID, of4)
	first, second := member(old, "first"), member(current, "second")
	first.DeletionTimestamp = &metav1.Time{Time: noon}
	f := NewFacts(newDeployment(2, rolling("1", "1"), class("b")), sets{old, current}, noon)
	f.Named = []Named{{Name: "first", Time: early, Machine: first}, {Name: "second", Time: later, Machine: second}}
	if diff := cmp.Diff([]string{"pool-b to 1"}, brief(t, planReplicas(f))); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}

// FuzzParseNamed: whatever somebody writes there, it is read without harm, and what is kept
// of it is read as the same again.
func FuzzParseNamed(f *testing.F) {
	f.Add("a~" + early + ",b")
	f.Add("~,~~,a~~")
	f.Fuzz(func(t *testing.T, text string) {
		for _, n := range ParseNamed(text) {
			if n.Name == "" || strings.ContainsAny(n.Name, ",~") {
				t.Fatalf("%q names %q", text, n.Name)
			}
			if n.Time == "" {
				continue
			}
			if again := ParseNamed(n.Name + "~" + n.Time); len(again) != 1 || again[0] != n {
				t.Fatalf("%+v is read as %+v", n, again)
			}
		}
	})
}
