package machine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/nodes"
	"github.com/millwright-dev/millwright/internal/pool/budget"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// adopter finds the node of a Machine and marks it as the Machine's node.
type adopter struct {
	*Options
	nodes  *nodeClient
	health *healthChecker
	tokens bootstrapTokens
}

// awaitNode finds the node, or waits for it to join.
func (a *adopter) awaitNode(ctx context.Context, s *scope) flow.Result {
	if a.Target == nil {
		if budget.MayTimeOut(s.machine.Status.CurrentStatus.Phase) {
			return a.health.awaitRecovery(ctx, s, "the VM to reappear")
		}
		return flow.Stop("no target cluster is configured")
	}
	if !a.Target.Ready() {
		return flow.Wait(targetRetry, "the target cluster")
	}
	if err := a.restoreNodeName(ctx, s); err != nil {
		return flow.Fail(err)
	}
	name := s.machine.NodeName()
	found, foreign, err := a.nodes.read(ctx, s, name)
	switch {
	case err != nil:
		return flow.Fail(err)
	case found == nil:
		return a.awaitMissingNode(ctx, s, name)
	case !a.nodes.Fresh(found):
		return flow.Wait(expectations.StaleCache, "the cache to show what was written to the node")
	case foreign != nil:
		return a.awaitOwnNode(ctx, s, name, *foreign)
	}
	s.node = found
	return flow.Continue()
}

// restoreNodeName restores the node's name on a Machine. Without it, the node would count as missing and the VM
// would be replaced.
func (a *adopter) restoreNodeName(ctx context.Context, s *scope) error {
	if s.machine.NodeName() != "" {
		return nil
	}
	name, err := nodes.Marked(ctx, a.Target.Client(), s.machine)
	if err != nil || name == "" {
		return err
	}
	return s.recordNode(ctx, instance.Instance{NodeName: name}, "")
}

// foreignNodeRetry is the interval at which a Machine checks whether a node is its own. The change that resolves
// a conflict may not trigger a pass.
const foreignNodeRetry = time.Minute

// awaitOwnNode ignores a node that is not the Machine's. The Machine's own node then counts as missing, but that
// does not make a Running Machine unhealthy.
func (a *adopter) awaitOwnNode(ctx context.Context, s *scope, node string, foreign foreignNode) flow.Result {
	s.nodeOfOther = true
	s.requeueWithin(foreignNodeRetry)
	message := fmt.Sprintf("Node %s %s; ignoring it despite the label %q", node, foreign.predicate, v1alpha1.NodeLabelKey)
	s.warnOfNode(foreign.reason, message)
	if s.machine.Status.CurrentStatus.Phase == v1alpha1.MachinePending {
		return a.health.awaitJoin(ctx, s, message)
	}
	return a.health.awaitRecovery(ctx, s, message)
}

const topicNode = "node"

// warnOfNode adds a warning on the Machine and its node, unless the last one was the same.
func (s *scope) warnOfNode(reason, message string) {
	if s.node != nil {
		s.events.warnOnce(topicNode, pendingEvent{reason: reason, message: message, node: s.node})
	}
	s.events.warnOnce(topicNode, pendingEvent{reason: reason, message: message})
}

func (a *adopter) awaitMissingNode(ctx context.Context, s *scope, name string) flow.Result {
	switch s.machine.Status.CurrentStatus.Phase {
	case v1alpha1.MachineRunning, v1alpha1.MachineInPlaceUpdateSuccessful:
		s.unknown(v1alpha1.CauseNodeMissing, fmt.Sprintf("Node object went missing. Machine %s is unhealthy - changing MachineState to Unknown", s.machine.Name))
	case v1alpha1.MachinePending:
		if err := a.tokens.keep(ctx, s); err != nil {
			return flow.Fail(err)
		}
		return a.health.awaitJoin(ctx, s, fmt.Sprintf("node %q to join", name))
	}
	return a.health.awaitRecovery(ctx, s, fmt.Sprintf("node %q to appear", name))
}

// followNode deletes the Machine if its node is being deleted. Our finalizer keeps the node until the VM is gone.
func (a *adopter) followNode(ctx context.Context, s *scope) flow.Result {
	if s.node.DeletionTimestamp.IsZero() {
		return flow.Continue()
	}
	if err := a.Client.Delete(ctx, s.machine, client.Preconditions{UID: &s.machine.UID}); apierror.IgnoreGone(err) != nil {
		return flow.Fail(fmt.Errorf("deleting machine %s after its node: %w", s.machine.Name, err))
	}
	s.events.addToBoth(s.node, corev1.EventTypeNormal, reasonNodeDeleted, cause{name: v1alpha1.CauseNodeDeleted}, fmt.Sprintf("Node %s was deleted; deleting the machine, too", s.node.Name))
	return flow.Wait(0, "the deletion of the Machine")
}

