// Package vm is a driver whose machines are VirtualMachine objects.
//
// For each machine it creates a VirtualMachine in the infrastructure cluster, for which the
// VM controller there runs a hypervisor, and a Secret of the same name with the machine's
// user data. The infrastructure cluster is that of the kubeconfig in the class's Secret, or
// else that of [Options.Client]. docs/driver-vm.md describes the provider specification and
// the error codes.
//
// # Identity
//
// The name of a VirtualMachine is derived from the installation and from the machine's API
// group, namespace and name, so a repeated creation finds the first one. The same is in an
// annotation in full ([AnnotationIdentity]). The driver lists, adopts and deletes a
// VirtualMachine only if name and annotation agree and its cluster is that of the class's
// tags. With a stored provider ID the UUID in it counts instead of the cluster: a class can be
// edited while its VMs exist.
//
// A provider ID is "millwright:///<namespace>/<uuid>". The UUID is random and new for each
// object, so a VM that is created later under the same name has another ID.
//
// # Order of writes
//
// The Secret is written before the VirtualMachine: as soon as the VirtualMachine exists,
// GetMachineStatus finds it and CreateMachine is not called again, so everything that the
// VM needs must exist by then. The Secret gets its owner reference afterwards.
// DeleteMachine deletes it by name, in case it has none.
package vm

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// DefaultTimeout is the default of Options.Timeout.
const DefaultTimeout = 2 * time.Minute

// DefaultSettle is the default of Options.Settle.
const DefaultSettle = 2 * time.Second

// Options configure a [Driver]. With the zero value it serves only classes whose Secret has
// a kubeconfig.
type Options struct {
	// Client is for the infrastructure cluster of classes whose Secret has no kubeconfig.
	// It must read from the API server, not from a cache, and its scheme must have
	// Secrets, Nodes, Namespaces and VirtualMachines; see NewClient. If it is nil, such classes are
	// refused with FailedPrecondition.
	Client client.WithWatch
	// Endpoint identifies the cluster of Client where the driver may not read the namespace
	// kube-system; see [Endpoint].
	Endpoint string
	// Installation distinguishes control planes that share an infrastructure namespace. It
	// must never change: the driver recognises its VMs by it. Empty is a valid value.
	Installation string
	// Timeout is how long CreateMachine waits until the VM has a host, and
	// DeleteMachine until it is gone, unless the context ends before. Zero or less means
	// DefaultTimeout.
	Timeout time.Duration
	// Settle is how long the VM must be unschedulable before CreateMachine deletes it and
	// answers ResourceExhausted. A host that is just starting has that time. Zero or less
	// means DefaultSettle.
	Settle time.Duration
	// Clock measures Settle. Nil means the real one.
	Clock clock.WithDelayedExecution
}

// Driver creates VirtualMachine objects for machines. Of the optional interfaces it
// implements driver.FailureDomains, driver.VolumeIdentifier, driver.APIGroupSeparator,
// driver.Locator and driver.Updater.
// Make it with [New]. It may be used concurrently.
type Driver struct {
	options  Options
	clusters clusters
}

var (
	_ driver.Driver           = (*Driver)(nil)
	_ driver.FailureDomains   = (*Driver)(nil)
	_ driver.VolumeIdentifier = (*Driver)(nil)
	_ driver.Locator          = (*Driver)(nil)
	_ driver.Updater          = (*Driver)(nil)
)

