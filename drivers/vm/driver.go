// Package vm is a driver whose machines are VirtualMachine objects.
//
// For each machine, it creates a VirtualMachine in the infrastructure cluster, where the VM controller runs a
// hypervisor for it, and a Secret of the same name with the machine's user data. The infrastructure cluster is that
// of the kubeconfig in the class's Secret, or else that of [Options.Client]. docs/drivers/vm.md describes the
// provider specification and the error codes.
//
// # Identity
//
// The name of a VirtualMachine is derived from the installation and from the machine's API group, namespace and
// name, so a repeated creation finds the first VM. An annotation ([AnnotationIdentity]) contains the same values in
// full. The driver lists, adopts and deletes a VirtualMachine only if its name and annotation match and its cluster
// is that of the class's tags. If the machine has a provider ID, the UUID in it is compared instead of the cluster,
// because a class can be edited while its VMs exist.
//
// A provider ID is "millwright:///<namespace>/<uuid>". The UUID is random and new for each object, so a VM that is
// created later under the same name has another ID.
//
// # Order of writes
//
// The Secret is written before the VirtualMachine. Once the VirtualMachine exists, GetMachineStatus finds it and
// CreateMachine is not called again, so everything that the VM needs must exist by then. The Secret gets its owner
// reference afterwards. DeleteMachine deletes the Secret by name, because it may not have an owner reference.
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

// Options configure a [Driver]. With the zero value, it serves only classes whose Secret contains a kubeconfig.
type Options struct {
	// Client is the client for the infrastructure cluster of classes whose Secret has no kubeconfig. It must read
	// from the API server, not from a cache, and its scheme must have Secrets, Nodes, Namespaces and
	// VirtualMachines; see NewClient. If it is nil, the driver rejects such classes with FailedPrecondition.
	Client client.WithWatch
	// Endpoint identifies the cluster of Client if the driver cannot read the namespace kube-system; see
	// [Endpoint].
	Endpoint string
	// Installation distinguishes control planes that share an infrastructure namespace. It must never change,
	// because the driver recognizes its VMs by it. The empty string is valid.
	Installation string
	// Timeout is the maximum time for which CreateMachine waits until the VM has a host, and DeleteMachine until it
	// is gone. The context may have an earlier deadline. If it is zero or negative, DefaultTimeout is used.
	Timeout time.Duration
	// Settle is the time for which the VM must be unschedulable before CreateMachine deletes it and returns
	// ResourceExhausted. It gives a host time to start. If it is zero or negative, DefaultSettle is used.
	Settle time.Duration
	// Clock measures Settle. If nil, the real clock is used.
	Clock clock.WithDelayedExecution
}

// Driver creates VirtualMachine objects for machines. It also implements driver.FailureDomains,
// driver.VolumeIdentifier, driver.APIGroupSeparator, driver.Locator and driver.Updater. Create it with [New]. It
// may be used concurrently.
type Driver struct {
	options  Options
	clusters clusters
	// budget is shared by all calls to clusters of classes.
	budget *budget
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
	// JSON preserves only valid UTF-8.
	options.Installation = strings.ToValidUTF8(options.Installation, "?")
	known := clusters{recent: lru.New(maxClients)}
	if options.Client != nil {
		known.standard = &infrastructure{WithWatch: options.Client, endpoint: cmp.Or(options.Endpoint, "own"), pageSize: trustedPage}
	}
	return &Driver{options: options, clusters: known, budget: &budget{left: maxDecoded}}
}

// SeparatesAPIGroups implements driver.APIGroupSeparator.
func (d *Driver) SeparatesAPIGroups() bool { return true }

// CreateMachine implements driver.Driver. It returns when the VM has a host.
//
// If no host has capacity for the duration of Options.Settle, it deletes the VM and returns ResourceExhausted with
// the scheduler's message. If the VM is neither scheduled nor unschedulable within Options.Timeout, it returns
// DeadlineExceeded and the VM stays.
func (d *Driver) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	ctx, end := d.budget.begin(ctx)
	defer end()
	c, err := d.read(request{req.Machine, req.MachineClass, req.Secret, parseSpec})
	if err == nil {
		err = c.checkNodeName()
	}
	if err != nil {
		return nil, err
	}
	vm, err := d.create(ctx, &c)
	if err != nil {
		return nil, coded(fmt.Sprintf("cannot create VM %s", c.key), err)
	}
	return &driver.CreateMachineResponse{
		ProviderID: ProviderID(vm), NodeName: c.nodeName(), Addresses: c.addresses(vm), FailureDomain: c.failureDomain(ctx, vm),
	}, nil
}

// DeleteMachine implements driver.Driver. It returns when the VM is gone, or returns DeadlineExceeded after
// Options.Timeout.
func (d *Driver) DeleteMachine(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	ctx, end := d.budget.begin(ctx)
	defer end()
	c, err := d.read(request{req.Machine, req.MachineClass, req.Secret, parseToFind})
	if err == nil {
		err = d.lookWhereBegun(ctx, &c, req.Machine)
	}
	if err != nil {
		return nil, err
	}
	if err := d.delete(ctx, c); err != nil {
		return nil, coded(fmt.Sprintf("cannot delete VM %s", c.key), err)
	}
	return &driver.DeleteMachineResponse{}, nil
}

// GetMachineStatus implements driver.Driver. It also finds a VM that has no host yet or is being deleted.
func (d *Driver) GetMachineStatus(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	ctx, end := d.budget.begin(ctx)
	defer end()
	c, vm, err := d.find(ctx, request{req.Machine, req.MachineClass, req.Secret, parseToFind})
	if err != nil {
		return nil, err
	}
	return &driver.GetMachineStatusResponse{
		ProviderID: ProviderID(vm), NodeName: c.nodeName(), Addresses: c.addresses(vm), FailureDomain: c.failureDomain(ctx, vm),
	}, nil
}

