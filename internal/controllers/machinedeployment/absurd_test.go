package machinedeployment

import (
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
	"github.com/millwright-dev/millwright/test/support/absurd"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// FuzzReconcile checks that a pass terminates for any objects, that an invalid deployment changes nothing, and
// that no set gets a negative number of replicas or loses Machines that the deployment needs.
func FuzzReconcile(f *testing.F) {
	absurd.Seed(f, func(data []byte) {
		f.Add(data, []byte(nil), false)
		f.Add(data, []byte(nil), true)
		f.Add([]byte(nil), data, true)
	})
	f.Fuzz(func(t *testing.T, ofDeployment, ofSets []byte, rolling bool) {
		const replicas = 4
		deployment := fixture.Deployment(replicas, fixture.Rolling("1", "1"))
		if rolling {
			fixture.OfClass("b")(deployment)
		}
		set, empty := fixture.Set("a", replicas, fixture.WithUID), fixture.Set("c", 0, fixture.WithUID)
		member := fixture.Member(set, "m0")
		absurd.Objects(ofDeployment, deployment)
		absurd.Objects(ofSets, set, empty, member)
		s := newServer(deployment, set, empty, member)
		const passes = 3
		for range passes {
			absurd.Within("a pass", func() { _, _ = s.Reconcile(t.Context(), request) }) // errors are allowed
		}
		sum := int64(0)
		for name, found := range s.all() {
			if found.Spec.Replicas < 0 && len(ofSets) == 0 {
				t.Errorf("set %s has %d replicas", name, found.Spec.Replicas)
			}
			sum += int64(found.Spec.Replicas)
		}
		if len(ofSets) > 0 || deployment.DeletionTimestamp != nil {
			return
		}
		if errs := validation.MachineDeployment(deployment); len(errs) > 0 && touched(s) {
			t.Errorf("writes for an invalid deployment (%v): %q", errs, s.writes)
		}
		if least := min(replicas, int64(max(0, deployment.Spec.Replicas))); len(validation.MachineDeployment(deployment)) == 0 && !unbound(deployment) && sum < least-1 {
			t.Errorf("%d machines remain, want at least %d less one: %q", sum, least, s.lines)
		}
		checkTexts(t, s)
	})
}

// touched reports whether a set was created, scaled or deleted.
func touched(s *server) bool {
	for _, write := range s.writes {
		if !strings.Contains(write, " "+request.Name) || strings.Contains(write, request.Name+"-") {
			return true
		}
	}
	return false
}

// unbound reports whether the strategy allows the deployment to have no Machines temporarily, or its selector does
// not match its Machines.
func unbound(deployment *v1alpha1.MachineDeployment) bool {
	strategy, usual := deployment.Spec.Strategy, fixture.Deployment(1, fixture.Rolling("1", "1"))
	if strategy.Type != usual.Spec.Strategy.Type || strategy.RollingUpdate == nil || strategy.RollingUpdate.MaxUnavailable == nil {
		return true
	}
	selector := deployment.Spec.Selector
	return *strategy.RollingUpdate.MaxUnavailable != *usual.Spec.Strategy.RollingUpdate.MaxUnavailable ||
		selector == nil || len(selector.MatchExpressions) > 0 || len(selector.MatchLabels) != 1 || selector.MatchLabels["name"] != fixture.Pool
}

func checkTexts(t *testing.T, s *server) {
	t.Helper()
	found := &v1alpha1.MachineDeployment{}
	if s.live.Get(t.Context(), request.NamespacedName, found) != nil {
		return // the deployment is deleted
	}
	for _, condition := range found.Status.Conditions {
		if len(condition.Message) > 4096 {
			t.Errorf("condition %s has a message of %d bytes", condition.Type, len(condition.Message))
		}
	}
}