// New returns a driver. It sends no request.
func New(options Options) *Driver {
	if options.Timeout <= 0 {
		options.Timeout = DefaultTimeout
	}
	if options.Settle <= 0 {
		options.Settle = DefaultSettle
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	// Only valid UTF-8 is unchanged after a round trip through JSON.
	options.Installation = strings.ToValidUTF8(options.Installation, "?")
	known := clusters{recent: lru.New(maxClients)}
	if options.Client != nil {
		known.standard = &infrastructure{WithWatch: options.Client, endpoint: cmp.Or(options.Endpoint, "own")}
	}
	return &Driver{options: options, clusters: known}
}

// SeparatesAPIGroups implements driver.APIGroupSeparator.
func (d *Driver) SeparatesAPIGroups() bool { return true }

// CreateMachine implements driver.Driver. It returns when the VM has a host.
//
// If no host has room for the duration of Options.Settle, the VM is deleted, and the answer
// is ResourceExhausted with the message of the scheduler. If it is neither scheduled nor
// unschedulable within Options.Timeout, the answer is DeadlineExceeded and the VM stays.
func (d *Driver) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	c, err := d.read(request{req.Machine, req.MachineClass, req.Secret, codes.OutOfRange})
	if err != nil {
		return nil, err
	}
	vm, err := d.create(ctx, c)
	if err != nil {
		return nil, coded(fmt.Sprintf("creating VM %s", c.key), err)
	}
	return &driver.CreateMachineResponse{
		ProviderID: providerID(vm), NodeName: c.nodeName(), Addresses: c.addresses(vm), FailureDomain: c.failureDomain(ctx, vm),
	}, nil
}

// DeleteMachine implements driver.Driver. It returns when the VM is gone, or with
// DeadlineExceeded after Options.Timeout.
func (d *Driver) DeleteMachine(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	c, err := d.read(request{req.Machine, req.MachineClass, req.Secret, codes.InvalidArgument})
	if err == nil {
		err = d.lookWhereBegun(ctx, &c, req.Machine)
	}
	if err != nil {
		return nil, err
	}
	if err := d.delete(ctx, c); err != nil {
		return nil, coded(fmt.Sprintf("deleting VM %s", c.key), err)
	}
	return &driver.DeleteMachineResponse{}, nil
}

// GetMachineStatus implements driver.Driver. A VM that has no host yet, or is being
// deleted, exists.
func (d *Driver) GetMachineStatus(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	c, vm, err := d.find(ctx, request{req.Machine, req.MachineClass, req.Secret, codes.InvalidArgument})
	if err != nil {
		return nil, err
	}
	return &driver.GetMachineStatusResponse{
		ProviderID: providerID(vm), NodeName: c.nodeName(), Addresses: c.addresses(vm), FailureDomain: c.failureDomain(ctx, vm),
	}, nil
}

// find returns the VM of a Machine, or the error NotFound.
func (d *Driver) find(ctx context.Context, req request) (call, *vmv1alpha1.VirtualMachine, error) {
	c, err := d.read(req)
	if err == nil {
		err = d.lookWhereBegun(ctx, &c, req.machine)
	}
	if err != nil {
		return call{}, nil, err
	}
	vm, err := c.get(ctx)
	if err != nil {
		return call{}, nil, coded(fmt.Sprintf("looking for VM %s", c.key), err)
	}
	if vm == nil || !c.isWanted(vm) {
		return call{}, nil, status.Error(codes.NotFound, fmt.Sprintf("there is no VM %s with provider ID %q", c.key, c.providerID))
	}
	return c, vm, nil
}

// ListMachines implements driver.Driver. It returns the VMs in the class's pool that this
// installation created for machines of the class's namespace, API group, cluster and role.
func (d *Driver) ListMachines(ctx context.Context, req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	c, err := d.readClass(request{nil, req.MachineClass, req.Secret, codes.InvalidArgument})
	if err != nil {
		return nil, err
	}
	machines, err := c.list(ctx)
	if err != nil {
		return nil, coded(fmt.Sprintf("listing VMs in %s", c.key.Namespace), err)
	}
	return &driver.ListMachinesResponse{MachineList: machines}, nil
}

// AttributeLabel is an attribute of failure domains: the label of Nodes whose value is the
// name of the failure domain.
const AttributeLabel = "label"

