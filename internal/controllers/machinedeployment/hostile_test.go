package machinedeployment

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestAbsurdNumbers: whatever somebody wrote into sets and their status, no set gets a negative
// size, the current one no more than is wanted, and no rollout more than the surge allows.
func TestAbsurdNumbers(t *testing.T) {
	sizes := rapid.SampledFrom([]int32{0, 1, 2, 3, 5, 10, 100, math.MaxInt32 - 1, math.MaxInt32})
	reported := rapid.SampledFrom([]int32{math.MinInt32, -1, 0, 1, 2, 3, 5, 10, 100, math.MaxInt32 - 1, math.MaxInt32})
	texts := rapid.SampledFrom([]string{"", "0", "1", "3", "-1", "2147483647", "99999999999999999999", "x", "9223372036854775807"})
	bounds := rapid.SampledFrom([]string{"", "0", "1", "2", "30%", "100%", "2147483647", "0%"})
	rapid.Check(t, func(t *rapid.T) {
		deployment := newDeployment(sizes.Draw(t, "replicas"), rolling(bounds.Draw(t, "surge"), bounds.Draw(t, "unavailable")), class("c"))
		deployment.Spec.Paused = rapid.Bool().Draw(t, "paused")
		if problem(deployment, nil) != "" {
			t.Skip("it is refused")
		}
		var all sets
		for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.ID).Draw(t, "sets") {
			set := setOf(name, sizes.Draw(t, "asked"), withUID)
			reports(reported.Draw(t, "exist"), reported.Draw(t, "available"))(set)
			preserved(reported.Draw(t, "preserved"))(set)
			for _, key := range []string{v1alpha1.AnnotationKeyDesiredReplicas, v1alpha1.AnnotationKeyMaxReplicas, v1alpha1.AnnotationKeyRevision} {
				set.Annotations[key] = texts.Draw(t, key)
			}
			all = append(all, set)
		}
		f := gather(deployment, all, noon)
		for _, op := range plan(f) {
			if op.action == scale || op.action == create {
				judge(t, f, op)
			}
		}
		for _, n := range []int32{nextStatus(f, nil).Replicas, nextStatus(f, nil).AvailableReplicas, nextStatus(f, nil).UnavailableReplicas} {
			if n < 0 {
				t.Fatalf("the status says %+v", nextStatus(f, nil))
			}
		}
	})
}

// judge fails if an operation gives a set more than it may have.
func judge(t *rapid.T, f facts, op operation) {
	sum, was, wanted := int64(0), int32(0), f.deployment.Spec.Replicas
	for _, set := range f.all() {
		sum += int64(set.Spec.Replicas)
	}
	if op.action == scale {
		was = op.set.Spec.Replicas
	}
	current := op.action == create || op.set == f.current
	most := int64(wanted) + int64(f.surge)
	switch after := sum - int64(was) + int64(op.replicas); {
	case op.replicas < 0:
		t.Fatalf("%s to %d: %s", op.action, op.replicas, op.reason)
	case current && op.replicas > wanted:
		t.Fatalf("the current set gets %d of %d: %s", op.replicas, wanted, op.reason)
	case current && op.replicas > was && !replaced(f) && after > most:
		t.Fatalf("%d are asked for, of at most %d: %s", after, most, op.reason)
	}
}

