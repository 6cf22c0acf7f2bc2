package machine

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/nodes"
	"github.com/millwright-dev/millwright/internal/lifecycle/outage"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/reconcile/target"
)

// targetRetry is the interval at which a pass checks whether the target cluster is available again.
const targetRetry = 5 * time.Second

// nodeClient reads and writes the nodes of Machines.
type nodeClient struct {
	*Options
	nodes.Writer
}

// foreignNode explains why a node that the Machine names is not its own: the reason of events, and the predicate
// of a sentence about the node.
type foreignNode struct{ reason, predicate string }

// read returns the named node, or nil if it does not exist. The second result explains why the node is not the
// Machine's, or is nil if it is.
func (n *nodeClient) read(ctx context.Context, s *scope, name string) (*corev1.Node, *foreignNode, error) {
	found := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	missing := n.Target.Client().Get(ctx, client.ObjectKey{Name: name}, found)
	if client.IgnoreNotFound(missing) != nil {
		return nil, nil, fmt.Errorf("reading node %s: %w", name, missing)
	}
	foreign, err := n.foreign(ctx, s, found, missing == nil)
	if err != nil || missing != nil {
		return nil, foreign, err
	}
	return found, foreign, nil
}

// foreign returns why a node is not the Machine's, or nil if it is. If the node does not exist, foreign compares
// only its name.
func (n *nodeClient) foreign(ctx context.Context, s *scope, node *corev1.Node, exists bool) (*foreignNode, error) {
	other, err := ownership.ConflictingNode(ctx, n.Client, s.machine, node)
	switch {
	case err != nil:
		return nil, err
	case other != nil:
		return &foreignNode{reasonOtherMachine, fmt.Sprintf("belongs to machine %q", other.Name)}, nil
	case !exists:
		return nil, nil
	}
	strange, err := ownership.StrangeNode(ctx, n.Client, s.machine, s.machine.Spec.ProviderID, node)
	if err != nil || strange == "" {
		return nil, err
	}
	return &foreignNode{reasonForeignNode, strange}, nil
}

// patch changes the metadata and spec of the pass's node. See nodes.Writer.
func (n *nodeClient) patch(ctx context.Context, node **corev1.Node, change func(*corev1.Node) error) error {
	return n.Writer.Patch(ctx, n.Target.Client(), node, change)
}

// patchStatus changes the status of the pass's node. See nodes.Writer.
func (n *nodeClient) patchStatus(ctx context.Context, node **corev1.Node, change func(*corev1.Node)) error {
	return n.Writer.PatchStatus(ctx, n.Target.Client(), node, change)
}

// cordon makes a node unschedulable.
func (n *nodeClient) cordon(ctx context.Context, node **corev1.Node) error {
	return n.patch(ctx, node, func(node *corev1.Node) error {
		node.Spec.Unschedulable = true
		return nil
	})
}

// retire makes a node unschedulable, and sets the taint that makes load balancers stop using it.
func (n *nodeClient) retire(ctx context.Context, node **corev1.Node, now time.Time) error {
	return n.patch(ctx, node, func(node *corev1.Node) error {
		node.Spec.Unschedulable = true
		noderef.SetToBeDeleted(node, now)
		return nil
	})
}

// readLive reads a node from the API server instead of the cache. It returns nil if the node does not exist.
func (n *nodeClient) readLive(ctx context.Context, name string) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, outage.ResponseTimeout)
	defer cancel()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	if err := n.Target.Client().Get(ctx, client.ObjectKey{Name: name}, object); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("reading node %s from the API server: %w", name, err)
	}
	live := &corev1.Node{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, live); err != nil {
		return nil, fmt.Errorf("reading node %s: %w", name, err)
	}
	return live, nil
}

// usable reports whether the node is healthy or, during an in-place update, whether the update succeeded. It reads
// the node from the API server, since the cache may lag behind and a replacement cannot be undone.
func (n *nodeClient) usable(ctx context.Context, s *scope) (bool, error) {
	name := s.machine.NodeName()
	if n.Target == nil || name == "" || s.nodeOfOther {
		return false, nil
	}
	live, err := n.readLive(ctx, name)
	if live == nil {
		return false, err
	}
	phase := s.machine.Status.CurrentStatus.Phase
	if isUpdatePhase(phase) { // the result of the update decides, not the node's health
		return inplaceupdate.Read(live).Succeeded(), nil
	}
	return n.healthy(s.machine, live) && (phase != v1alpha1.MachinePending || noderef.CriticalComponentsReady(live)), nil
}

// healthy reports whether the conditions of the node make the Machine healthy.
func (n *nodeClient) healthy(machine *v1alpha1.Machine, node *corev1.Node) bool {
	return noderef.Healthy(node.Status.Conditions, noderef.BadConditions(machine, n.NodeConditions))
}

// delete deletes the Machine's node. If the cache does not contain the node, it reads the API server, since the
// node may have joined just now. A precondition protects another node that has taken the same name.
func (n *nodeClient) delete(ctx context.Context, s *scope) flow.Result {
	name := s.machine.NodeName()
	if n.Target == nil || name == "" {
		return flow.Continue()
	}
	if !n.Target.Ready() {
		s.deletionWaits("VM deletion was successful. The target cluster does not respond.", deletingNode)
		return flow.Wait(targetRetry, "the target cluster")
	}
	found, foreign, err := n.read(ctx, s, name)
	if err == nil && found == nil && foreign == nil {
		if found, err = n.readLive(ctx, name); found != nil {
			foreign, err = n.foreign(ctx, s, found, true)
		}
	}
	if err != nil || found == nil || foreign != nil {
		return flow.Fail(err)
	}
	return flow.Fail(n.remove(ctx, found))
}

// remove removes our finalizer from a node and deletes it. A precondition protects another node that has taken the
// same name.
func (n *nodeClient) remove(ctx context.Context, found *corev1.Node) error {
	err := n.patch(ctx, &found, func(node *corev1.Node) error {
		noderef.Release(node)
		return nil
	})
	if apierror.IgnoreGone(err) != nil {
		return err
	}
	err = n.Target.Client().Delete(ctx, found, client.Preconditions{UID: &found.UID})
	if apierror.IgnoreGone(err) != nil {
		return fmt.Errorf("deleting node %s: %w", found.Name, err)
	}
	n.Forget(client.ObjectKey{Name: found.Name})
	return nil
}

// deleteMarked deletes the node with the label and the finalizer of a Machine that no longer exists, unless another
// Machine names that node.
func (n *nodeClient) deleteMarked(ctx context.Context, key client.ObjectKey) error {
	list := &corev1.NodeList{}
	if err := n.Target.Client().List(ctx, list, client.MatchingFields{target.NodeByMachine: key.Name}); err != nil {
		return fmt.Errorf("finding the node of machine %s: %w", key, err)
	}
	for i := range list.Items {
		node := &list.Items[i]
		if !controllerutil.ContainsFinalizer(node, v1alpha1.FinalizerNode) {
			continue
		}
		others := &v1alpha1.MachineList{}
		err := n.Client.List(ctx, others, client.MatchingFields{fieldindex.MachineByNode: node.Name}, client.Limit(1), client.UnsafeDisableDeepCopy)
		if err != nil {
			return fmt.Errorf("finding the machines of node %s: %w", node.Name, err)
		}
		if len(others.Items) > 0 {
			continue
		}
		if err := n.remove(ctx, node); err != nil {
			return err
		}
		ctrl.LoggerFrom(ctx).Info("deleted the node of a machine that was removed without its finalizer", "node", node.Name)
	}
	return nil
}
