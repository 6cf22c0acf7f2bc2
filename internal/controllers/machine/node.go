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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machine/passevents"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/nodes"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/pool/budget"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

const targetAway = 5 * time.Second

func (c *Controller) awaitNode(ctx context.Context, s *scope) flow.Result {
	if c.Target == nil {
		if budget.MayTimeOut(s.machine.Status.CurrentStatus.Phase) {
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
	found, other, err := c.readNode(ctx, s, name)
	switch {
	case err != nil:
		return flow.Fail(err)
	case found == nil:
		return c.nodeAbsent(ctx, s, name)
	case !c.nodes.Fresh(found):
		return flow.Wait(expectations.StaleCache, "the cache to show what was written to the node")
	case other != nil:
		return c.awaitOwnNode(ctx, s, name, *other)
	}
	s.node = found
	return flow.Continue()
}

// notOurs is why a node that the Machine names is not its own: a reason of events, and the rest of a
// sentence about the node.
type notOurs struct{ reason, why string }

// readNode returns the node of that name, nil if there is none, and why it is not the Machine's, nil
// if it is.
func (c *Controller) readNode(ctx context.Context, s *scope, name string) (*corev1.Node, *notOurs, error) {
	found := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	missing := c.Target.Client().Get(ctx, client.ObjectKey{Name: name}, found)
	if client.IgnoreNotFound(missing) != nil {
		return nil, nil, fmt.Errorf("reading node %s: %w", name, missing)
	}
	other, err := c.notOurs(ctx, s, found, missing == nil)
	if err != nil || missing != nil {
		return nil, other, err
	}
	return found, other, nil
}

// notOurs returns why a node is not the Machine's, nil if it is. Of one that does not exist, only
// the name counts.
func (c *Controller) notOurs(ctx context.Context, s *scope, node *corev1.Node, exists bool) (*notOurs, error) {
	other, err := ownership.ConflictingNode(ctx, c.Client, s.machine, node)
	switch {
	case err != nil:
		return nil, err
	case other != nil:
		return &notOurs{reasonOtherMachine, fmt.Sprintf("is that of machine %q", other.Name)}, nil
	case !exists:
		return nil, nil
	}
	strange, err := ownership.StrangeNode(ctx, c.Client, s.machine, s.machine.Spec.ProviderID, node)
	if err != nil || strange == "" {
		return nil, err
	}
	return &notOurs{reasonStrangeNode, strange}, nil
}

// relabel restores the name of the node on a Machine: without it the node would count as missing,
// and the VM would be replaced.
func (c *Controller) relabel(ctx context.Context, s *scope) error {
	if s.machine.Labels[v1alpha1.NodeLabelKey] != "" {
		return nil
	}
	name, err := nodes.Marked(ctx, c.Target.Client(), s.machine)
	if err != nil || name == "" {
		return err
	}
	return c.recordNode(ctx, s, instance.Instance{NodeName: name}, "")
}

// conflictRetry is when a Machine looks again whether a node is its own, as the change that
// corrects it need not wake it.
const conflictRetry = time.Minute

// awaitOwnNode ignores a node that is not the Machine's. It counts as absent, but does not make the
// Machine unhealthy.
func (c *Controller) awaitOwnNode(ctx context.Context, s *scope, node string, other notOurs) flow.Result {
	s.nodeOfOther = true
	s.wakeWithin(conflictRetry)
	message := fmt.Sprintf("Node %s %s: it is left alone, whatever label %q says", node, other.why, v1alpha1.NodeLabelKey)
	s.warnOfNode(other.reason, message)
	if s.machine.Status.CurrentStatus.Phase == v1alpha1.MachinePending {
		return c.awaitJoin(ctx, s, message)
	}
	return c.awaitRecovery(ctx, s, message)
}

const topicNode = "node"

// warnOfNode sends a warning on the Machine and its node, unless it was the last one.
func (s *scope) warnOfNode(reason, message string) {
	if s.node != nil {
		s.events.WarnOnce(topicNode, passevents.Event{Reason: reason, Message: message, Node: s.node})
	}
	s.events.WarnOnce(topicNode, passevents.Event{Reason: reason, Message: message})
}

func (c *Controller) nodeAbsent(ctx context.Context, s *scope, name string) flow.Result {
	switch s.machine.Status.CurrentStatus.Phase {
	case v1alpha1.MachineRunning, v1alpha1.MachineInPlaceUpdateSuccessful:
		s.unknown(v1alpha1.CauseNodeMissing, fmt.Sprintf("Node object went missing. Machine %s is unhealthy - changing MachineState to Unknown", s.machine.Name))
	case v1alpha1.MachinePending:
		if err := c.keepToken(ctx, s); err != nil {
			return flow.Fail(err)
		}
		return c.awaitJoin(ctx, s, fmt.Sprintf("node %q to join", name))
	}
	return c.awaitRecovery(ctx, s, fmt.Sprintf("node %q to appear", name))
}

func (c *Controller) keepToken(ctx context.Context, s *scope) error {
	next, err := c.Tokens.Keep(ctx, s.key(), timeouts.Creation(s.machine, c.CreationTimeout).Duration)
	if err != nil {
		return err
	}
	s.wakeWithin(next)
	return nil
}

// followNode deletes the Machine of a node that is being deleted, which our finalizer holds until
// the VM is gone.
func (c *Controller) followNode(ctx context.Context, s *scope) flow.Result {
	if s.node.DeletionTimestamp.IsZero() {
		return flow.Continue()
	}
	if err := c.Client.Delete(ctx, s.machine, client.Preconditions{UID: &s.machine.UID}); client.IgnoreNotFound(err) != nil {
		return flow.Fail(fmt.Errorf("deleting machine %s after its node: %w", s.machine.Name, err))
	}
	s.events.AddToBoth(s.node, corev1.EventTypeNormal, reasonNodeDeleted, passevents.Cause{Name: v1alpha1.CauseNodeDeleted}, fmt.Sprintf("Node %s was deleted, so the machine is deleted too", s.node.Name))
	return flow.Wait(0, "the deletion of the Machine")
}

// registering is how long a new node that is not ready is not written to: many kubelets report
// again right after they have registered, and our write has an optimistic lock for the taints.
const registering = 250 * time.Millisecond

// awaitRegistration does not wait for the node to be ready: the taints of the template have to be
// there before.
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
	err := s.unlessRefused(reasonCapacityRefused, noderef.VirtualCapacity(class), func() error {
		return c.nodes.PatchStatus(ctx, c.Target.Client(), &s.node, func(n *corev1.Node) { noderef.SetCapacity(n, noderef.VirtualCapacity(class)) })
	})
	if errors.Is(err, errRefused) {
		return flow.Continue()
	}
	s.class = class
	return flow.Fail(err)
}

// adoptNode marks the node as the Machine's and applies the node template. A template that the API
// server refuses does not keep the node from being marked, so that it is not deleted before its VM.
func (c *Controller) adoptNode(ctx context.Context, s *scope) flow.Result {
	if invalid := noderef.Invalid(s.node, s.machine); len(invalid) > 0 {
		s.events.WarnOnce(reasonInvalidTemplate, passevents.Event{
			Reason:  reasonInvalidTemplate,
			Message: fmt.Sprintf("Left out on node %s, since no node can have it: %s", s.node.Name, strings.Join(invalid, "; ")),
		})
	} else {
		s.memory.sent.Over(reasonInvalidTemplate)
	}
	err := s.unlessRefused(reasonTemplateRefused, &s.machine.Spec.NodeTemplateSpec, func() error {
		return c.nodes.Patch(ctx, c.Target.Client(), &s.node, func(n *corev1.Node) error {
			if s.class != nil {
				if err := noderef.RecordCapacity(n, noderef.VirtualCapacity(s.class)); err != nil {
					return err
				}
			}
			return noderef.Adopt(n, s.machine)
		})
	})
	if errors.Is(err, errRefused) {
		err = c.nodes.Patch(ctx, c.Target.Client(), &s.node, func(n *corev1.Node) error {
			noderef.Mark(n, s.machine)
			return nil
		})
	}
	if err != nil {
		return flow.Fail(err)
	}
	return flow.Fail(c.compareIDs(ctx, s))
}

// compareIDs warns if the node has another provider ID than the Machine, or another node the same
// one. It does no more, since the IDs of some kubelets differ from their drivers' in form only.
func (c *Controller) compareIDs(ctx context.Context, s *scope) error {
	var conflicts []string
	of, ours := s.node.Spec.ProviderID, s.machine.Spec.ProviderID
	if of != "" && of != ours {
		conflicts = append(conflicts, fmt.Sprintf("Node %s says that its VM is %s, the machine that it is %s", s.node.Name, of, ours))
	}
	duplicate, err := nodes.Duplicate(ctx, c.Target.Client(), ours, s.node.Name)
	if err != nil {
		return err
	}
	if duplicate != "" {
		conflicts = append(conflicts, fmt.Sprintf("Node %s, too, says that its VM is %s; the machine follows node %s", duplicate, ours, s.node.Name))
	}
	if len(conflicts) == 0 {
		s.memory.sent.Over(topicNode)
		return nil
	}
	s.warnOfNode(reasonOtherVM, strings.Join(conflicts, ". "))
	return nil
}

// revokeTokenOfJoined deletes the bootstrap token of a kubelet that has its own credentials. The
// Machine has no conditions before the status of this pass is written, so a crash does not keep it.
func (c *Controller) revokeTokenOfJoined(ctx context.Context, s *scope) flow.Result {
	if len(s.machine.Status.Conditions) > 0 || len(s.node.Status.Conditions) == 0 {
		return flow.Continue()
	}
	return flow.Fail(c.Tokens.Revoke(ctx, s.key()))
}

// errRefused means that a write was refused, which does not end the pass.
var errRefused = errors.New("the API server refuses it")

// refusalBackoff is for writes that an admission policy may refuse, which may be corrected, too.
var refusalBackoff = timeouts.Doubling(10*time.Second, 10*time.Minute)

var refusable = map[string]string{
	reasonTemplateRefused: "labels, annotations or taints of the node template",
	reasonCapacityRefused: "the virtual capacity of the class",
}

type refusal struct {
	wanted  any
	backoff wait.Backoff
	retry   time.Time
}

// unlessRefused writes to the node, unless the same was refused shortly before. It returns
// errRefused in both cases, and warns once.
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
		s.memory.sent.Over(reason)
		return nil
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err), apierrors.IsRequestEntityTooLargeError(err):
	default:
		return err
	}
	s.events.WarnOnce(reason, passevents.Event{Reason: reason, Message: fmt.Sprintf("The API server refuses %s: %v", refusable[reason], err)})
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
