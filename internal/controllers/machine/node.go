package machine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/nodes"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/lifecycle/replacement"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// targetAway is how long a pass waits that needs a target which does not answer. The
// target's nodes are no help: a Machine that has none yet gets no event.
const targetAway = 5 * time.Second

// awaitNode finds the Machine's node.
func (c *Controller) awaitNode(ctx context.Context, s *scope) flow.Result {
	if c.Target == nil {
		if replacement.MayTimeOut(s.machine.Status.CurrentStatus.Phase) {
			return c.awaitRecovery(ctx, s, "a VM that is gone")
		}
		return flow.Stop("there is no target cluster to join")
	}
	if !c.Target.Ready() {
		return flow.Wait(targetAway, "the target cluster")
	}
	if err := c.relabel(ctx, s); err != nil {
		return flow.Fail(err)
	}
	name := s.machine.Labels[v1alpha1.NodeLabelKey]
	found := &corev1.Node{}
	err := c.Target.Client().Get(ctx, types.NamespacedName{Name: name}, found)
	if apierrors.IsNotFound(err) {
		return c.nodeAbsent(ctx, s, name)
	}
	if err != nil {
		return flow.Fail(fmt.Errorf("reading node %s: %w", name, err))
	}
	if !c.nodes.Fresh(found) {
		return flow.Wait(staleCache, "the cache to show what was written to the node")
	}
	other, err := ownership.ConflictingNode(ctx, c.Client, s.machine, found)
	switch {
	case err != nil:
		return flow.Fail(err)
	case other != nil:
		return c.awaitOwnNode(ctx, s, name, other.Name)
	}
	s.node = found
	return flow.Continue()
}

// relabel puts the name of its node back on a Machine that somebody took it from. Without
// the name the node would count as missing, and a VM that is well would be replaced.
func (c *Controller) relabel(ctx context.Context, s *scope) error {
	if s.machine.Labels[v1alpha1.NodeLabelKey] != "" {
		return nil
	}
	name, err := nodes.Marked(ctx, c.Target.Client(), s.machine)
	if err != nil || name == "" {
		return err
	}
	return c.recordNode(ctx, s, instance.Instance{NodeName: name})
}

// conflictRetry is when a Machine looks again whether a node is its own. Who puts that right
// need not change anything that it would be woken for.
const conflictRetry = time.Minute

// awaitOwnNode leaves alone a node that two Machines name and that is the other one's. It
// counts as absent, but nobody is declared unhealthy for a label.
func (c *Controller) awaitOwnNode(ctx context.Context, s *scope, node, other string) flow.Result {
	s.nodeOfOther = true
	s.wakeWithin(conflictRetry)
	message := fmt.Sprintf("Node %s is that of machine %q: it is left alone, whatever label %q says", node, other, v1alpha1.NodeLabelKey)
	s.warnOfNode(reasonOtherMachine, message)
	if s.machine.Status.CurrentStatus.Phase == v1alpha1.MachinePending {
		return c.awaitJoin(ctx, s, message)
	}
	return c.awaitRecovery(ctx, s, message)
}

// topicNode is that of the warnings of warnOfNode.
const topicNode = "node"

// warnOfNode warns once of something odd about a Machine's node, on both, until there is
// something else.
func (s *scope) warnOfNode(reason, message string) {
	if s.node != nil {
		s.warnOnce(topicNode, reason, message, s.node)
	}
	s.warnOnce(topicNode, reason, message, nil)
}

func (c *Controller) nodeAbsent(ctx context.Context, s *scope, name string) flow.Result {
	switch s.machine.Status.CurrentStatus.Phase {
	case v1alpha1.MachineRunning:
		s.unknown(v1alpha1.CauseNodeMissing, fmt.Sprintf("Node object went missing. Machine %s is unhealthy - changing MachineState to Unknown", s.machine.Name))
	case v1alpha1.MachinePending:
		if err := c.keepToken(ctx, s); err != nil {
			return flow.Fail(err)
		}
		return c.awaitJoin(ctx, s, fmt.Sprintf("node %q to join", name))
	}
	return c.awaitRecovery(ctx, s, fmt.Sprintf("node %q to appear", name))
}

// keepToken renews the bootstrap token of a VM that takes long to join. The VM has the
// token already, so it stays the same one.
func (c *Controller) keepToken(ctx context.Context, s *scope) error {
	next, err := c.Tokens.Keep(ctx, s.key(), c.creationTimeout(s.machine).Duration)
	if err != nil {
		return err
	}
	s.wakeWithin(next)
	return nil
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
	s.explainBoth(corev1.EventTypeNormal, reasonNodeDeleted, cause{name: v1alpha1.CauseNodeDeleted}, fmt.Sprintf("Node %s was deleted, so the machine is deleted too", s.node.Name))
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
		!noderef.Healthy(s.node.Status.Conditions, nil)
	if busy {
		if s.memory.registering != s.node.Name {
			s.memory.registering, s.memory.registeringSince = s.node.Name, s.now
		}
		if left := s.memory.registeringSince.Add(registering).Sub(s.now); left > 0 {
			return flow.Wait(left, "the kubelet to finish its registration")
		}
	}
	s.memory.registering = ""
	return flow.Continue()
}

