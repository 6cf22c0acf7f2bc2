package machine

import (
	"context"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machine/vmupdate"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// updateInstance brings the instance of a Machine that is in use closer to its class, if somebody asked for that. The
// other steps do not wait for it.
func (c *Controller) updateInstance(ctx context.Context, s *scope) flow.Result {
	updater := vmupdate.Updater{Inputs: c.inputs(), Engine: c.Engine}
	pass := vmupdate.Pass{Machine: s.machine, Now: s.now, Events: &s.events, Annotate: func(ctx context.Context, change func(*v1alpha1.Machine)) error {
		return c.patchMachine(ctx, s, change)
	}}
	made, err := updater.Run(ctx, pass)
	s.wakeWithin(made.Wake)
	if op := made.Operation; op.Type != "" {
		s.operation(op.Type, op.State, op.Description, op.ErrorCode)
	}
	return flow.Fail(err)
}