// find returns the VM of a Machine, or an error with the code NotFound.
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
		return call{}, nil, coded(fmt.Sprintf("cannot get VM %s", c.key), err)
	}
	if vm == nil || !c.isRequested(vm) {
		return call{}, nil, status.Error(codes.NotFound, fmt.Sprintf("VM %s with provider ID %q does not exist", c.key, c.providerID))
	}
	return c, vm, nil
}

// ListMachines implements driver.Driver. It returns the VMs in the class's pool that this installation created for
// machines of the class's namespace, API group, cluster and role.
func (d *Driver) ListMachines(ctx context.Context, req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	ctx, end := d.budget.begin(ctx)
	defer end()
	c, err := d.readClass(request{nil, req.MachineClass, req.Secret, parseToList})
	if err != nil {
		return nil, err
	}
	machines, err := c.list(ctx)
	if err != nil {
		return nil, coded(fmt.Sprintf("cannot list VMs in namespace %s", c.key.Namespace), err)
	}
	return &driver.ListMachinesResponse{MachineList: machines}, nil
}

// AttributeLabel is an attribute of failure domains: the Node label whose value is the name of the failure domain.
const AttributeLabel = "label"

// GetVolumeIDs implements driver.VolumeIdentifier. It returns the handles of CSI volumes of any storage system,
// because nodes report attached volumes by these handles. Other volumes are left out.
func (d *Driver) GetVolumeIDs(ctx context.Context, req *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, coded("cannot get volume IDs", err)
	}
	resp := &driver.GetVolumeIDsResponse{}
	for _, pv := range req.PVSpecs {
		if pv != nil && pv.CSI != nil && pv.CSI.VolumeHandle != "" {
			resp.VolumeIDs = append(resp.VolumeIDs, pv.CSI.VolumeHandle)
		}
	}
	return resp, nil
}

// ListFailureDomains implements driver.FailureDomains. It returns the zones of the hosts, and each host without a
// zone, whether or not hosts are ready. It uses only the Secret of the request.
func (d *Driver) ListFailureDomains(ctx context.Context, req *driver.ListFailureDomainsRequest) (*driver.ListFailureDomainsResponse, error) {
	ctx, end := d.budget.begin(ctx)
	defer end()
	cluster, err := d.clusters.get(req.Secret)
	if err != nil {
		return nil, err
	}
	domains, err := domainsOf(ctx, cluster, client.MatchingLabels{vmv1alpha1.HostKey: ""})
	if err != nil {
		return nil, coded("cannot list hosts", err)
	}
	return &driver.ListFailureDomainsResponse{FailureDomains: domains.sorted()}, nil
}

// failureDomain returns the failure domain of a VM, from its specification or from its host. It is empty if the VM
// has no host yet, or if the host cannot be read, which is not an error.
func (c call) failureDomain(ctx context.Context, vm *vmv1alpha1.VirtualMachine) string {
	if vm.Spec.FailureDomain != "" || vm.Status.NodeName == "" {
		return vm.Spec.FailureDomain
	}
	domains, err := domainsOf(ctx, c.cluster, client.MatchingFields{metav1.ObjectNameField: vm.Status.NodeName})
	if err != nil {
		logr.FromContextOrDiscard(ctx).V(1).Info("Cannot determine the failure domain of a VM", "vm", c.key, "reason", err.Error())
		return ""
	}
	for _, domain := range domains.sorted() {
		return domain.Name
	}
	return ""
}

// domains contains the Node labels of failure domains by their names.
type domains map[string]string

// domainsOf returns the failure domains of the selected hosts.
func domainsOf(ctx context.Context, cluster *infrastructure, which client.ListOption) (domains, error) {
	hosts, found := &metav1.PartialObjectMetadataList{}, domains{}
	hosts.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	err := cluster.eachPage(ctx, hosts, func() { found.add(hosts.Items) }, which)
	return found, err
}

// add adds the failure domains of hosts. The VM controller selects the hosts of a VM by the same rule.
func (d domains) add(hosts []metav1.PartialObjectMetadata) {
	for i := range hosts {
		zone, hasZone := hosts[i].Labels[corev1.LabelTopologyZone]
		host := hosts[i].Labels[corev1.LabelHostname]
		switch {
		case max(len(zone), len(host)) > validation.LabelValueMaxLength: // an API server would have rejected it
		case zone != "":
			d[zone] = corev1.LabelTopologyZone
		case !hasZone && host != "" && d[host] == "":
			d[host] = corev1.LabelHostname
		}
	}
}

func (d domains) sorted() []driver.FailureDomain {
	var sorted []driver.FailureDomain
	for _, name := range slices.Sorted(maps.Keys(d)) {
		sorted = append(sorted, driver.FailureDomain{Name: name, Attributes: map[string]string{AttributeLabel: d[name]}})
	}
	return sorted
}

// PlaceMachine implements driver.FailureDomains. It sets the field failureDomain.
func (d *Driver) PlaceMachine(_ context.Context, req *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	if wrong := validation.IsValidLabelValue(req.FailureDomain); req.FailureDomain == "" || len(wrong) > 0 {
		return nil, status.Error(codes.NotFound, fmt.Sprintf("failure domain %q is not a valid zone or host name: %s", req.FailureDomain, strings.Join(wrong, ", ")))
	}
	spec, err := driver.WithField(req.MachineClass.ProviderSpec, failureDomainField, req.FailureDomain)
	if err != nil {
		return nil, err
	}
	return &driver.PlaceMachineResponse{ProviderSpec: spec}, nil
}
