package vm

import (
	"cmp"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// virtualMachine returns the requested object with a new UUID.
func (c call) virtualMachine() *vmv1alpha1.VirtualMachine {
	s := c.spec
	tags, err := json.Marshal(s.Tags)
	if err != nil {
		panic(err) // a map of strings can always be encoded
	}
	vm := &vmv1alpha1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{
			Name: c.key.Name, Namespace: c.key.Namespace,
			Labels:      c.labels(),
			Annotations: map[string]string{AnnotationIdentity: c.identity.annotation(), AnnotationTags: string(tags)},
		},
		Spec: vmv1alpha1.VirtualMachineSpec{
			InitialImage:        s.Image,
			Firmware:            s.Firmware,
			Display:             s.Display,
			KernelBoot:          s.KernelBoot,
			HypervisorImage:     s.HypervisorImage,
			CPUs:                int32(*s.CPUs),
			Memory:              ptr.To(resource.MustParse(s.Memory)),
			VolumeClaimTemplate: s.claimTemplate(*s.RootFsSize, s.StorageClassName),
			DataDisks:           s.dataDisks(),
			VMIPs:               s.Addresses,
			AddressesFromPools:  s.AddressesFromPools,
			Networks:            s.networks(),
			FailureDomain:       s.FailureDomain,
			MigrateStrategy:     s.MigrateStrategy,
			Ports:               s.Ports,
			ReadinessProbe:      s.ReadinessProbe,
			LeaseMode:           s.LeaseMode,
			DiskAccess:          s.DiskAccess,
			HostSelector:        s.HostSelector,
			AntiAffinity:        s.apart(),
			Resources:           s.podResources(),
			UUID:                string(uuid.NewUUID()),
		},
	}
	if s.GraceSeconds != nil {
		vm.Spec.TerminationGracePeriodSeconds = int32(*s.GraceSeconds)
	}
	if s.LeaseSeconds != nil {
		vm.Spec.LeaseDurationSeconds = int32(*s.LeaseSeconds)
	}
	if c.userData != nil {
		vm.Spec.UserData = &vmv1alpha1.UserData{
			SecretRef: vmv1alpha1.SecretKeyReference{Name: c.key.Name, Key: userDataKey}, HostName: c.nodeName(),
		}
	}
	return vm
}

// matching returns the requested object for the comparison with an existing VM. It has the VM's values of the fields
// that keepUnset keeps.
func (c call) matching(vm *vmv1alpha1.VirtualMachine) *vmv1alpha1.VirtualMachine {
	want := c.virtualMachine()
	c.spec.keepUnset(&want.Spec, &vm.Spec)
	return want
}

// keepUnset sets the fields of want that a class does not set to those of an existing VM. Users may have changed them
// there, and VMs of earlier versions do not have the defaults of new ones.
func (s *providerSpec) keepUnset(want, have *vmv1alpha1.VirtualMachineSpec) {
	s.keepDisks(want, have)
	if s.LeaseMode == "" {
		want.LeaseMode = have.LeaseMode
	}
	if s.LeaseSeconds == nil {
		want.LeaseDurationSeconds = have.LeaseDurationSeconds
	}
	if s.HostSelector == nil {
		want.HostSelector = have.HostSelector
	}
	if s.AddressesFromPools == nil && len(s.Addresses) == 0 {
		want.AddressesFromPools = have.AddressesFromPools
	}
	if s.AntiAffinity == nil {
		want.AntiAffinity = have.AntiAffinity
	}
	if s.Resources == nil {
		want.Resources = have.Resources
	}
}

// labels returns the labels of the VM: those of its identity, cluster and role, and the tags that are valid labels.
func (c call) labels() map[string]string {
	labels := c.identity.labels()
	labels[LabelCluster], labels[LabelRole] = c.spec.cluster(), c.spec.role()
	for key, value := range c.spec.Tags {
		if len(validation.IsQualifiedName(key)) == 0 && len(validation.IsValidLabelValue(value)) == 0 {
			labels[key] = value
		}
	}
	return labels
}

