package machine

import (
	"context"

	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// bootstrapTokens keeps the bootstrap token of a Machine valid until its node has joined.
type bootstrapTokens struct{ *Options }

// keep renews the token before it expires. Without a target cluster, it does nothing.
func (t bootstrapTokens) keep(ctx context.Context, s *scope) error {
	if t.Tokens == nil {
		return nil
	}
	next, err := t.Tokens.Keep(ctx, s.key(), timeouts.Creation(s.machine, t.CreationTimeout).Duration)
	if err != nil {
		return err
	}
	s.requeueWithin(next)
	return nil
}

// revokeOfJoined deletes the token after the kubelet has its own credentials. It does so while the Machine does not have
// the node's conditions, that is, until the status of this pass is stored. So the token is deleted even after a crash.
func (t bootstrapTokens) revokeOfJoined(ctx context.Context, s *scope) flow.Result {
	if noderef.Reported(s.machine.Status.Conditions) || !noderef.Reported(s.node.Status.Conditions) {
		return flow.Continue()
	}
	return flow.Fail(t.Tokens.Revoke(ctx, s.key()))
}

// revokeOfUnjoined deletes the token of a Machine that is being deleted before its node has joined.
func (t bootstrapTokens) revokeOfUnjoined(ctx context.Context, s *scope) flow.Result {
	if t.Tokens == nil || noderef.Reported(s.machine.Status.Conditions) {
		return flow.Continue()
	}
	return flow.Fail(t.Tokens.Revoke(ctx, s.key()))
}
