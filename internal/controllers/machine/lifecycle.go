package machine

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// lifecycle returns the steps from a Machine's creation to a healthy node.
func (c *Controller) lifecycle() []flow.Step[*scope] {
	return []flow.Step[*scope]{
		{Name: "AddFinalizer", Run: c.addFinalizer},
		{Name: "EnsureInstance", Run: c.ensureInstance},
		{Name: "AwaitNode", Run: c.awaitNode},
		{Name: "FollowNode", Run: c.followNode},
		{Name: "AwaitRegistration", Run: c.awaitRegistration},
		{Name: "SetCapacity", Run: c.setCapacity},
		{Name: "AdoptNode", Run: c.adoptNode},
		{Name: "RevokeToken", Run: c.revokeTokenOfJoined},
		{Name: "AssessHealth", Run: c.assessHealth},
	}
}

func (c *Controller) addFinalizer(ctx context.Context, s *scope) flow.Result {
	if controllerutil.ContainsFinalizer(s.machine, v1alpha1.FinalizerMCM) {
		return flow.Continue()
	}
	return flow.Fail(c.patchMachine(ctx, s, func(machine *v1alpha1.Machine) {
		controllerutil.AddFinalizer(machine, v1alpha1.FinalizerMCM)
	}))
}
