package vm

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/drivers/vm/internal/fields"
)

// Keys of a class's Secret.
const (
	// userDataKey holds the user data, and is its key in our own Secrets as well.
	userDataKey = "userData"
	// kubeconfigKey holds the kubeconfig of the infrastructure cluster.
	kubeconfigKey = "kubeconfig"
)

// defaultNamespace is the namespace of machines and classes that name none.
const defaultNamespace = "default"

// request has what the requests of the methods have in common. Those about a class have no
// machine.
type request struct {
	machine *v1alpha1.Machine
	class   *v1alpha1.MachineClass
	secret  *corev1.Secret
	// outOfRange is the code for sizes out of their range: OutOfRange means so only in the
	// answer to a creation.
	outOfRange codes.Code
}

// call is a request that was read.
type call struct {
	cluster  client.WithWatch
	spec     spec
	identity identity
	// key of the VirtualMachine and its Secret. In calls about a class it has no name.
	key client.ObjectKey
	// providerID of the machine, and the UUID in it. The UUID is empty if there is no
	// ID, or one of another driver.
	providerID, uuid string
	userData         []byte
}

// read reads a request about a machine.
func (d *Driver) read(req request) (call, error) {
	if req.machine == nil || req.machine.Name == "" {
		return call{}, status.Error(codes.InvalidArgument, "the request names no machine")
	}
	if wrong := validation.IsDNS1123Subdomain(req.machine.Name); len(wrong) > 0 {
		return call{}, status.Error(codes.InvalidArgument, fmt.Sprintf("machine name %q: %s", req.machine.Name, strings.Join(wrong, ", ")))
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
		// The pool of the class may have changed; the VM stays where it is.
		c.key.Namespace, c.uuid = namespace, uuid
	}
	return c, nil
}

// readClass reads the class and the Secret of a request.
func (d *Driver) readClass(req request) (call, error) {
	if req.class == nil {
		return call{}, status.Error(codes.InvalidArgument, "the request has no machine class")
	}
	var wrong fields.Problems
	c := call{spec: parseSpec(req.class.ProviderSpec.Raw, &wrong)}
	if err := wrong.Err(req.outOfRange); err != nil {
		return call{}, err
	}
	c.key.Namespace = c.spec.pool
	c.identity = identity{Installation: d.options.Installation, APIGroup: apiGroupOf(req.class), Namespace: req.class.Namespace}
	if c.identity.Namespace == "" {
		c.identity.Namespace = defaultNamespace
	}
	var kubeconfig []byte
	if req.secret != nil {
		kubeconfig, c.userData = req.secret.Data[kubeconfigKey], req.secret.Data[userDataKey]
	}
	var err error
	c.cluster, err = d.clusters.get(kubeconfig)
	return c, err
}

// wanted returns how messages name the VM.
func (c call) wanted() string {
	if c.providerID != "" {
		return c.providerID
	}
	return c.identity.Namespace + "/" + c.identity.Machine
}

// get returns the VirtualMachine with the name of the VM, whoever created it; nil if there
// is none.
func (c call) get(ctx context.Context) (*vmv1alpha1.VirtualMachine, error) {
	vm := &vmv1alpha1.VirtualMachine{}
	found, err := c.read(ctx, vm)
	if !found {
		return nil, err
	}
	return vm, nil
}

// read reads an object with the name of the VM, and reports whether it exists.
func (c call) read(ctx context.Context, object client.Object) (bool, error) {
	err := c.cluster.Get(ctx, c.key, object)
	if absent(err) {
		return false, nil
	}
	return err == nil, err
}

// absent reports whether an object does not exist. A cluster that does not know the kind
// answers NotFound too, which says nothing about the object.
func absent(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, unknownPath)
}

// find returns the VM that the call is about, nil if there is none.
func (c call) find(ctx context.Context) (*vmv1alpha1.VirtualMachine, error) {
	if c.providerID != "" && c.uuid == "" {
		return nil, nil // the ID is not one of this driver
	}
	vm, err := c.get(ctx)
	if err != nil || vm == nil || !c.isWanted(vm) {
		return nil, err
	}
	return vm, nil
}

// isWanted reports whether a VirtualMachine with the name of the VM is that VM.
func (c call) isWanted(vm *vmv1alpha1.VirtualMachine) bool {
	return c.owns(vm) && (c.providerID == "" || vm.Spec.UUID == c.uuid)
}

// owns reports whether this driver created a VM for this machine of this cluster.
func (c call) owns(vm *vmv1alpha1.VirtualMachine) bool {
	made, ok := identityOf(vm.Name, vm.Annotations)
	return ok && made == c.identity && vm.Labels[LabelCluster] == c.spec.cluster
}

// list returns the names of the class's machines by the provider IDs of their VMs.
func (c call) list(ctx context.Context) (map[string]string, error) {
	vms := &vmv1alpha1.VirtualMachineList{}
	err := c.cluster.List(ctx, vms, client.InNamespace(c.key.Namespace), client.MatchingLabels{
		LabelInstallation: labelValue(c.identity.Installation),
		LabelAPIGroup:     c.identity.APIGroup,
		LabelNamespace:    labelValue(c.identity.Namespace),
		LabelCluster:      c.spec.cluster,
		LabelRole:         c.spec.role,
	})
	if err != nil {
		return nil, err
	}
	machines := map[string]string{}
	for i := range vms.Items {
		vm := &vms.Items[i]
		made, ok := identityOf(vm.Name, vm.Annotations)
		of := identity{c.identity.Installation, c.identity.APIGroup, c.identity.Namespace, made.Machine}
		if ok && made == of {
			machines[providerID(vm)] = made.Machine
		}
	}
	return machines, nil
}
