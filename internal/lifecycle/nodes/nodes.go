// Package nodes finds and writes the Nodes of Machines.
package nodes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/target"
)

// Writer writes Nodes, and remembers its writes until the cache shows them. The zero value is ready to use.
type Writer struct{ expectations.Writes }

// Patch applies change to the node and replaces *stored with the result. The status is empty during the change.
// Because kubelets write often, only a patch of the taints, which replaces their whole list, uses an optimistic
// lock. The patch includes the UID, so it does not change another node with the same name.
func (w *Writer) Patch(ctx context.Context, c client.Client, stored **corev1.Node, change func(*corev1.Node) error) error {
	node := *stored
	// The status is left out because it is most of a node and expensive to compare.
	before := &corev1.Node{ObjectMeta: node.ObjectMeta, Spec: node.Spec}
	changed := before.DeepCopy()
	if err := change(changed); err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(before, changed) {
		return nil
	}
	before.UID = ""
	patch := client.StrategicMergeFrom(before)
	if !equality.Semantic.DeepEqual(node.Spec.Taints, changed.Spec.Taints) {
		patch = client.StrategicMergeFrom(before, client.MergeFromWithOptimisticLock{})
	}
	if err := c.Patch(ctx, changed, patch); err != nil {
		return fmt.Errorf("patching node %s: %w", node.Name, replaced(node.Name, err))
	}
	w.Wrote(changed)
	*stored = changed
	return nil
}

// PatchStatus applies change to the status of the node. Lists in the status are merged by their keys.
func (w *Writer) PatchStatus(ctx context.Context, c client.Client, stored **corev1.Node, change func(*corev1.Node)) error {
	node := *stored
	before := &corev1.Node{ObjectMeta: node.ObjectMeta, Status: node.Status}
	changed := before.DeepCopy()
	change(changed)
	if equality.Semantic.DeepEqual(node.Status, changed.Status) {
		return nil
	}
	before.UID = ""
	if err := c.Status().Patch(ctx, changed, client.StrategicMergeFrom(before)); err != nil {
		return fmt.Errorf("patching the status of node %s: %w", node.Name, replaced(node.Name, err))
	}
	w.Wrote(changed)
	*stored = changed
	return nil
}

// replaced converts an error about a different UID to a conflict, because the cache is out of date.
func replaced(name string, err error) error {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || !apierrors.IsInvalid(err) || status.Status().Details == nil {
		return err
	}
	ofUID := func(cause metav1.StatusCause) bool { return cause.Field == "metadata.uid" }
	if !slices.ContainsFunc(status.Status().Details.Causes, ofUID) {
		return err
	}
	return apierrors.NewConflict(corev1.Resource("nodes"), name, err)
}

// Marked returns the name of the node that has the label of the Machine, or an empty string. The cache needs
// the index target.NodeByMachine.
func Marked(ctx context.Context, cache client.Reader, machine *v1alpha1.Machine) (string, error) {
	list := &corev1.NodeList{}
	err := cache.List(ctx, list, client.MatchingFields{target.NodeByMachine: machine.Name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return "", fmt.Errorf("finding the node of machine %s: %w", machine.Name, err)
	}
	return first(list, func(node *corev1.Node) bool {
		id := machine.Spec.ProviderID
		return id == "" || node.Spec.ProviderID == "" || node.Spec.ProviderID == id
	}), nil
}

// Duplicate returns the name of another node with the provider ID, or an empty string. The cache needs the
// index target.NodeByProviderID.
func Duplicate(ctx context.Context, cache client.Reader, providerID, node string) (string, error) {
	if providerID == "" {
		return "", nil
	}
	list := &corev1.NodeList{}
	err := cache.List(ctx, list, client.MatchingFields{target.NodeByProviderID: providerID}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return "", fmt.Errorf("finding the nodes of VM %s: %w", providerID, err)
	}
	return first(list, func(other *corev1.Node) bool { return other.Name != node }), nil
}

func first(list *corev1.NodeList, fits func(*corev1.Node) bool) string {
	name := ""
	for i := range list.Items {
		if node := &list.Items[i]; fits(node) && (name == "" || node.Name < name) {
			name = node.Name
		}
	}
	return name
}

// Taken returns a message if the node name of a new VM is already used by a node that does not belong to the
// VM, or an empty string if not. This happens because some clouds reuse the names of deleted VMs, and because
// users choose the names of Machines. The kubelet could not join under that name, and the Machine would drain
// and delete the other node. The reader machines is the cache of the Machines.
func Taken(ctx context.Context, cache, machines client.Reader, machine *v1alpha1.Machine, name, providerID string) (string, error) {
	if name == "" {
		return "", nil
	}
	node := &corev1.Node{}
	if err := cache.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "", fmt.Errorf("reading node %s: %w", name, err)
	}
	strange, err := ownership.StrangeNode(ctx, machines, machine, providerID, node)
	if err != nil || strange == "" {
		return "", err
	}
	return fmt.Sprintf("VM using old node obj: node %q %s", node.Name, strange), nil
}
