package cloud

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	cloudprovider "k8s.io/cloud-provider"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// PortPrefix and UDPPortPrefix are the prefixes of the names of those ports of VirtualMachines that are node ports of their
// cluster. The rest is the number. The names of ports with the same number must differ, and have at most 15 characters.
const (
	PortPrefix    = "node-port-"
	UDPPortPrefix = "node-udp-"
)

// portName returns the name of the port of VirtualMachines that is a node port. It is empty for a protocol that is not
// supported.
func portName(protocol corev1.Protocol, nodePort int32) string {
	switch protocol {
	case corev1.ProtocolTCP:
		return fmt.Sprint(PortPrefix, nodePort)
	case corev1.ProtocolUDP:
		return fmt.Sprint(UDPPortPrefix, nodePort)
	default:
		return ""
	}
}

const (
	servicePrefix = "lb-"
	hashLength    = 12
	// MaxCluster is the maximum length of Options.Cluster, so that names of Services are valid.
	MaxCluster = 63 - len(servicePrefix) - 1 - hashLength
)

// balancer implements the part of the cloud provider that is about Services of type LoadBalancer. For each of them, there
// is a Service of the same type in the infrastructure cluster, which leads to the node ports of the VMs.
type balancer struct{ *Provider }

var _ cloudprovider.LoadBalancer = balancer{}

// GetLoadBalancer implements cloudprovider.LoadBalancer.
func (b balancer) GetLoadBalancer(ctx context.Context, _ string, service *corev1.Service) (*corev1.LoadBalancerStatus, bool, error) {
	loadBalancer, err := b.read(ctx, service)
	if err != nil || loadBalancer == nil || !b.belongs(loadBalancer, service) {
		return nil, false, err
	}
	return &loadBalancer.Status.LoadBalancer, true, nil
}

// GetLoadBalancerName implements cloudprovider.LoadBalancer. The name contains a hash of the UID, so that a new Service
// does not get the address of an earlier one with the same name that is still being deleted.
func (b balancer) GetLoadBalancerName(_ context.Context, _ string, service *corev1.Service) string {
	hash := sha256.Sum256([]byte(service.UID))
	return servicePrefix + b.Cluster + "-" + hex.EncodeToString(hash[:])[:hashLength]
}

// EnsureLoadBalancer creates or updates the Service in the infrastructure cluster. The returned status is empty until that
// Service has an address.
func (b balancer) EnsureLoadBalancer(ctx context.Context, _ string, service *corev1.Service, _ []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
	if err := supported(service); err != nil {
		return nil, err
	}
	if err := b.checkPorts(ctx, service); err != nil {
		return nil, err
	}
	loadBalancer, err := b.read(ctx, service)
	if err != nil {
		return nil, err
	}
	if loadBalancer == nil {
		loadBalancer = &corev1.Service{}
		loadBalancer.Namespace, loadBalancer.Name = b.Namespace, b.GetLoadBalancerName(ctx, "", service)
		b.fill(loadBalancer, service)
		if err := b.Infrastructure.Create(ctx, loadBalancer); err != nil {
			return nil, fmt.Errorf("creating service %s/%s in the infrastructure cluster: %w", loadBalancer.Namespace, loadBalancer.Name, err)
		}
		return &loadBalancer.Status.LoadBalancer, nil
	}
	if !b.belongs(loadBalancer, service) {
		return nil, fmt.Errorf("service %s/%s of the infrastructure cluster was not created for this service; rename or delete it", loadBalancer.Namespace, loadBalancer.Name)
	}
	next := loadBalancer.DeepCopy()
	b.fill(next, service)
	if !equality.Semantic.DeepEqual(loadBalancer, next) {
		if err := b.Infrastructure.Update(ctx, next); err != nil {
			return nil, fmt.Errorf("updating service %s/%s in the infrastructure cluster: %w", loadBalancer.Namespace, loadBalancer.Name, err)
		}
	}
	return &next.Status.LoadBalancer, nil
}

// UpdateLoadBalancer implements cloudprovider.LoadBalancer. It does nothing: Kubernetes selects the VMs in the
// infrastructure cluster.
func (balancer) UpdateLoadBalancer(context.Context, string, *corev1.Service, []*corev1.Node) error {
	return cloudprovider.ImplementedElsewhere
}

// EnsureLoadBalancerDeleted deletes the Service in the infrastructure cluster.
func (b balancer) EnsureLoadBalancerDeleted(ctx context.Context, _ string, service *corev1.Service) error {
	loadBalancer, err := b.read(ctx, service)
	if err != nil || loadBalancer == nil || !b.belongs(loadBalancer, service) || loadBalancer.DeletionTimestamp != nil {
		return err
	}
	uid := client.Preconditions{UID: &loadBalancer.UID}
	if err := b.Infrastructure.Delete(ctx, loadBalancer, uid); err != nil && !notFound(err) {
		return fmt.Errorf("deleting service %s/%s in the infrastructure cluster: %w", loadBalancer.Namespace, loadBalancer.Name, err)
	}
	return nil
}

