package rollout_test

import (
	"math"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/pool/rollout/status"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// checkBounds fails the test if an operation gives a set more replicas than allowed.
func checkBounds(t *rapid.T, f rollout.Facts, op rollout.Operation) {
	sum, was, desired := int64(0), int32(0), reserve.Desired(f.Deployment)
	for _, set := range f.All() {
		sum += int64(set.Spec.Replicas)
	}
	if op.Action == rollout.Scale {
		was = op.Set.Spec.Replicas
	}
	current := op.Action == rollout.Create || op.Set == f.Current
	surge, _ := rollout.Bounds(f.Deployment)
	most := int64(desired) + int64(surge)
	switch after := sum - int64(was) + int64(op.Replicas); {
	case op.Replicas < 0:
		t.Fatalf("%s to %d: %s", op.Action, op.Replicas, op.Reason)
	case current && op.Replicas > desired:
		t.Fatalf("the current set gets %d of %d replicas: %s", op.Replicas, desired, op.Reason)
	case current && op.Replicas > was && !rollout.Replaced(rollout.New(f)) && after > most:
		t.Fatalf("%d replicas requested, at most %d allowed: %s", after, most, op.Reason)
	}
}

// TestPlan_ExtremeNumbers checks that arbitrary values in sets and their status never lead to a negative size, to a
// current set with more replicas than desired, or to a rollout with more replicas than the surge allows.
func TestPlan_ExtremeNumbers(t *testing.T) {
	t.Parallel()
	sizes := rapid.SampledFrom([]int32{0, 1, 2, 3, 5, 10, 100, math.MaxInt32 - 1, math.MaxInt32})
	reported := rapid.SampledFrom([]int32{math.MinInt32, -1, 0, 1, 2, 3, 5, 10, 100, math.MaxInt32 - 1, math.MaxInt32})
	texts := rapid.SampledFrom([]string{"", "0", "1", "3", "-1", "2147483647", "99999999999999999999", "x", "9223372036854775807"})
	bounds := rapid.SampledFrom([]string{"", "0", "1", "2", "30%", "100%", "2147483647", "0%"})
	tier.Check(t, func(t *rapid.T) {
		deployment := fixture.Deployment(sizes.Draw(t, "replicas"), fixture.Rolling(bounds.Draw(t, "surge"), bounds.Draw(t, "unavailable")), fixture.OfClass("c"))
		deployment.Spec.ExcessReplicas = rapid.SampledFrom([]*intstr.IntOrString{nil, ptr.To(intstr.FromInt32(2)), ptr.To(intstr.FromInt32(math.MaxInt32)), ptr.To(intstr.FromString("100%"))}).Draw(t, "excess")
		deployment.Spec.Paused = rapid.Bool().Draw(t, "paused")
		if rollout.Invalid(deployment, nil) != "" {
			t.Skip("the deployment is invalid")
		}
		var all sets
		for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.ID).Draw(t, "sets") {
			set := fixture.Set(name, sizes.Draw(t, "asked"), fixture.WithUID)
			fixture.Reports(reported.Draw(t, "exist"), reported.Draw(t, "available"))(set)
			fixture.PreservedFailed(reported.Draw(t, "preserved"))(set)
			for _, key := range []string{v1alpha1.AnnotationKeyDesiredReplicas, v1alpha1.AnnotationKeyMaxReplicas, v1alpha1.AnnotationKeyRevision, v1alpha1.AnnotationKeyExcessReplicas} {
				set.Annotations[key] = texts.Draw(t, key)
			}
			all = append(all, set)
		}
		f := rollout.NewFacts(deployment, all, fixture.Noon)
		for _, op := range rollout.Plan(rollout.New(f)) {
			if op.Action == rollout.Scale || op.Action == rollout.Create {
				checkBounds(t, f, op)
			}
		}
		if next := status.Next(rollout.New(f), rollout.Outcome{}); min(next.Replicas, next.AvailableReplicas, next.UnavailableReplicas) < 0 {
			t.Fatalf("the status is %+v", next)
		}
	})
}