// differences returns the fields of the provider specification in which a VM differs from the requested one. It
// ignores what users may change on an existing VM: hypervisorImage, migrateStrategy, ports, readinessProbe,
// terminationGracePeriodSeconds, leaseDurationSeconds, antiAffinity, resources, and tags other than the cluster and the
// role.
func (c call) differences(vm *vmv1alpha1.VirtualMachine) []string {
	want := c.matching(vm)
	var fields []string
	for _, field := range append(unequal([]property{
		{"tags", want.Labels[LabelRole], vm.Labels[LabelRole]},
		{"cpus", want.Spec.CPUs, vm.Spec.CPUs},
		{"memory", want.Spec.Memory, vm.Spec.Memory},
		{leaseModeField, leaseModeOf(want), leaseModeOf(vm)},
		{hostSelectorField, want.Spec.HostSelector, vm.Spec.HostSelector},
	}), c.fixed(vm)...) {
		fields = append(fields, specPath.Child(field).String())
	}
	return fields
}

// fixed returns the immutable fields of the provider specification in which a VM differs from the requested one.
func (c call) fixed(vm *vmv1alpha1.VirtualMachine) []string {
	want := c.matching(vm)
	wantDisk, haveDisk := want.Spec.VolumeClaimTemplate.Spec, corev1.PersistentVolumeClaimSpec{}
	if vm.Spec.VolumeClaimTemplate != nil {
		haveDisk = vm.Spec.VolumeClaimTemplate.Spec
	}
	return unequal([]property{
		{"rootFsSize", wantDisk.Resources.Requests, haveDisk.Resources.Requests},
		{"storageClassName", wantDisk.StorageClassName, haveDisk.StorageClassName},
		{accessModesField, wantDisk.AccessModes, haveDisk.AccessModes},
		{volumeModeField, wantDisk.VolumeMode, haveDisk.VolumeMode},
		{diskAccessField, diskAccessOf(want), diskAccessOf(vm)},
		{"dataDisks", want.Spec.DataDisks, vm.Spec.DataDisks},
		{"image", want.Spec.InitialImage, vm.Spec.InitialImage},
		{"firmware", cmp.Or(want.Spec.Firmware, vmv1alpha1.FirmwareBIOS), cmp.Or(vm.Spec.Firmware, vmv1alpha1.FirmwareBIOS)},
		{"display", cmp.Or(want.Spec.Display, vmv1alpha1.DisplayNone), cmp.Or(vm.Spec.Display, vmv1alpha1.DisplayNone)},
		{"kernelBoot", want.Spec.KernelBoot, vm.Spec.KernelBoot},
		{"addresses", want.Spec.VMIPs, vm.Spec.VMIPs},
		{poolsField, want.Spec.AddressesFromPools, vm.Spec.AddressesFromPools},
		{networksField, want.Spec.Networks, vm.Spec.Networks},
		{failureDomainField, want.Spec.FailureDomain, vm.Spec.FailureDomain},
	})
}

func leaseModeOf(vm *vmv1alpha1.VirtualMachine) vmv1alpha1.LeaseMode {
	return cmp.Or(vm.Spec.LeaseMode, vmv1alpha1.LeaseStorageLocking)
}

func diskAccessOf(vm *vmv1alpha1.VirtualMachine) vmv1alpha1.DiskAccess {
	return cmp.Or(vm.Spec.DiskAccess, vmv1alpha1.DiskAccessDirect)
}

// property is a field of the provider specification, with its desired value and the value of a VM.
type property struct {
	name       string
	want, have any
}

// unequal returns the names of the properties that differ.
func unequal(all []property) []string {
	var names []string
	for _, p := range all {
		if !equality.Semantic.DeepEqual(p.want, p.have) {
			names = append(names, p.name)
		}
	}
	return names
}

// addresses returns the known addresses of the VM and the name of its node.
func (c call) addresses(vm *vmv1alpha1.VirtualMachine) []corev1.NodeAddress {
	addresses := make([]corev1.NodeAddress, 0, len(vm.Status.Addresses)+1)
	for _, address := range vm.Status.Addresses {
		addresses = append(addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	return append(addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: c.nodeName()})
}

// nodeName returns the name of the machine's node. With Cluster API, it is the guest's host name, which is the name
// of the VM, because the user data is created before the machine has a name.
func (c call) nodeName() string {
	if c.identity.APIGroup == driver.APIGroupClusterAPI {
		return c.key.Name
	}
	return c.identity.Machine
}

// checkNodeName returns an error if the node's name is too long for a host name and for the label
// kubernetes.io/hostname, so that the guest could not join.
func (c call) checkNodeName() error {
	if name := c.nodeName(); len(name) > longestName {
		return status.Error(codes.InvalidArgument, fmt.Sprintf(
			"machine name %q has %d characters, but names of nodes have at most %d; use a shorter name", name, len(name), longestName))
	}
	return nil
}