// setCapacity gives the node the virtual capacity of the Machine's class. Without the
// class nobody knows what that is, and the node stays as it is.
func (c *Controller) setCapacity(ctx context.Context, s *scope) flow.Result {
	if s.machine.Spec.Class.Kind != v1alpha1.MachineClassKind {
		return flow.Continue()
	}
	class := &v1alpha1.MachineClass{}
	key := types.NamespacedName{Namespace: s.machine.Namespace, Name: s.machine.Spec.Class.Name}
	if err := c.Client.Get(ctx, key, class); err != nil {
		if apierrors.IsNotFound(err) {
			return flow.Continue()
		}
		return flow.Fail(fmt.Errorf("reading MachineClass %s: %w", key.Name, err))
	}
	err := s.unlessRefused(reasonCapacityRefused, virtualCapacity(class), func() error {
		changed, err := c.nodes.PatchStatus(ctx, c.Target.Client(), s.node, func(n *corev1.Node) { noderef.SetCapacity(n, virtualCapacity(class)) })
		s.node = changed
		return err
	})
	if errors.Is(err, errRefused) {
		return flow.Continue()
	}
	s.class = class
	return flow.Fail(err)
}

func virtualCapacity(class *v1alpha1.MachineClass) corev1.ResourceList {
	if class.NodeTemplate == nil {
		return nil
	}
	return class.NodeTemplate.VirtualCapacity
}

// adoptNode marks the node as the Machine's and brings the node template up to date. From
// then on nobody can take the node away before its VM, so nothing is told of it and no token
// is revoked before. What is wrong with a template holds none of that back: where the API
// server refuses the whole, the node is only marked.
func (c *Controller) adoptNode(ctx context.Context, s *scope) flow.Result {
	s.warnOfInvalidTemplate()
	err := s.unlessRefused(reasonTemplateRefused, &s.machine.Spec.NodeTemplateSpec, func() error {
		return c.changeNode(ctx, s, func(n *corev1.Node) error {
			if s.class != nil {
				if err := noderef.RecordCapacity(n, virtualCapacity(s.class)); err != nil {
					return err
				}
			}
			return noderef.Adopt(n, s.machine)
		})
	})
	if errors.Is(err, errRefused) {
		err = c.changeNode(ctx, s, func(n *corev1.Node) error {
			noderef.Mark(n, s.machine)
			return nil
		})
	}
	if err != nil {
		return flow.Fail(err)
	}
	return flow.Fail(c.compareIDs(ctx, s))
}

func (c *Controller) changeNode(ctx context.Context, s *scope, change func(*corev1.Node) error) error {
	changed, err := c.nodes.Patch(ctx, c.Target.Client(), s.node, change)
	s.node = changed
	return err
}

// compareIDs says so if the node is another VM's: somebody edited the Machine's provider
// ID, or two VMs joined under one name; and if another node says that it is the same VM.
// Nothing is done about it: the IDs that some kubelets report differ from their drivers'
// in form only.
func (c *Controller) compareIDs(ctx context.Context, s *scope) error {
	var odd []string
	of, ours := s.node.Spec.ProviderID, s.machine.Spec.ProviderID
	if of != "" && of != ours {
		odd = append(odd, fmt.Sprintf("Node %s says that its VM is %s, the machine that it is %s", s.node.Name, of, ours))
	}
	duplicate, err := nodes.Duplicate(ctx, c.Target.Client(), ours, s.node.Name)
	if err != nil {
		return err
	}
	if duplicate != "" {
		odd = append(odd, fmt.Sprintf("Node %s, too, says that its VM is %s; the machine follows node %s", duplicate, ours, s.node.Name))
	}
	if len(odd) == 0 {
		s.memory.told.Over(topicNode)
		return nil
	}
	s.warnOfNode(reasonOtherVM, strings.Join(odd, ". "))
	return nil
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

// errRefused means that the node cannot have what it should, which is no reason to leave the
// Machine alone.
var errRefused = errors.New("the API server refuses it")

// refusalBackoff is for writes that an admission policy may refuse, which may be corrected, too.
var refusalBackoff = timeouts.Doubling(10*time.Second, 10*time.Minute)

// refusable says what is refused, by the reason of the event.
var refusable = map[string]string{
	reasonTemplateRefused: "labels, annotations or taints of the node template",
	reasonCapacityRefused: "the virtual capacity of the class",
}

// refusal is a write that the API server refused.
type refusal struct {
	// wanted is what was refused. Something else may do better.
	wanted  any
	backoff wait.Backoff
	// retry is when it is tried again.
	retry time.Time
}

// unlessRefused makes a write to the node, unless the same was refused a short while ago. It
// returns errRefused for both, and warns of it once.
func (s *scope) unlessRefused(reason string, wanted any, write func() error) error {
	before, known := s.memory.refused[reason]
	same := known && equality.Semantic.DeepEqual(before.wanted, wanted)
	if same && s.now.Before(before.retry) {
		s.wakeWithin(before.retry.Sub(s.now))
		return errRefused
	}
	err := write()
	switch {
	case err == nil:
		delete(s.memory.refused, reason)
		s.memory.told.Over(reason)
		return nil
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err), apierrors.IsRequestEntityTooLargeError(err):
		// something is wrong with the write that the API server will find again
	default:
		return err
	}
	s.warnOnce(reason, reason, fmt.Sprintf("The API server refuses %s: %v", refusable[reason], err), nil)
	now := refusal{wanted: wanted, backoff: refusalBackoff}
	if same {
		now.backoff = before.backoff
	}
	left := now.backoff.Step()
	now.retry = s.now.Add(left)
	if s.memory.refused == nil {
		s.memory.refused = map[string]refusal{}
	}
	s.memory.refused[reason] = now
	s.wakeWithin(left)
	return errRefused
}

// warnOfInvalidTemplate warns once of what no node can have of the node template.
func (s *scope) warnOfInvalidTemplate() {
	invalid := noderef.Invalid(s.node, s.machine)
	if len(invalid) == 0 {
		s.memory.told.Over(reasonInvalidTemplate)
		return
	}
	s.warnOnce(reasonInvalidTemplate, reasonInvalidTemplate,
		fmt.Sprintf("Left out on node %s, since no node can have it: %s", s.node.Name, strings.Join(invalid, "; ")), nil)
}
