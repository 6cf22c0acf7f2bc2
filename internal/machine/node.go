package machine

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/flow"
	"github.com/millwright-dev/millwright/internal/node"
)

// targetAway is how long a pass waits that needs a target which does not answer. The
// target's nodes are no help: a Machine that has none yet gets no event.
const targetAway = 5 * time.Second

// awaitNode finds the Machine's node.
func (c *Controller) awaitNode(ctx context.Context, s *scope) flow.Result {
	if c.Target == nil {
		return flow.Stop("there is no target cluster to join")
	}
	if !c.Target.Ready() {
		return flow.Wait(targetAway, "the target cluster")
	}
	name := s.machine.Labels[v1alpha1.NodeLabelKey]
	found := &corev1.Node{}
	err := c.Target.Client().Get(ctx, types.NamespacedName{Name: name}, found)
	if apierrors.IsNotFound(err) {
		return c.nodeAbsent(s, name)
	}
	if err != nil {
		return flow.Fail(fmt.Errorf("reading node %s: %w", name, err))
	}
	if !c.nodes.Fresh(found) {
		return flow.Wait(staleCache, "the cache to show what was written to the node")
	}
	s.node = found
	return flow.Continue()
}

func (c *Controller) nodeAbsent(s *scope, name string) flow.Result {
	switch s.machine.Status.CurrentStatus.Phase {
	case v1alpha1.MachineRunning:
		s.nodeMissing()
	case v1alpha1.MachinePending:
		left := c.creationTimeLeft(s)
		if left > 0 {
			return flow.Wait(left, fmt.Sprintf("node %q to join", name))
		}
		s.neverJoined(c.creationTimeout(s.machine))
	}
	return flow.Wait(0, fmt.Sprintf("node %q to appear", name))
}

// followNode deletes the Machine when somebody deletes its node. The node stays until the
// VM is gone, since it carries our finalizer.
func (c *Controller) followNode(ctx context.Context, s *scope) flow.Result {
	if s.node.DeletionTimestamp.IsZero() {
		return flow.Continue()
	}
	if err := c.Client.Delete(ctx, s.machine, client.Preconditions{UID: &s.machine.UID}); client.IgnoreNotFound(err) != nil {
		return flow.Fail(fmt.Errorf("deleting machine %s after its node: %w", s.machine.Name, err))
	}
	s.explain(corev1.EventTypeNormal, reasonNodeDeleted, fmt.Sprintf("Node %s was deleted, so the machine is deleted too", s.node.Name))
	return flow.Wait(0, "the deletion of the Machine")
}

// registering is how long a new node that is not ready is left alone. Many a kubelet
// reports again right after it has registered; a write of ours between the two would be
// in vain, since it is locked for the sake of the taints.
const registering = 250 * time.Millisecond

// awaitRegistration lets a kubelet finish its registration. It does not wait for the node
// to be ready: the taints of the template belong there before.
func (c *Controller) awaitRegistration(_ context.Context, s *scope) flow.Result {
	busy := s.machine.Status.CurrentStatus.Phase == v1alpha1.MachinePending &&
		!controllerutil.ContainsFinalizer(s.node, v1alpha1.FinalizerNode) &&
		!node.Healthy(s.node.Status.Conditions, nil)
	if busy {
		seen, _ := c.registrations.LoadOrStore(s.node.Name, s.now)
		if left := seen.(time.Time).Add(registering).Sub(s.now); left > 0 {
			return flow.Wait(left, "the kubelet to finish its registration")
		}
	}
	c.registrations.Delete(s.node.Name)
	return flow.Continue()
}

// adoptNode marks the node as the Machine's and brings the node template up to date.
func (c *Controller) adoptNode(ctx context.Context, s *scope) flow.Result {
	adopted, err := c.patchNode(ctx, s.node, func(n *corev1.Node) error { return node.Adopt(n, s.machine) })
	s.node = adopted
	return flow.Fail(err)
}

// revokeTokenOfJoined deletes the bootstrap token once the node is there: from then on
// the kubelet has credentials of its own. The Machine has no conditions until the
// status of this pass is written, so the token cannot be forgotten in between.
func (c *Controller) revokeTokenOfJoined(ctx context.Context, s *scope) flow.Result {
	if len(s.machine.Status.Conditions) > 0 || len(s.node.Status.Conditions) == 0 {
		return flow.Continue()
	}
	return flow.Fail(c.Tokens.Revoke(ctx, s.key()))
}

// criticalComponents is what a node that is healthy may still lack to be of use.
const criticalComponents = "critical components on the node"

// assessHealth copies the node's conditions and draws the consequence.
func (c *Controller) assessHealth(_ context.Context, s *scope) flow.Result {
	s.nodeSeen()
	phase := s.machine.Status.CurrentStatus.Phase
	if phase == v1alpha1.MachineInPlaceUpdating || phase == v1alpha1.MachineInPlaceUpdateFailed {
		return flow.Stop("the node is being updated in place")
	}
	if !node.Healthy(s.node.Status.Conditions, c.badConditions(s.machine)) {
		return c.unhealthy(s, phase)
	}
	if !node.CriticalComponentsReady(s.node) {
		switch phase {
		case v1alpha1.MachinePending:
			return c.awaitJoin(s, criticalComponents)
		case v1alpha1.MachineFailed: // for want of them, perhaps: that is no recovery
			return flow.Wait(0, criticalComponents)
		}
	}
	if phase != v1alpha1.MachineRunning {
		s.joined()
	}
	return flow.Continue()
}

func (c *Controller) unhealthy(s *scope, phase v1alpha1.MachinePhase) flow.Result {
	switch phase {
	case v1alpha1.MachineRunning:
		s.becameUnhealthy()
	case v1alpha1.MachinePending:
		return c.awaitJoin(s, "the node to be ready")
	}
	return flow.Wait(0, "the node to be healthy")
}

// awaitJoin waits for a node that is there to become of use, within the creation
// timeout.
func (c *Controller) awaitJoin(s *scope, what string) flow.Result {
	left := c.creationTimeLeft(s)
	if left <= 0 {
		s.neverJoined(c.creationTimeout(s.machine))
		return flow.Wait(0, what)
	}
	return flow.Wait(left, what)
}

// badConditions are the conditions that make the Machine unhealthy unless False.
func (c *Controller) badConditions(machine *v1alpha1.Machine) []string {
	if config := machine.Spec.MachineConfiguration; config != nil && config.NodeConditions != nil {
		return strings.Split(*config.NodeConditions, ",")
	}
	return c.NodeConditions
}
