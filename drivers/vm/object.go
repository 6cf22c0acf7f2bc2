package vm

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
)

// virtualMachine returns the object that the call asks for, with a new UUID.
func (c call) virtualMachine() *vmv1alpha1.VirtualMachine {
	s := c.spec
	vm := &vmv1alpha1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{
			Name: c.key.Name, Namespace: c.key.Namespace,
			Labels: s.labels(),
			Annotations: map[string]string{
				AnnotationIdentity: c.identity.annotation(),
				AnnotationTags:     s.tagsAnnotation(),
			},
		},
		Spec: vmv1alpha1.VirtualMachineSpec{
			InitialImage:        s.image,
			KernelBoot:          s.kernelBoot,
			HypervisorImage:     s.hypervisorImage,
			CPUs:                s.cpus,
			Memory:              ptr.To(s.memory),
			VolumeClaimTemplate: s.volumeClaim(),
			VMIPs:               s.addresses,
			FailureDomain:       s.failureDomain,
			MigrateStrategy:     s.migrateStrategy,
			UUID:                string(uuid.NewUUID()),
		},
	}
	maps.Copy(vm.Labels, c.identity.labels())
	if c.userData != nil {
		vm.Spec.UserData = &vmv1alpha1.UserData{SecretRef: vmv1alpha1.SecretKeyReference{Name: c.key.Name, Key: userDataKey}}
	}
	return vm
}

func (s *spec) volumeClaim() *vmv1alpha1.VolumeClaimTemplate {
	claim := corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: s.rootDisk},
		},
	}
	if s.storageClassName != "" {
		claim.StorageClassName = ptr.To(s.storageClassName)
	}
	return &vmv1alpha1.VolumeClaimTemplate{Spec: claim}
}

// differences returns the fields of the provider specification in which a VM differs from
// the requested one. It ignores what users may change on an existing VM: hypervisorImage,
// migrateStrategy and tags other than the cluster and the role.
func (c call) differences(vm *vmv1alpha1.VirtualMachine) []string {
	want := c.virtualMachine()
	var fields []string
	for _, f := range []struct {
		name       string
		want, have any
	}{
		{"tags", want.Labels[LabelRole], vm.Labels[LabelRole]},
		{"cpus", want.Spec.CPUs, vm.Spec.CPUs},
		{"memory", want.Spec.Memory, vm.Spec.Memory},
		{"rootFsSize", requested(want), requested(vm)},
		{"storageClassName", storageClass(want), storageClass(vm)},
		{"image", want.Spec.InitialImage, vm.Spec.InitialImage},
		{"kernelBoot", want.Spec.KernelBoot, vm.Spec.KernelBoot},
		{"addresses", want.Spec.VMIPs, vm.Spec.VMIPs},
		{domainField, want.Spec.FailureDomain, vm.Spec.FailureDomain},
	} {
		if !equality.Semantic.DeepEqual(f.want, f.have) {
			fields = append(fields, specPath+"."+f.name)
		}
	}
	return fields
}

func requested(vm *vmv1alpha1.VirtualMachine) corev1.ResourceList {
	if vm.Spec.VolumeClaimTemplate == nil {
		return nil
	}
	return vm.Spec.VolumeClaimTemplate.Spec.Resources.Requests
}

func storageClass(vm *vmv1alpha1.VirtualMachine) *string {
	if vm.Spec.VolumeClaimTemplate == nil {
		return nil
	}
	return vm.Spec.VolumeClaimTemplate.Spec.StorageClassName
}

// addresses returns the known addresses of the VM, and the name of its node.
func (c call) addresses(vm *vmv1alpha1.VirtualMachine) []corev1.NodeAddress {
	addresses := make([]corev1.NodeAddress, 0, len(vm.Status.Addresses)+1)
	for _, address := range vm.Status.Addresses {
		addresses = append(addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	return append(addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: c.nodeName()})
}

// nodeName returns the name of the machine's node. The user data of a Machine contain the
// machine's name. Those of Cluster API are made before any name is known, so the node has the
// guest's host name, which is the name of the VM.
func (c call) nodeName() string {
	if c.identity.APIGroup == driver.APIGroupClusterAPI {
		return c.key.Name
	}
	return c.identity.Machine
}