// GetVolumeIDs implements driver.VolumeIdentifier. It returns the handles of CSI volumes, whatever their
// storage system: under these a node reports them as attached. Other volumes are left out.
func (d *Driver) GetVolumeIDs(ctx context.Context, req *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, coded("reading volumes", err)
	}
	resp := &driver.GetVolumeIDsResponse{}
	for _, pv := range req.PVSpecs {
		if pv != nil && pv.CSI != nil && pv.CSI.VolumeHandle != "" {
			resp.VolumeIDs = append(resp.VolumeIDs, pv.CSI.VolumeHandle)
		}
	}
	return resp, nil
}

// ListFailureDomains implements driver.FailureDomains. It returns the zones of the hosts, and
// each host without a zone, whether hosts are ready or not. It uses only the Secret of the
// request.
func (d *Driver) ListFailureDomains(ctx context.Context, req *driver.ListFailureDomainsRequest) (*driver.ListFailureDomainsResponse, error) {
	cluster, err := d.clusters.get(req.Secret)
	if err != nil {
		return nil, err
	}
	hosts, err := hostsOf(ctx, cluster, client.MatchingLabels{vmv1alpha1.HostKey: ""})
	if err != nil {
		return nil, coded("listing hosts", err)
	}
	return &driver.ListFailureDomainsResponse{FailureDomains: domainsOf(hosts)}, nil
}

func hostsOf(ctx context.Context, cluster client.Reader, which client.ListOption) ([]metav1.PartialObjectMetadata, error) {
	hosts := &metav1.PartialObjectMetadataList{}
	hosts.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	err := cluster.List(ctx, hosts, which)
	return hosts.Items, err
}

// failureDomain returns that of a VM: the one of its specification, or that of its host. It is empty if
// the VM has no host yet, or the host cannot be read: the VM is there nevertheless.
func (c call) failureDomain(ctx context.Context, vm *vmv1alpha1.VirtualMachine) string {
	if vm.Spec.FailureDomain != "" || vm.Status.NodeName == "" {
		return vm.Spec.FailureDomain
	}
	hosts, err := hostsOf(ctx, c.cluster, client.MatchingFields{metav1.ObjectNameField: vm.Status.NodeName})
	if err != nil {
		logr.FromContextOrDiscard(ctx).V(1).Info("The failure domain of a VM is not known", "vm", c.key, "reason", err.Error())
		return ""
	}
	for _, domain := range domainsOf(hosts) {
		return domain.Name
	}
	return ""
}

// domainsOf returns the failure domains of hosts, by the rule by which the VM controller
// selects the hosts of a VM.
func domainsOf(hosts []metav1.PartialObjectMetadata) []driver.FailureDomain {
	labels := map[string]string{}
	for i := range hosts {
		zone, hasZone := hosts[i].Labels[corev1.LabelTopologyZone]
		host := hosts[i].Labels[corev1.LabelHostname]
		switch {
		case zone != "":
			labels[zone] = corev1.LabelTopologyZone
		case !hasZone && host != "" && labels[host] == "":
			labels[host] = corev1.LabelHostname
		}
	}
	var domains []driver.FailureDomain
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		domains = append(domains, driver.FailureDomain{Name: name, Attributes: map[string]string{AttributeLabel: labels[name]}})
	}
	return domains
}

// PlaceMachine implements driver.FailureDomains. It sets the field failureDomain.
func (d *Driver) PlaceMachine(_ context.Context, req *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	if wrong := validation.IsValidLabelValue(req.FailureDomain); req.FailureDomain == "" || len(wrong) > 0 {
		return nil, status.Error(codes.NotFound, fmt.Sprintf("no host can have %q as its zone or name: %s", req.FailureDomain, strings.Join(wrong, ", ")))
	}
	spec, err := driver.WithField(req.MachineClass.ProviderSpec, failureDomainField, req.FailureDomain)
	if err != nil {
		return nil, err
	}
	return &driver.PlaceMachineResponse{ProviderSpec: spec}, nil
}