// TestTheLastOfAllRevisions: no number comes after it, so it does not count.
func TestTheLastOfAllRevisions(t *testing.T) {
	const last = "9223372036854775807"
	numbered := func(number string) func(*v1alpha1.MachineDeployment) {
		return func(d *v1alpha1.MachineDeployment) {
			class("b")(d)
			d.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: number}
		}
	}
	for name, test := range map[string]struct {
		deployment string
		sets       sets
		want       string
	}{
		"an old set's":           {"1", sets{setOf("a", 0, withUID, ofRevision(last)), setOf("b", 3, withUID, ofRevision("2"))}, "2"},
		"an old set's, and none": {"1", sets{setOf("a", 0, withUID, ofRevision(last))}, "2"},
		"the deployment's":       {last, sets{setOf("a", 0, withUID, ofRevision("4"))}, "5"},
		"the current set's":      {"1", sets{setOf("a", 0, withUID, ofRevision("4")), setOf("b", 3, withUID, ofRevision(last))}, last},
		"the last but one":       {"1", sets{setOf("a", 0, withUID, ofRevision("9223372036854775806")), setOf("b", 3, withUID, ofRevision("2"))}, last},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(newDeployment(3, numbered(test.deployment)))
			for _, set := range test.sets {
				must(s.live.Create(t.Context(), set))
			}
			s.Target = nil
			for range 5 {
				s.pass(t)
			}
			for _, set := range s.all() {
				got := set.Annotations
				if set.Spec.Template.Spec.Class.Name == "b" && (got[v1alpha1.AnnotationKeyRevision] != test.want || strings.Contains(got[v1alpha1.AnnotationKeyRevisionHistory], ",")) {
					t.Errorf("its revision is %s, the history %q", got[v1alpha1.AnnotationKeyRevision], got[v1alpha1.AnnotationKeyRevisionHistory])
				}
			}
			if got := s.deployment().Annotations[v1alpha1.AnnotationKeyRevision]; got != test.want {
				t.Errorf("the deployment's revision is %s, want %s", got, test.want)
			}
		})
	}
}

// TestTheHistoryOfRevisionsIsBounded: the oldest numbers go.
func TestTheHistoryOfRevisionsIsBounded(t *testing.T) {
	set := setOf("a", 0, ofRevision("77"))
	set.Annotations[v1alpha1.AnnotationKeyRevisionHistory] = "1,2," + strings.Repeat("300,", 600) + "76"
	setRevision(set, 100)
	got := set.Annotations[v1alpha1.AnnotationKeyRevisionHistory]
	if len(got) > longestHistory || len(got) < longestHistory-4 || !strings.HasPrefix(got, "300,") || !strings.HasSuffix(got, ",300,76,77") {
		t.Errorf("%d characters: %.20s…%s", len(got), got, got[max(0, len(got)-20):])
	}
	set.Annotations[v1alpha1.AnnotationKeyRevision] = strings.Repeat("x", longestHistory+1)
	setRevision(set, 101)
	if got := set.Annotations[v1alpha1.AnnotationKeyRevisionHistory]; len(got) > longestHistory {
		t.Errorf("%d characters", len(got))
	}
}

// TestNumbersAreNeverNegative: those that a set asks for, and those that it reports.
func TestNumbersAreNeverNegative(t *testing.T) {
	for name, test := range map[string]struct {
		set                 *v1alpha1.MachineSet
		asked, usable, kept int32
	}{
		"as it should be":      {setOf("a", 5, reports(5, 3), preserved(1)), 5, 3, 1},
		"asks for less":        {setOf("a", -5, reports(5, 3), preserved(1)), 0, 0, 0},
		"less is available":    {setOf("a", 5, reports(5, -3), preserved(1)), 5, 0, 1},
		"less is preserved":    {setOf("a", 5, reports(5, 3), preserved(-1)), 5, 3, 0},
		"more than it has":     {setOf("a", 5, reports(5, 9), preserved(9)), 5, 5, 0},
		"more are preserved":   {setOf("a", 5, reports(5, 3), preserved(9)), 5, 3, 2},
		"fewer than there are": {setOf("a", 5, reports(-1, 0)), 5, 0, 0},
	} {
		if asked, usable, kept := asked(test.set), usable(test.set), kept(test.set); asked != test.asked || usable != test.usable || kept != test.kept || existing(test.set) < asked {
			t.Errorf("%s: it asks for %d, %d are usable and %d kept, of %d", name, asked, usable, kept, existing(test.set))
		}
	}
}