// read returns the Service in the infrastructure cluster with the name for a Service. It returns nil if there is none.
func (b balancer) read(ctx context.Context, service *corev1.Service) (*corev1.Service, error) {
	loadBalancer := &corev1.Service{}
	key := client.ObjectKey{Namespace: b.Namespace, Name: b.GetLoadBalancerName(ctx, "", service)}
	switch err := b.Infrastructure.Get(ctx, key, loadBalancer); {
	case err == nil:
		return loadBalancer, nil
	case notFound(err):
		return nil, nil
	default:
		return nil, fmt.Errorf("reading service %s in the infrastructure cluster: %w", key, err)
	}
}

// belongs reports whether a Service in the infrastructure cluster was created for a Service.
func (b balancer) belongs(loadBalancer, service *corev1.Service) bool {
	return loadBalancer.Labels[LabelCluster] == b.Cluster && loadBalancer.Annotations[AnnotationServiceUID] == string(service.UID)
}

// fill sets the fields of a Service in the infrastructure cluster. The selector does not depend on the users of the cluster.
func (b balancer) fill(loadBalancer, service *corev1.Service) {
	metav1.SetMetaDataLabel(&loadBalancer.ObjectMeta, LabelCluster, b.Cluster)
	metav1.SetMetaDataAnnotation(&loadBalancer.ObjectMeta, AnnotationService, service.Namespace+"/"+service.Name)
	metav1.SetMetaDataAnnotation(&loadBalancer.ObjectMeta, AnnotationServiceUID, string(service.UID))
	loadBalancer.Spec.Type = corev1.ServiceTypeLoadBalancer
	loadBalancer.Spec.Selector = b.labeled()
	loadBalancer.Spec.LoadBalancerSourceRanges = service.Spec.LoadBalancerSourceRanges
	type servicePort struct {
		protocol corev1.Protocol
		port     int32
	}
	assigned := map[servicePort]int32{} // node ports of the infrastructure cluster
	for _, port := range loadBalancer.Spec.Ports {
		assigned[servicePort{port.Protocol, port.Port}] = port.NodePort
	}
	loadBalancer.Spec.Ports = nil
	for _, port := range service.Spec.Ports {
		loadBalancer.Spec.Ports = append(loadBalancer.Spec.Ports, corev1.ServicePort{
			Name: port.Name, Protocol: port.Protocol, AppProtocol: port.AppProtocol, Port: port.Port,
			NodePort: assigned[servicePort{port.Protocol, port.Port}],
			// Kubernetes then omits VMs that do not have the port.
			TargetPort: intstr.FromString(portName(port.Protocol, port.NodePort)),
		})
	}
}

// supported returns an error if a Service needs what this package does not support.
func supported(service *corev1.Service) error {
	if service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		return errors.New("externalTrafficPolicy Local is not supported; set it to Cluster")
	}
	if service.Spec.LoadBalancerIP != "" {
		return errors.New("loadBalancerIP is not supported; remove it")
	}
	for _, port := range service.Spec.Ports {
		if portName(port.Protocol, port.NodePort) == "" {
			return fmt.Errorf("port %d has protocol %s, but only TCP and UDP are supported", port.Port, port.Protocol)
		}
		if port.NodePort == 0 {
			return fmt.Errorf("port %d has no node port; set allocateLoadBalancerNodePorts to true", port.Port)
		}
	}
	return nil
}

// checkPorts returns an error if no VM of the cluster opens a node port of a Service.
func (b balancer) checkPorts(ctx context.Context, service *corev1.Service) error {
	vms := &vmv1alpha1.VirtualMachineList{}
	if err := b.Cache.List(ctx, vms, client.InNamespace(b.Namespace), b.labeled(), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("reading VirtualMachines: %w", err)
	}
	open := map[corev1.Protocol]map[int32]bool{corev1.ProtocolTCP: {}, corev1.ProtocolUDP: {}}
	for _, vm := range vms.Items {
		for _, port := range vm.Spec.Ports {
			if protocol := cmp.Or(port.Protocol, corev1.ProtocolTCP); port.Name == portName(protocol, port.Port) {
				open[protocol][port.Port] = true
			}
		}
	}
	for _, port := range service.Spec.Ports {
		name, ports := portName(port.Protocol, port.NodePort), open[port.Protocol]
		switch {
		case ports[port.NodePort]:
		case len(ports) == 0:
			return fmt.Errorf("no VirtualMachine of the cluster has %s ports; add ports with names such as %s to spec.ports of VirtualMachines with the label %s=%s",
				port.Protocol, name, LabelCluster, b.Cluster)
		default:
			return fmt.Errorf("%s node port %d of port %d is not open, because no VirtualMachine of the cluster has a port %s; set nodePort to one of %v",
				port.Protocol, port.NodePort, port.Port, name, slices.Sorted(maps.Keys(ports)))
		}
	}
	return nil
}
