// Package cloud is the cloud provider of clusters whose Nodes are VirtualMachines, for the controllers of
// k8s.io/cloud-provider. VirtualMachines, and the Services that route connections to them, are in an
// infrastructure cluster.
package cloud

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	cloudprovider "k8s.io/cloud-provider"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/drivers/vm"
)

const prefix = "cloud.millwright.dev/"

// Labels of Nodes, which are set when the Node is initialized. A Node without them is never deleted.
const (
	// LabelVM is the name of the VirtualMachine.
	LabelVM = prefix + "virtual-machine"
	// LabelInfrastructure is the UID of the namespace of the VirtualMachine. With a kubeconfig of another cluster, all
	// VirtualMachines seem to be missing.
	LabelInfrastructure = prefix + "infrastructure"
)

// LabelCluster is a label of a VirtualMachine whose guest is a Node, and of the Services that lead to it: the name of the
// cluster. The VM controller copies labels with this prefix to Pods, where Services can select them.
const LabelCluster = "vm.metropolis.monogon.dev/cluster"

// The annotations of a Service in the infrastructure cluster.
const (
	// AnnotationService is the namespace and name, separated by a slash, of the Service that it belongs to.
	AnnotationService = prefix + "service"
	// AnnotationServiceUID is the UID of the Service that it belongs to.
	AnnotationServiceUID = prefix + "service-uid"
)

// Options configure a Provider. All fields are required.
type Options struct {
	// Cache reads VirtualMachines of Namespace. It must have the indexes of AddIndexes.
	Cache client.Reader
	// Infrastructure reads from the API server of the infrastructure cluster, not from a cache, and writes Services.
	Infrastructure client.Client
	// Workload is a client of the cluster of the Nodes.
	Workload kubernetes.Interface
	// Namespace is the namespace of the VirtualMachines.
	Namespace string
	// Cluster is the value of the label LabelCluster of the VirtualMachines whose Nodes are initialized, and
	// to which Services lead. It is part of the names of Services, so that it has at most MaxCluster characters.
	Cluster string
}

// Provider is the cloud provider of one cluster.
type Provider struct {
	Options
	prefix string // of provider IDs
}

var _ cloudprovider.Interface = (*Provider)(nil)

// New returns a Provider.
func New(options Options) *Provider {
	return &Provider{options, vm.ProviderIDPrefix(options.Namespace)}
}

// Initialize implements cloudprovider.Interface.
func (*Provider) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}

// LoadBalancer implements cloudprovider.Interface.
func (p *Provider) LoadBalancer() (cloudprovider.LoadBalancer, bool) { return balancer{p}, true }

// Instances implements cloudprovider.Interface. It is not supported.
func (*Provider) Instances() (cloudprovider.Instances, bool) { return nil, false }

// InstancesV2 implements cloudprovider.Interface.
func (p *Provider) InstancesV2() (cloudprovider.InstancesV2, bool) { return instances{p}, true }

// Zones implements cloudprovider.Interface. It is not supported.
func (*Provider) Zones() (cloudprovider.Zones, bool) { return nil, false }

// Clusters implements cloudprovider.Interface. It is not supported.
func (*Provider) Clusters() (cloudprovider.Clusters, bool) { return nil, false }

// Routes implements cloudprovider.Interface. It is not supported.
func (*Provider) Routes() (cloudprovider.Routes, bool) { return nil, false }

// ProviderName implements cloudprovider.Interface.
func (*Provider) ProviderName() string { return "millwright" }

// HasClusterID implements cloudprovider.Interface.
func (*Provider) HasClusterID() bool { return true }

// Indexes of VirtualMachines.
const (
	indexProviderID = "provider ID"
	indexNodeName   = "node name"
)

var indexes = map[string]client.IndexerFunc{indexProviderID: indexed(providerID), indexNodeName: indexed(nodeName)}

// indexed returns the function of an index. A VM with an empty value is not part of the index.
func indexed(of func(*vmv1alpha1.VirtualMachine) string) client.IndexerFunc {
	return func(object client.Object) []string {
		if value := of(object.(*vmv1alpha1.VirtualMachine)); value != "" {
			return []string{value}
		}
		return nil
	}
}

// AddIndexes adds the indexes of the Provider to a cache.
func AddIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for name, of := range indexes {
		if err := indexer.IndexField(ctx, &vmv1alpha1.VirtualMachine{}, name, of); err != nil {
			return fmt.Errorf("indexing VirtualMachines by %s: %w", name, err)
		}
	}
	return nil
}

// providerID returns the provider ID of the Node of a VM; empty if the VM has none yet.
func providerID(of *vmv1alpha1.VirtualMachine) string {
	if of.Spec.UUID == "" {
		return ""
	}
	return vm.ProviderID(of)
}

// nodeName returns the name of the Node of a VM, which is the host name of the guest.
func nodeName(of *vmv1alpha1.VirtualMachine) string {
	if data := of.Spec.UserData; data != nil && data.HostName != "" {
		return data.HostName
	}
	return of.Name
}

// addresses returns the addresses of the Node of a VM, or only its host name if they are not known yet.
func addresses(of *vmv1alpha1.VirtualMachine, node string) []corev1.NodeAddress {
	var known []corev1.NodeAddress
	for _, address := range of.Status.Addresses {
		known = append(known, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	if len(known) == 0 {
		for _, address := range of.Spec.VMIPs {
			if parsed, err := netip.ParsePrefix(address); err == nil {
				address = parsed.Addr().String()
			}
			known = append(known, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
		}
	}
	return append(known, corev1.NodeAddress{Type: corev1.NodeHostName, Address: node})
}
