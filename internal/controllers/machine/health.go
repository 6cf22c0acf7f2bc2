package machine

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/replacement"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/pool/budget"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// healthChecker sets the phase of a Machine by the health of its node, and decides when the Machine is replaced.
type healthChecker struct {
	*Options
	nodes          *nodeClient
	inPlaceUpdates *inPlaceUpdater
	replacements   *replacement.Limiter
}

const criticalComponents = "critical components on the node"

// replacementRetry is the interval at which a Machine whose replacement is delayed checks whether it may be
// replaced.
const replacementRetry = 5 * time.Second

// assess sets the phase by the health of the node.
func (h *healthChecker) assess(ctx context.Context, s *scope) flow.Result {
	if left := s.copyConditions(noderef.BadConditions(s.machine, h.NodeConditions)); left > 0 {
		return flow.Wait(left, "the conditions of the node, which change too often")
	}
	phase := s.machine.Status.CurrentStatus.Phase
	if isUpdatePhase(phase) {
		return h.awaitRecovery(ctx, s, "a node whose update failed")
	}
	if !h.nodes.healthy(s.machine, s.node) {
		return h.unhealthy(ctx, s, phase)
	}
	if phase == v1alpha1.MachineFailed && readUpdate(s.node).failed() {
		return flow.Wait(0, "the replacement of a node whose update failed")
	}
	if !noderef.CriticalComponentsReady(s.node) {
		switch phase {
		case v1alpha1.MachinePending:
			return h.awaitJoin(ctx, s, criticalComponents)
		case v1alpha1.MachineFailed: // perhaps because they were not ready
			return flow.Wait(0, criticalComponents)
		}
	}
	if phase == v1alpha1.MachineRunning {
		return flow.Continue()
	}
	h.replacements.Release(s.key())
	if err := h.recordJoin(ctx, s); err != nil {
		return flow.Fail(err)
	}
	s.joined()
	return flow.Continue()
}

// recordJoin stores how long a new Machine took to join, for programs that choose timeouts. It needs a separate
// request, since an update of the status cannot change annotations.
func (h *healthChecker) recordJoin(ctx context.Context, s *scope) error {
	took, first := s.joinDuration()
	_, chosen := s.machine.Annotations[v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout]
	_, known := s.machine.Annotations[v1alpha1.AnnotationKeyMachineJoinDuration]
	if !first || known || !chosen && !h.RecordJoins {
		return nil
	}
	return s.patch(ctx, func(machine *v1alpha1.Machine) {
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyMachineJoinDuration, took.String())
	})
}

func (h *healthChecker) unhealthy(ctx context.Context, s *scope, phase v1alpha1.MachinePhase) flow.Result {
	switch phase {
	case v1alpha1.MachinePending:
		return h.awaitJoin(ctx, s, "the node to be ready")
	case v1alpha1.MachineRunning, v1alpha1.MachineInPlaceUpdateSuccessful: // in MCM, the latter has no time limit
		s.unknown(v1alpha1.CauseNodeUnhealthy,
			fmt.Sprintf("Machine %s is unhealthy - changing MachinePhase to Unknown. Node conditions: %s", s.machine.Name, describe(s.machine.Status.Conditions)))
	}
	return h.awaitRecovery(ctx, s, "the node to be healthy")
}

// awaitJoin waits for the node to join until the creation timeout expires.
func (h *healthChecker) awaitJoin(ctx context.Context, s *scope, what string) flow.Result {
	left := s.creationTimeLeft(ctx, h.CreationTimeout)
	if !left.Over() {
		return flow.Wait(left.Wait, what)
	}
	usable, err := h.nodes.usable(ctx, s)
	switch {
	case err != nil:
		return flow.Fail(err)
	case usable:
		return flow.Wait(expectations.StaleCache, "the cache to show that the node has joined")
	}
	s.neverJoined(timeouts.Creation(s.machine, h.CreationTimeout).Duration)
	return flow.Wait(0, what)
}

// awaitRecovery waits for the node to recover until the health timeout, or the timeout of the in-place update,
// expires.
func (h *healthChecker) awaitRecovery(ctx context.Context, s *scope, what string) flow.Result {
	if s.machine.Status.CurrentStatus.Phase == v1alpha1.MachineInPlaceUpdating {
		return h.inPlaceUpdates.await(ctx, s)
	}
	if !budget.MayTimeOut(s.machine.Status.CurrentStatus.Phase) || timeouts.HealthDisabled(s.machine) {
		return flow.Wait(0, what)
	}
	left := s.outages.Countdown(ctx, s.phaseBegan(), timeouts.Health(s.machine, h.Health.Timeout))
	if !left.Over() {
		return flow.Wait(left.Wait, what)
	}
	return h.replace(ctx, s, what)
}

// replace sets the phase Failed, unless too many other Machines are being replaced or the API server reports a
// healthy node. It reads the node last, so that a large pool of failing nodes does not cost many reads.
func (h *healthChecker) replace(ctx context.Context, s *scope, what string) flow.Result {
	timeout := timeouts.Health(s.machine, h.Health.Timeout).Duration
	verdict, err := h.mayReplace(ctx, s.machine)
	switch {
	case err != nil:
		return flow.Fail(err)
	case !verdict.Allowed():
		s.replacementDelayed(timeout, verdict)
		return flow.Wait(replacementRetry, "the replacement of other machines")
	}
	usable, err := h.nodes.usable(ctx, s)
	switch {
	case err != nil:
		h.replacements.Release(s.key())
		return flow.Fail(err)
	case usable:
		h.replacements.Release(s.key())
		return flow.Wait(expectations.StaleCache, "the cache to show that the node recovered")
	}
	s.healthTimedOut(timeout)
	return flow.Wait(0, what)
}

// mayReplace decides whether a Machine may become Failed now, according to the policy of its MachineSet.
func (h *healthChecker) mayReplace(ctx context.Context, machine *v1alpha1.Machine) (budget.Verdict, error) {
	policy, err := replacement.PolicyOf(ctx, h.Client, machine)
	if err != nil {
		return budget.Verdict{}, err
	}
	return h.replacements.Allow(ctx, h.Client, replacement.Request{
		Machine: machine, Policy: policy, Now: h.Clock.Now(),
		Limit: h.Health.MaxReplacements, TotalLimit: ptr.Deref(h.Health.MaxTotalReplacements, h.Health.MaxReplacements),
		Zone: func(of *v1alpha1.Machine) string { return h.zoneOf(ctx, of) },
	})
}

// zoneOf returns the zone of a Machine's class. It is empty if the zone is not known.
func (h *healthChecker) zoneOf(ctx context.Context, machine *v1alpha1.Machine) string {
	if machine.Spec.Class.Kind != v1alpha1.MachineClassKind {
		return ""
	}
	class := &v1alpha1.MachineClass{}
	if h.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.Class.Name}, class, client.UnsafeDisableDeepCopy) != nil {
		return ""
	}
	return scarcity.Zone(class)
}