// registrationGrace is how long the controller waits before it writes to a new node that is not ready. Many
// kubelets update the node right after they register it, and our write of the taints has an optimistic lock.
const registrationGrace = 250 * time.Millisecond

// awaitRegistration waits for the kubelet to complete its registration. It does not wait for the node to be ready,
// since the taints of the template must be on the node before that.
func (a *adopter) awaitRegistration(_ context.Context, s *scope) flow.Result {
	busy := s.machine.Status.CurrentStatus.Phase == v1alpha1.MachinePending &&
		!controllerutil.ContainsFinalizer(s.node, v1alpha1.FinalizerNode) &&
		!noderef.Healthy(s.node.Status.Conditions, nil)
	if busy {
		if s.memory.registering != s.node.Name {
			s.memory.registering, s.memory.registeringSince = s.node.Name, s.now
		}
		if left := s.memory.registeringSince.Add(registrationGrace).Sub(s.now); left > 0 {
			return flow.Wait(left, "the kubelet to finish its registration")
		}
	}
	s.memory.registering = ""
	return flow.Continue()
}

// setCapacity sets the virtual capacity of the class on the node.
func (a *adopter) setCapacity(ctx context.Context, s *scope) flow.Result {
	if s.machine.Spec.Class.Kind != v1alpha1.MachineClassKind {
		return flow.Continue()
	}
	class := &v1alpha1.MachineClass{}
	key := types.NamespacedName{Namespace: s.machine.Namespace, Name: s.machine.Spec.Class.Name}
	if err := a.Client.Get(ctx, key, class); err != nil {
		if apierrors.IsNotFound(err) {
			return flow.Continue()
		}
		return flow.Fail(fmt.Errorf("reading MachineClass %s: %w", key.Name, err))
	}
	err := s.unlessRefused(reasonCapacityRefused, noderef.VirtualCapacity(class), func() error {
		return a.nodes.patchStatus(ctx, &s.node, func(n *corev1.Node) { noderef.SetCapacity(n, noderef.VirtualCapacity(class)) })
	})
	if errors.Is(err, errRefused) {
		return flow.Continue()
	}
	s.class = class
	return flow.Fail(err)
}

// adoptNode marks the node as the Machine's and applies the node template. If the API server refuses the
// template, it still marks the node, so that the node is not deleted before its VM.
func (a *adopter) adoptNode(ctx context.Context, s *scope) flow.Result {
	message := ""
	if invalid := noderef.Invalid(s.node, s.machine); len(invalid) > 0 {
		message = fmt.Sprintf("Ignored invalid parts of the node template for node %s: %s", s.node.Name, strings.Join(invalid, "; "))
	}
	s.events.warnOrForget(reasonInvalidTemplate, pendingEvent{reason: reasonInvalidTemplate, message: message})
	err := s.unlessRefused(reasonTemplateRefused, &s.machine.Spec.NodeTemplateSpec, func() error {
		return a.nodes.patch(ctx, &s.node, func(n *corev1.Node) error {
			if s.class != nil {
				if err := noderef.RecordCapacity(n, noderef.VirtualCapacity(s.class)); err != nil {
					return err
				}
			}
			return noderef.Adopt(n, s.machine)
		})
	})
	if errors.Is(err, errRefused) {
		err = a.nodes.patch(ctx, &s.node, func(n *corev1.Node) error {
			noderef.Mark(n, s.machine)
			return nil
		})
	}
	if err != nil {
		return flow.Fail(err)
	}
	return flow.Fail(a.compareProviderIDs(ctx, s))
}

// compareProviderIDs adds a warning if the node's provider ID differs from the Machine's, or if another node has
// the same one. It only warns, since the IDs of some kubelets differ from those of their drivers only in format.
func (a *adopter) compareProviderIDs(ctx context.Context, s *scope) error {
	var conflicts []string
	ofNode, ours := s.node.Spec.ProviderID, s.machine.Spec.ProviderID
	if ofNode != "" && ofNode != ours {
		conflicts = append(conflicts, fmt.Sprintf("Node %s has provider ID %s, but the machine has %s", s.node.Name, ofNode, ours))
	}
	duplicate, err := nodes.Duplicate(ctx, a.Target.Client(), ours, s.node.Name)
	if err != nil {
		return err
	}
	if duplicate != "" {
		conflicts = append(conflicts, fmt.Sprintf("Node %s also has provider ID %s; the machine uses node %s", duplicate, ours, s.node.Name))
	}
	if len(conflicts) == 0 {
		s.memory.sent.Over(topicNode)
		return nil
	}
	s.warnOfNode(reasonOtherVM, strings.Join(conflicts, ". "))
	return nil
}
