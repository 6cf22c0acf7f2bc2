package podspec

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Target returns the target Pod of a migration, under the names that the status reserves. The virtual hardware, the
// disks, the user data and the lease mode are those of the source, which may be older than the VM's spec. The
// hypervisor's image and settings are the current ones. The Pod is not scheduled to the node of the source. If the VM
// may not have a Pod, the error is a RefusedError.
func Target(vm *v1alpha1.VirtualMachine, source *corev1.Pod, s Settings) (*corev1.Pod, error) {
	has, err := specOf(source)
	if err != nil {
		return nil, err
	}
	record := vm.Status.Migration
	vm = vm.DeepCopy()
	vm.Status.ActivePodName, vm.Status.VolumeClaimName = record.TargetPodName, record.TargetVolumeClaimName
	vm.Status.DataDisks = targetDataDisks(record, source)
	vm.Spec.UserData = userDataOf(source)
	if vm.Spec.UserData != nil {
		vm.Spec.UserData.HostName = has.GetUserData().GetHostName()
	}
	spec := vmSpec(vm, s)
	spec.Mode, spec.MigrationSourcePod = vmpb.VMSpec_SM_INCOMING_MIGRATION, record.SourcePodName
	spec.InitialImage, spec.RootDiskExists, spec.DataDisks = nil, false, has.GetDataDisks()
	for _, disk := range spec.DataDisks {
		disk.Exists, disk.InitialImage = false, nil
	}
	spec.Uuid, spec.Address, spec.Resources = has.GetUuid(), has.GetAddress(), has.GetResources()
	spec.LeaseMode, spec.LeaseDuration = has.GetLeaseMode(), has.GetLeaseDuration() // the lease moves with the guest
	spec.KernelBoot, spec.RootDiskBytes = has.GetKernelBoot(), has.GetRootDiskBytes()
	spec.RootDiskPath, spec.RootDiskShared = has.GetRootDiskPath(), has.GetRootDiskShared()
	if has.GetDisksServed() {
		useServedDisks(spec)
	}
	pod, err := podOf(vm, spec, s)
	if err != nil {
		return nil, err
	}
	for _, annotation := range []string{annotationGeneration, v1alpha1.AnnotationAddresses} {
		if value, found := source.Annotations[annotation]; found {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotation, value)
		}
	}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotationSource, record.SourcePodName)
	pod.Spec.Containers[0].Resources = *Hypervisor(source).Resources.DeepCopy()
	pod.Spec.Affinity = onOtherNode(pod.Spec.Affinity, record)
	return pod, nil
}

// IsTarget reports whether a Pod was created as a migration target.
func IsTarget(pod *corev1.Pod) bool { return pod.Annotations[annotationSource] != "" }

// LeaseOf returns the duration of the leases that the hypervisor in a Pod needs; 0 if it needs none.
func LeaseOf(pod *corev1.Pod) (time.Duration, error) {
	spec, err := specOf(pod)
	if err != nil || spec.GetLeaseMode() != vmpb.LeaseMode_LM_FULL_LEASES {
		return 0, err
	}
	return spec.GetLeaseDuration().AsDuration(), nil
}

// Addresses returns the addresses of the guest in a hypervisor Pod; none if the Pod is not one. They are those in its
// container, which cannot be changed. Users can edit the annotation with the same addresses.
func Addresses(pod *corev1.Pod) []string {
	if Hypervisor(pod) == nil {
		return nil
	}
	spec, err := specOf(pod)
	if err != nil {
		return nil
	}
	return spec.GetAddress()
}

// specOf returns the spec of the hypervisor or disk server in a Pod.
func specOf(pod *corev1.Pod) (*vmpb.VMSpec, error) {
	spec := &vmpb.VMSpec{}
	container := Hypervisor(pod)
	if container == nil {
		container = containerOf(pod, ServerContainerName)
	}
	if container == nil {
		return nil, fmt.Errorf("pod %s has neither a hypervisor container nor a disk server container", pod.Name)
	}
	for _, variable := range container.Env {
		if variable.Name != vmpb.EnvSpec {
			continue
		}
		text := strings.ReplaceAll(variable.Value, "$$", "$")
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(text), spec); err != nil {
			return nil, fmt.Errorf("decoding the hypervisor spec in pod %s: %w", pod.Name, err)
		}
	}
	return spec, nil
}

