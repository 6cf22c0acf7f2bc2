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

// Target returns the Pod of the target of a migration, under the names that the VM's status reserves. The
// virtual hardware is that of the source, which may be older than the VM's spec; the hypervisor's image and
// settings are new, and its leases are as those of the source. It is scheduled to another node than the source.
func Target(vm *v1alpha1.VirtualMachine, source *corev1.Pod, s Settings) (*corev1.Pod, error) {
	has, err := specOf(source)
	if err != nil {
		return nil, err
	}
	record := vm.Status.Migration
	vm = vm.DeepCopy()
	vm.Status.ActivePodName, vm.Status.VolumeClaimName = record.TargetPodName, record.TargetVolumeClaimName
	vm.Spec.DataDisks = nil // a VM that runs with some is not migrated
	spec := vmSpec(vm, s)
	spec.Mode, spec.MigrationSourcePod = vmpb.VMSpec_SM_INCOMING_MIGRATION, record.SourcePodName
	spec.InitialImage, spec.RootDiskExists = nil, false
	spec.Uuid, spec.Address, spec.Resources = has.GetUuid(), has.GetAddress(), has.GetResources()
	spec.LeaseMode, spec.LeaseDuration = has.GetLeaseMode(), has.GetLeaseDuration() // the lease moves with the guest
	spec.KernelBoot, spec.UserData, spec.RootDiskBytes = has.GetKernelBoot(), has.GetUserData(), has.GetRootDiskBytes()
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

// IsTarget reports whether a Pod was created as the target of a migration.
func IsTarget(pod *corev1.Pod) bool { return pod.Annotations[annotationSource] != "" }

// LeaseOf returns how long the leases are that the hypervisor in a Pod needs; 0 if it needs none.
func LeaseOf(pod *corev1.Pod) (time.Duration, error) {
	spec, err := specOf(pod)
	if err != nil || spec.GetLeaseMode() != vmpb.LeaseMode_LM_FULL_LEASES {
		return 0, err
	}
	return spec.GetLeaseDuration().AsDuration(), nil
}

// specOf returns the spec of the hypervisor in a Pod.
func specOf(pod *corev1.Pod) (*vmpb.VMSpec, error) {
	spec := &vmpb.VMSpec{}
	container := Hypervisor(pod)
	if container == nil {
		return nil, fmt.Errorf("pod %s has no container of a hypervisor", pod.Name)
	}
	for _, variable := range container.Env {
		if variable.Name != vmpb.EnvSpec {
			continue
		}
		text := strings.ReplaceAll(variable.Value, "$$", "$")
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(text), spec); err != nil {
			return nil, fmt.Errorf("decoding the spec of the hypervisor in pod %s: %w", pod.Name, err)
		}
	}
	return spec, nil
}

// onOtherNode adds to an affinity, which may be nil, where a target may be.
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

// TargetClaim returns the claim of the disk of a migration's target: a new one like that of the source.
func TargetClaim(vm *v1alpha1.VirtualMachine, source *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	like := vm.DeepCopy()
	if like.Spec.VolumeClaimTemplate == nil {
		like.Spec.VolumeClaimTemplate = &v1alpha1.VolumeClaimTemplate{}
	}
	like.Spec.VolumeClaimTemplate.Spec = *source.Spec.DeepCopy()
	claim := Claim(like, vm.Status.Migration.TargetVolumeClaimName)
	// The volume, and what filled it, are those of one claim only.
	claim.Spec.VolumeName, claim.Spec.DataSource, claim.Spec.DataSourceRef = "", nil, nil
	return claim
}
