package cloud

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// instances implements the part of the cloud provider that is about Nodes.
type instances struct{ *Provider }

var _ cloudprovider.InstancesV2 = instances{}

// InstanceExists returns false only if the VM is gone for certain. The caller then deletes the Node.
func (i instances) InstanceExists(ctx context.Context, node *corev1.Node) (bool, error) {
	name, infrastructure := node.Labels[LabelVM], node.Labels[LabelInfrastructure]
	if !i.owns(node.Spec.ProviderID) || name == "" || infrastructure == "" {
		return true, nil // not initialized here
	}
	cached, err := i.withProviderID(ctx, node.Spec.ProviderID)
	if err != nil || cached != nil {
		return true, err
	}
	uid, err := i.infrastructure(ctx)
	switch {
	case err != nil:
		return true, err
	case uid != infrastructure:
		return true, fmt.Errorf("node %s has its VM in a namespace with UID %s, but namespace %s has UID %s; "+
			"set --infrastructure-kubeconfig to the cluster of the VM, or delete the node if that cluster no longer exists", node.Name, infrastructure, i.Namespace, uid)
	}
	live := &vmv1alpha1.VirtualMachine{}
	err = i.Infrastructure.Get(ctx, client.ObjectKey{Namespace: i.Namespace, Name: name}, live)
	switch {
	case err == nil && providerID(live) == node.Spec.ProviderID:
		return true, nil // the cache is outdated
	case err != nil && !notFound(err):
		return true, fmt.Errorf("reading VirtualMachine %s/%s: %w", i.Namespace, name, err)
	}
	return i.replaced(ctx, node)
}

// notFound reports whether an API server responded that an object does not exist. The status code alone is not
// sufficient, because a proxy, or an API server without the CRD, may send it too.
func notFound(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// replaced reports whether a Node was replaced or became ready since the caller read it. The caller deletes it by name, so
// that it could delete the Node of a new VM.
func (i instances) replaced(ctx context.Context, node *corev1.Node) (bool, error) {
	live, err := i.Workload.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
	if err != nil {
		return true, fmt.Errorf("reading node %s: %w", node.Name, err)
	}
	ready := slices.ContainsFunc(live.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	return ready || live.UID != node.UID, nil
}

// InstanceShutdown reports whether the VM is shut down.
func (i instances) InstanceShutdown(ctx context.Context, node *corev1.Node) (bool, error) {
	if !i.owns(node.Spec.ProviderID) {
		return false, nil
	}
	vm, err := i.withProviderID(ctx, node.Spec.ProviderID)
	return vm != nil && vm.Status.Phase == vmv1alpha1.PhaseStopped, err
}

// InstanceMetadata returns the properties of the Node of a VM. For a Node of another provider, it returns nil if the Node
// is not initialized, and otherwise nothing to change.
func (i instances) InstanceMetadata(ctx context.Context, node *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	uninitialized := slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == cloudproviderapi.TaintExternalCloudProvider
	})
	switch foreign := !i.owns(node.Spec.ProviderID); {
	case foreign && uninitialized && node.Spec.ProviderID != "":
		return nil, nil
	case foreign && !uninitialized:
		return &cloudprovider.InstanceMetadata{}, nil
	}
	vm, err := i.find(ctx, node)
	if err != nil {
		return nil, err
	}
	metadata := &cloudprovider.InstanceMetadata{ProviderID: providerID(vm), NodeAddresses: addresses(vm, node.Name)}
	if len(metadata.NodeAddresses) == 1 {
		return nil, fmt.Errorf("VirtualMachine %s/%s of node %s has no address yet", vm.Namespace, vm.Name, node.Name)
	}
	if !uninitialized {
		return metadata, nil
	}
	uid, err := i.infrastructure(ctx)
	if err != nil {
		return nil, err
	}
	metadata.AdditionalLabels = map[string]string{LabelVM: vm.Name, LabelInfrastructure: uid}
	metadata.InstanceType = instanceType(vm)
	metadata.Zone, metadata.Region, err = i.topology(ctx, vm)
	return metadata, err
}

// owns reports whether a provider ID is that of a VM in the namespace.
func (i instances) owns(providerID string) bool { return strings.HasPrefix(providerID, i.prefix) }

