package vm

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// Keys of a class's Secret.
const (
	// userDataKey is the key of the user data. The driver's own Secrets have the same key.
	userDataKey = "userData"
	// kubeconfigKey is the key of the kubeconfig for the infrastructure cluster.
	kubeconfigKey = "kubeconfig"
)

// defaultNamespace is the namespace of machines and classes without one.
const defaultNamespace = "default"

// longestUUID is the length of a UUID in text form.
const longestUUID = 36

// request contains the fields that all requests of the driver have.
type request struct {
	machine *v1alpha1.Machine // nil in requests about a class
	class   *v1alpha1.MachineClass
	secret  *corev1.Secret
	// parse parses as much of the provider specification as the call needs.
	parse func(raw []byte) (*providerSpec, error)
}

// call is a validated request.
type call struct {
	cluster *infrastructure
	// spec has only the fields that request.parse sets.
	spec     *providerSpec
	identity identity
	// key is the key of the VirtualMachine and its Secret. The name is empty in calls for a class.
	key client.ObjectKey
	// tagged is the cluster in the VM's label: that of the class, or the one with which the creation started.
	tagged string
	// providerID is the machine's provider ID, and uuid is the UUID in it. The UUID is empty if there is no ID, or
	// if another driver created the ID.
	providerID, uuid string
	userData         []byte
}

// read validates a request for a machine.
func (d *Driver) read(req request) (call, error) {
	if req.machine == nil || req.machine.Name == "" {
		return call{}, status.Error(codes.InvalidArgument, "the request has no machine name")
	}
	if wrong := validation.IsDNS1123Subdomain(req.machine.Name); len(wrong) > 0 {
		return call{}, status.Error(codes.InvalidArgument, fmt.Sprintf("invalid machine name %q: %s", req.machine.Name, strings.Join(wrong, ", ")))
	}
	c, err := d.readClass(req)
	if err != nil {
		return call{}, err
	}
	if req.machine.Namespace != "" {
		c.identity.Namespace = req.machine.Namespace
	}
	c.identity.Machine = req.machine.Name
	c.key.Name = c.identity.name()
	c.providerID = req.machine.Spec.ProviderID
	if namespace, uuid, ok := splitProviderID(c.providerID); ok {
		// The pool of the class may have changed, but the VM is still in its old namespace.
		c.key.Namespace, c.uuid = namespace, uuid
	}
	return c, nil
}

// readClass validates the class and the Secret of a request.
func (d *Driver) readClass(req request) (call, error) {
	if req.class == nil {
		return call{}, status.Error(codes.InvalidArgument, "the request has no machine class")
	}
	spec, err := req.parse(req.class.ProviderSpec.Raw)
	if err != nil {
		return call{}, err
	}
	c := call{spec: spec, tagged: spec.cluster(), key: client.ObjectKey{Namespace: spec.VMPool}}
	c.identity = identity{Installation: d.options.Installation, APIGroup: apiGroupOf(req.class), Namespace: req.class.Namespace}
	if c.identity.Namespace == "" {
		c.identity.Namespace = defaultNamespace
	}
	if req.secret != nil {
		c.userData = req.secret.Data[userDataKey]
	}
	c.cluster, err = d.clusters.get(req.secret)
	return c, err
}

// get returns the VirtualMachine with the name of the VM, even one of another owner, or nil if none exists. If the VM
// of the machine has its name from an earlier version, get returns that VM, and the call uses its name from then on.
func (c *call) get(ctx context.Context) (*vmv1alpha1.VirtualMachine, error) {
	vm, err := c.getNamed(ctx, c.key)
	if vm != nil || err != nil || c.key.Name != c.identity.name() {
		return vm, err
	}
	earlier := client.ObjectKey{Namespace: c.key.Namespace, Name: c.identity.earlierName()}
	if vm, err = c.getNamed(ctx, earlier); vm == nil || err != nil {
		return nil, err
	}
	if made, ok := identityOf(vm); !ok || made != c.identity {
		return nil, nil
	}
	c.key = earlier
	return vm, nil
}

func (c *call) getNamed(ctx context.Context, key client.ObjectKey) (*vmv1alpha1.VirtualMachine, error) {
	vm := &vmv1alpha1.VirtualMachine{}
	err := c.cluster.Get(ctx, key, vm)
	if absent(err) {
		return nil, nil
	}
	if err == nil {
		err = checkVersion(vm)
	}
	if err != nil {
		return nil, err
	}
	return vm, nil
}

// isRequested reports whether a VirtualMachine with the name of the VM is the VM of the call. If the machine has a
// provider ID, the result does not depend on the class, which may have been edited.
func (c call) isRequested(vm *vmv1alpha1.VirtualMachine) bool {
	if c.providerID == "" {
		return c.owns(vm)
	}
	made, ok := identityOf(vm)
	return ok && made == c.identity && vm.Spec.UUID == c.uuid
}

// owns reports whether this driver created a VM for the machine in the call's cluster.
func (c call) owns(vm *vmv1alpha1.VirtualMachine) bool {
	made, ok := identityOf(vm)
	return ok && made == c.identity && vm.Labels[LabelCluster] == c.tagged
}

// list returns the names of the class's machines by the provider IDs of their VMs. It does not select by the API group,
// since VMs of an earlier version do not have that label.
func (c call) list(ctx context.Context) (map[string]string, error) {
	vms, machines := &vmv1alpha1.VirtualMachineList{}, map[string]string{}
	var later error
	err := c.cluster.eachPage(ctx, vms, func() {
		for i := range vms.Items {
			vm := &vms.Items[i]
			later = cmp.Or(later, checkVersion(vm))
			made, ok := identityOf(vm)
			if c.identity.Machine = made.Machine; ok && made == c.identity && c.isStorable(vm) {
				machines[ProviderID(vm)] = made.Machine
			}
		}
	}, client.InNamespace(c.key.Namespace), client.MatchingLabels{
		LabelInstallation: labelValue(c.identity.Installation),
		LabelNamespace:    labelValue(c.identity.Namespace),
		LabelCluster:      c.spec.cluster(),
		LabelRole:         c.spec.role(),
	})
	if err := cmp.Or(err, later); err != nil {
		return nil, err
	}
	return machines, nil
}

// isStorable reports whether an API server can have stored a VM of the call's machine in the call's namespace. A server
// of someone else could otherwise fill the memory with names.
func (c call) isStorable(vm *vmv1alpha1.VirtualMachine) bool {
	return vm.Namespace == c.key.Namespace && len(vm.Spec.UUID) <= longestUUID && len(c.identity.Machine) <= validation.DNS1123SubdomainMaxLength
}