// onOtherNode adds the nodes that a migration target may use to an affinity, which may be nil.
func onOtherNode(affinity *corev1.Affinity, record *v1alpha1.VirtualMachineMigration) *corev1.Affinity {
	var fields []corev1.NodeSelectorRequirement
	is := func(operator corev1.NodeSelectorOperator, node string) {
		if node != "" {
			fields = append(fields, corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: operator, Values: []string{node}})
		}
	}
	is(corev1.NodeSelectorOpNotIn, record.SourceNodeName)
	is(corev1.NodeSelectorOpIn, record.TargetNodeName)
	if len(fields) == 0 {
		return affinity
	}
	if affinity == nil {
		affinity = &corev1.Affinity{}
	}
	if affinity.NodeAffinity == nil {
		affinity.NodeAffinity = &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}},
		}
	}
	terms := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for i := range terms {
		terms[i].MatchFields = fields
	}
	return affinity
}

// targetDataDisks returns the data disks of a target, with their claims. These are those of the source if the disks
// are shared, and new ones otherwise.
func targetDataDisks(record *v1alpha1.VirtualMachineMigration, source *corev1.Pod) []v1alpha1.DataDiskStatus {
	disks := DataClaims(source)
	if DiskSharing(source) == Shared {
		return disks
	}
	for i := range disks {
		disks[i].VolumeClaimName = targetDataClaim(record, disks[i].Name)
	}
	return disks
}

// TargetClaimName returns the name of the claim of a target's root disk; empty if the disk is ephemeral.
func TargetClaimName(claim, target string, source *corev1.Pod) string {
	if claim == "" || DiskSharing(source) == Shared {
		return claim
	}
	return target
}

// targetDataClaim returns the name of the claim of a target's data disk.
func targetDataClaim(record *v1alpha1.VirtualMachineMigration, disk string) string {
	return record.TargetPodName + "-" + disk
}

// IsTargetDataClaim reports whether a claim has the name of a data disk claim of the last migration's target.
func IsTargetDataClaim(status *v1alpha1.VirtualMachineStatus, claim string) bool {
	return status.Migration != nil && strings.HasPrefix(claim, targetDataClaim(status.Migration, ""))
}

// CopiedClaim is a claim whose disk a migration copies to another one.
type CopiedClaim struct {
	// Disk is the name of a data disk; empty for the root disk.
	Disk string
	// From is the name of the source's claim, and To is the name of the target's claim.
	From, To string
}

// CopiedClaims returns the claims that the running migration copies from the source Pod; none if the disks are
// shared.
func CopiedClaims(vm *v1alpha1.VirtualMachine, source *corev1.Pod) []CopiedClaim {
	if DiskSharing(source) == Shared {
		return nil
	}
	record := vm.Status.Migration
	var claims []CopiedClaim
	if record.TargetVolumeClaimName != "" {
		claims = append(claims, CopiedClaim{From: vm.Status.VolumeClaimName, To: record.TargetVolumeClaimName})
	}
	for _, disk := range DataClaims(source) {
		claims = append(claims, CopiedClaim{Disk: disk.Name, From: disk.VolumeClaimName, To: targetDataClaim(record, disk.Name)})
	}
	return claims
}

// TargetClaim returns a new claim for a migration target, modeled on the claim of the source.
func TargetClaim(vm *v1alpha1.VirtualMachine, of CopiedClaim, source *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	template := v1alpha1.VolumeClaimTemplate{}
	for _, disk := range vm.Spec.DataDisks {
		if disk.Name == of.Disk {
			template = *disk.VolumeClaimTemplate.DeepCopy()
		}
	}
	if of.Disk == "" && vm.Spec.VolumeClaimTemplate != nil {
		template = *vm.Spec.VolumeClaimTemplate.DeepCopy()
	}
	template.Spec = *source.Spec.DeepCopy()
	return Claim(vm, of.Disk, &template, of.To)
}
