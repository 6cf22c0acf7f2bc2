package machine

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machine/passevents"
	"github.com/millwright-dev/millwright/internal/lifecycle/replacement"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/pool/budget"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// giveUp sets the phase Failed, unless too many others are being replaced, or the API server has a
// healthy node. That is read last, so that a large pool of failing nodes does not cost many reads.
func (c *Controller) giveUp(ctx context.Context, s *scope, what string) flow.Result {
	verdict, err := c.mayReplace(ctx, s.machine)
	switch {
	case err != nil:
		return flow.Fail(err)
	case !verdict.Allowed():
		s.replacementDelayed(timeouts.Health(s.machine, c.Health.Timeout).Duration, verdict)
		return flow.Wait(replacementRetry, "the replacement of other machines")
	}
	usable, err := c.usable(ctx, s)
	switch {
	case err != nil:
		c.replacements.Release(s.key())
		return flow.Fail(err)
	case usable:
		c.replacements.Release(s.key())
		return flow.Wait(expectations.StaleCache, "the cache to show that the node recovered")
	}
	s.healthTimedOut(timeouts.Health(s.machine, c.Health.Timeout).Duration)
	return flow.Wait(0, what)
}

// mayReplace decides, by the policy of its set, whether a Machine may become Failed now.
func (c *Controller) mayReplace(ctx context.Context, machine *v1alpha1.Machine) (budget.Verdict, error) {
	policy, err := replacement.PolicyOf(ctx, c.Client, machine)
	if err != nil {
		return budget.Verdict{}, err
	}
	return c.replacements.Allow(ctx, c.Client, replacement.Request{
		Machine: machine, Policy: policy, Now: c.Clock.Now(),
		Limit: c.Health.MaxReplacements, TotalLimit: ptr.Deref(c.Health.MaxTotalReplacements, c.Health.MaxReplacements),
		Zone: func(of *v1alpha1.Machine) string { return c.zoneOf(ctx, of) },
	})
}

// zoneOf returns the zone of the class of a Machine; empty if it is not known.
func (c *Controller) zoneOf(ctx context.Context, machine *v1alpha1.Machine) string {
	if machine.Spec.Class.Kind != v1alpha1.MachineClassKind {
		return ""
	}
	class := &v1alpha1.MachineClass{}
	if c.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.Class.Name}, class, client.UnsafeDisableDeepCopy) != nil {
		return ""
	}
	return scarcity.Zone(class)
}

// replacementDelayed records that the health timeout is over, and what the replacement waits for.
func (s *scope) replacementDelayed(timeout time.Duration, verdict budget.Verdict) {
	sentence := fmt.Sprintf("Machine %s health checks failing since last %v. It is not Failed yet, as other machines of %q are being replaced.",
		s.machine.Name, timeout, replacement.PoolOf(s.machine))
	if verdict.Reason != "" {
		sentence = fmt.Sprintf("Machine %s health checks failing since last %v. It is not Failed yet: %s.", s.machine.Name, timeout, verdict.Reason)
	}
	if s.operation(v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, sentence, "") {
		s.events.Add(corev1.EventTypeWarning, reasonDelayed, passevents.Cause{Name: cmp.Or(verdict.Cause, v1alpha1.CauseReplacementDelayed)}, sentence)
	}
}