// find returns the VM of a Node by its provider ID, or by its name if it has none.
func (i instances) find(ctx context.Context, node *corev1.Node) (*vmv1alpha1.VirtualMachine, error) {
	if node.Spec.ProviderID == "" {
		return i.withNodeName(ctx, node.Name)
	}
	vm, err := i.withProviderID(ctx, node.Spec.ProviderID)
	switch {
	case err != nil:
		return nil, err
	case vm == nil:
		return nil, fmt.Errorf("no VirtualMachine in namespace %s has the provider ID %s of node %s", i.Namespace, node.Spec.ProviderID, node.Name)
	case vm.Labels[LabelCluster] != i.Cluster:
		return nil, fmt.Errorf("VirtualMachine %s/%s of node %s does not have the label %s=%s", vm.Namespace, vm.Name, node.Name, LabelCluster, i.Cluster)
	}
	return vm, nil
}

// withProviderID returns the VM with a provider ID from the cache. It returns nil if there is none.
func (i instances) withProviderID(ctx context.Context, id string) (*vmv1alpha1.VirtualMachine, error) {
	vms := &vmv1alpha1.VirtualMachineList{}
	if err := i.Cache.List(ctx, vms, client.InNamespace(i.Namespace), client.MatchingFields{indexProviderID: id}); err != nil {
		return nil, fmt.Errorf("reading VirtualMachines: %w", err)
	}
	switch len(vms.Items) {
	case 0:
		return nil, nil
	case 1:
		return &vms.Items[0], nil
	}
	return nil, fmt.Errorf("VirtualMachines %s and %s have the same spec.uuid; give one of them another", vms.Items[0].Name, vms.Items[1].Name)
}

// withNodeName returns the VM of the cluster whose guest has a host name.
func (i instances) withNodeName(ctx context.Context, name string) (*vmv1alpha1.VirtualMachine, error) {
	vms := &vmv1alpha1.VirtualMachineList{}
	if err := i.Cache.List(ctx, vms, client.InNamespace(i.Namespace), client.MatchingFields{indexNodeName: name}, i.labeled()); err != nil {
		return nil, fmt.Errorf("reading VirtualMachines: %w", err)
	}
	switch {
	case len(vms.Items) == 0:
		return nil, fmt.Errorf("no VirtualMachine in namespace %s with the label %s=%s has the host name %s", i.Namespace, LabelCluster, i.Cluster, name)
	case len(vms.Items) > 1:
		return nil, fmt.Errorf("VirtualMachines %s and %s have the host name %s of a node; start the kubelet with --provider-id", vms.Items[0].Name, vms.Items[1].Name, name)
	case vms.Items[0].Spec.UUID == "":
		return nil, fmt.Errorf("VirtualMachine %s/%s of node %s has no UUID yet", i.Namespace, vms.Items[0].Name, name)
	}
	return &vms.Items[0], nil
}

// labeled selects the VMs of the cluster.
func (p *Provider) labeled() client.MatchingLabels {
	return client.MatchingLabels{LabelCluster: p.Cluster}
}

// infrastructure returns the UID of the namespace of the VMs.
func (p *Provider) infrastructure(ctx context.Context) (string, error) {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := p.Infrastructure.Get(ctx, client.ObjectKey{Name: p.Namespace}, namespace); err != nil {
		return "", fmt.Errorf("reading namespace %s of the infrastructure cluster: %w", p.Namespace, err)
	}
	return string(namespace.UID), nil
}

// topology returns the zone and the region of the host of a VM, if it has the labels and this process can read it.
func (p *Provider) topology(ctx context.Context, vm *vmv1alpha1.VirtualMachine) (zone, region string, err error) {
	if vm.Status.NodeName == "" {
		return "", "", nil
	}
	host := &metav1.PartialObjectMetadata{}
	host.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	err = p.Infrastructure.Get(ctx, client.ObjectKey{Name: vm.Status.NodeName}, host)
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		return "", "", nil
	case err != nil:
		return "", "", fmt.Errorf("reading host %s of VirtualMachine %s: %w", vm.Status.NodeName, vm.Name, err)
	}
	return host.Labels[corev1.LabelTopologyZone], host.Labels[corev1.LabelTopologyRegion], nil
}

// instanceType returns the label node.kubernetes.io/instance-type of a VM, or its size; empty if that is not set.
func instanceType(vm *vmv1alpha1.VirtualMachine) string {
	size := ""
	if vm.Spec.CPUs > 0 && vm.Spec.Memory != nil {
		size = fmt.Sprintf("%dcpu-%s", vm.Spec.CPUs, vm.Spec.Memory)
	}
	return cmp.Or(vm.Labels[corev1.LabelInstanceTypeStable], size)
}
