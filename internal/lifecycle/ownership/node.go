package ownership

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// annotationClusterAPI is on the nodes of Cluster API's Machines.
const annotationClusterAPI = "cluster.x-k8s.io/machine"

// StrangeNode returns why a node cannot belong to the VM with the ID, although the Machine or the driver names
// it. It returns an empty string if it can. A node with that provider ID or with the label of the Machine
// belongs to the Machine. Any other node must not be older than the Machine and must not have the marks of
// other owners. Such nodes occur because some kubelets report no ID or use another format.
func StrangeNode(ctx context.Context, cache client.Reader, ours *v1alpha1.Machine, providerID string, node *corev1.Node) (string, error) {
	mark := node.Labels[v1alpha1.LabelKeyMachineName]
	switch {
	case providerID != "" && node.Spec.ProviderID == providerID, mark == ours.Name:
		return "", nil
	case node.Annotations[annotationClusterAPI] != "":
		return fmt.Sprintf("belongs to Cluster API machine %q", node.Annotations[annotationClusterAPI]), nil
	case providerID == "" && node.Spec.ProviderID != "":
		return fmt.Sprintf("belongs to VM %s, but the machine has no VM", node.Spec.ProviderID), nil
	case node.CreationTimestamp.Before(&ours.CreationTimestamp):
		return fmt.Sprintf("is older than machine %q", ours.Name), nil
	case mark == "":
		return "", nil
	}
	// If the other Machine exists, it has given up the node. Otherwise it would take precedence.
	err := cache.Get(ctx, client.ObjectKey{Namespace: ours.Namespace, Name: mark}, &v1alpha1.Machine{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("has the label of machine %q, which does not exist in this namespace", mark), nil
	case err != nil:
		return "", fmt.Errorf("reading machine %s: %w", mark, err)
	}
	return "", nil
}
