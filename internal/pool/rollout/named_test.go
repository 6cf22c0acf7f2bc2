package rollout

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/deletion"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func TestParseNamed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]Named{
		"":                   nil,
		"a~" + fixture.Early: {{Name: "a", Time: fixture.Early}},
		"a~" + fixture.Early + ", b~" + fixture.Later: {{Name: "a", Time: fixture.Early}, {Name: "b", Time: fixture.Later}},
		"a,b": {{Name: "a"}, {Name: "b"}},
		"a~" + fixture.Early + ",a~" + fixture.Later: {{Name: "a", Time: fixture.Later}},
		"a~" + fixture.Later + ",a~" + fixture.Early: {{Name: "a", Time: fixture.Later}},
		"a,a~" + fixture.Early:                       {{Name: "a", Time: fixture.Early}},
		"a~" + fixture.Early + ",a":                  {{Name: "a", Time: fixture.Early}},
		"a~yesterday,~" + fixture.Early + ",,b~x~":   nil,
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

// TestNamedMachines_AreRecorded checks for Machines that an autoscaler named: which ones are marked and since when,
// which ones remain in the annotation of the deployment, and when the deployment and its set count as scaled. A set
// deletes the Machines that were named before it was scaled.
func TestNamedMachines_AreRecorded(t *testing.T) {
	t.Parallel()
	const (
		early, later, noon = fixture.Early, fixture.Later, "2026-01-02T12:00:00Z"
		atEarly, atLater   = "m~" + early, "m~" + later
		otherAtLater       = "n~" + later
		latestFirst        = otherAtLater + "," + atEarly
		latestLast         = atEarly + "," + otherAtLater
	)
	type machines = map[string][]func(*v1alpha1.Machine)
	in := func(phase v1alpha1.MachinePhase) func(*v1alpha1.Machine) {
		return func(m *v1alpha1.Machine) { m.Status.CurrentStatus.Phase = phase }
	}
	marked, failed, terminating := fixture.MarkedAt(early), in(v1alpha1.MachineFailed), in(v1alpha1.MachineTerminating)
	leaving := func(m *v1alpha1.Machine) { m.DeletionTimestamp = &metav1.Time{Time: fixture.Noon} }
	preserved := fixture.PreservedUntil(fixture.Noon.Add(time.Hour))
	one, two := machines{"m": nil}, machines{"m": nil, "n": nil}
	for name, test := range map[string]struct {
		// names is the autoscaler's annotation. scaled is when it scaled the deployment.
		names, scaled string
		machines      machines
		// marks are the Machines to mark. left is the annotation after that. deployment and set are when these
		// count as scaled.
		marks, left, deployment, set string
	}{
		"named, then scaled":        {atEarly, later, one, atEarly, atEarly, later, later},
		"marked before":             {atEarly, later, machines{"m": {marked}}, "", atEarly, later, later},
		"named again later":         {atLater, later, machines{"m": {marked}}, atLater, atLater, later, later},
		"not scaled":                {latestLast, "", two, latestLast, latestLast, "", later},
		"not scaled, another order": {latestFirst, "", two, latestFirst, latestFirst, "", later},
		"old format":                {"m", early, one, atEarly, atEarly, early, early},
		"old format, not scaled":    {"m", "", one, "m~" + noon, "m~" + noon, noon, noon},
		"old format, marked before": {"m", "", machines{"m": {marked}}, "", atEarly, early, early},
		"old format, it is gone":    {"m,n~" + later, "", machines{"n": nil}, otherAtLater, otherAtLater, "", later},
		"it is gone":                {atLater, "", nil, "", "", "", ""},
		"it is being deleted":       {atLater, "", machines{"m": {leaving}}, "", "", "", ""},
		"it is Terminating":         {atLater, "", machines{"m": {terminating}}, "", "", "", ""},
		"it failed":                 {atLater, "", machines{"m": {failed}}, "", "", "", ""},
		"it failed, but is kept":    {atLater, "", machines{"m": {failed, preserved}}, atLater, atLater, "", later},
	} {
		t.Run(name, func(t *testing.T) {
			d := fixture.Deployment(3, annotated(v1alpha1.AnnotationKeyTriggerDeletion, test.names))
			if test.scaled != "" {
				annotated(v1alpha1.AnnotationKeyLastReplicaChange, test.scaled)(d)
			}
			f := NewFacts(d, sets{fixture.Set("a", 3, fixture.WithUID)}, fixture.Noon)
			for _, n := range ParseNamed(test.names) {
				if changes, exists := test.machines[n.Name]; exists {
					n.Machine = fixture.Running(f.Current, n.Name, changes...)
				}
				f.Named = append(f.Named, n)
			}
			var marks []string
			for _, op := range planMarks(New(f)) {
				marks = append(marks, op.Machine.Name+"~"+op.Since)
				deletion.Mark(op.Machine, op.Since)
			}
			r, set := New(f), f.Current
			for _, op := range Plan(r) {
				set = op.Next
			}
			is := r.Annotated(d).Annotations
			if slices.Contains(slices.Collect(maps.Values(is)), "") {
				t.Errorf("an annotation of the deployment has no value: %v", is)
			}
			got := []string{
				strings.Join(marks, ","), is[v1alpha1.AnnotationKeyTriggerDeletion],
				is[v1alpha1.AnnotationKeyLastReplicaChange], set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange],
			}
			if diff := cmp.Diff([]string{test.marks, test.left, test.deployment, test.set}, got); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
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
