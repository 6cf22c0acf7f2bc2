package virtualmachine

import (
	"net/netip"
	"path"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

const (
	containerName  = "hypervisor"
	volumeRun      = "run"
	volumeDisk     = "disk"
	volumeUserData = "user-data"
	volumeToken    = "token"
	// annotationGeneration is on a Pod: the generation of the spec that it was made from.
	annotationGeneration = "vm.metropolis.monogon.dev/generation"
	// gracePeriod is how many seconds a hypervisor has to shut its guest down.
	gracePeriod = 30
	// tokenSeconds is how long a Pod's token is good. It is renewed before.
	tokenSeconds = 3600
)

// setting is what the Pods of all VMs have in common.
type setting struct {
	// image is used where the spec names none.
	image string
	// endpoint is the gRPC target of the controller.
	endpoint string
	// authority is the certificate of the authority, in PEM form.
	authority string
	// accelerator is for QEMU; empty leaves it to the hypervisor.
	accelerator string
	// networks are the prefixes of the user-mode network.
	networks []netip.Prefix
}

// podFor is the Pod of a VM's next hypervisor. Its name is the one that the status
// reserves.
func podFor(vm *v1alpha1.VirtualMachine, s setting) (*corev1.Pod, error) {
	spec, err := vmSpecJSON(vm, s.endpoint)
	if err != nil {
		return nil, err
	}
	image := s.image
	if vm.Spec.HypervisorImage != "" {
		image = vm.Spec.HypervisorImage
	}
	volumes, mounts := volumesFor(vm)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: vm.Status.ActivePodName, Namespace: vm.Namespace,
			Labels:          map[string]string{v1alpha1.LabelVM: vm.Name},
			Annotations:     map[string]string{annotationGeneration: strconv.FormatInt(vm.Generation, 10)},
			OwnerReferences: []metav1.OwnerReference{ownerReference(vm)},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			ServiceAccountName:            "default",
			AutomountServiceAccountToken:  ptr.To(false),
			EnableServiceLinks:            ptr.To(false),
			TerminationGracePeriodSeconds: ptr.To[int64](gracePeriod),
			NodeSelector:                  map[string]string{v1alpha1.HostKey: ""},
			Affinity:                      affinity(vm.Spec.FailureDomain),
			Tolerations:                   tolerations(),
			Containers: []corev1.Container{{
				Name: containerName, Image: image, Command: vmpb.Command(),
				Env: environment(spec, s), Resources: podResources(&vm.Spec), VolumeMounts: mounts,
			}},
			Volumes: volumes,
		},
	}
	if addresses := addressesOf(vm); len(addresses) > 0 {
		pod.Annotations[v1alpha1.AnnotationAddresses] = strings.Join(addresses, ",")
	}
	return pod, nil
}

// affinity keeps a hypervisor to the hosts of a failure domain; nil if there is none. A host
// without a zone is one by itself.
func affinity(domain string) *corev1.Affinity {
	if domain == "" {
		return nil
	}
	is := func(label string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: label, Operator: corev1.NodeSelectorOpIn, Values: []string{domain}}
	}
	noZone := corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpDoesNotExist}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{ // one of them has to fit
			{MatchExpressions: []corev1.NodeSelectorRequirement{is(corev1.LabelTopologyZone)}},
			{MatchExpressions: []corev1.NodeSelectorRequirement{is(corev1.LabelHostname), noZone}},
		},
	}}}
}

// tolerations let a hypervisor stay where it is whatever becomes of its host: it may
// run on there, and its disk mostly is there.
func tolerations() []corev1.Toleration {
	return []corev1.Toleration{
		{Key: v1alpha1.HostKey, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	}
}

func environment(spec string, s setting) []corev1.EnvVar {
	env := []corev1.EnvVar{
		{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
		// A dollar of the user's must not begin a reference to another variable.
		{Name: vmpb.EnvSpec, Value: strings.ReplaceAll(spec, "$", "$$")},
		{Name: vmpb.EnvAuthority, Value: s.authority},
		{Name: vmpb.EnvListen, Value: "$(POD_IP):0"},
	}
	if s.accelerator != "" {
		env = append(env, corev1.EnvVar{Name: vmpb.EnvAccelerator, Value: s.accelerator})
	}
	if len(s.networks) > 0 {
		var prefixes []string
		for _, network := range s.networks {
			prefixes = append(prefixes, network.String())
		}
		env = append(env, corev1.EnvVar{Name: vmpb.EnvUserNetwork, Value: strings.Join(prefixes, ",")})
	}
	return env
}

func volumesFor(vm *v1alpha1.VirtualMachine) ([]corev1.Volume, []corev1.VolumeMount) {
	disk := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	if claim := vm.Status.VolumeClaimName; claim != "" {
		disk = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}
	}
	token := corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
		ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
			Audience: vmpb.TokenAudience, ExpirationSeconds: ptr.To[int64](tokenSeconds), Path: path.Base(vmpb.TokenPath),
		},
	}}}}
	volumes := []corev1.Volume{
		{Name: volumeRun, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: volumeDisk, VolumeSource: disk},
		{Name: volumeToken, VolumeSource: token},
	}
	mounts := []corev1.VolumeMount{
		{Name: volumeRun, MountPath: vmpb.DirRun},
		{Name: volumeDisk, MountPath: path.Dir(vmpb.RootDiskPath)},
		{Name: volumeToken, MountPath: path.Dir(vmpb.TokenPath), ReadOnly: true},
	}
	if from := vm.Spec.UserData; from != nil {
		volumes = append(volumes, corev1.Volume{Name: volumeUserData, VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{
				SecretName: from.SecretRef.Name,
				Items:      []corev1.KeyToPath{{Key: userDataKey(from), Path: path.Base(vmpb.UserDataPath)}},
			},
		}})
		mounts = append(mounts, corev1.VolumeMount{Name: volumeUserData, MountPath: path.Dir(vmpb.UserDataPath), ReadOnly: true})
	}
	return volumes, mounts
}

func userDataKey(from *v1alpha1.UserData) string {
	if from.SecretRef.Key == "" {
		return "userData"
	}
	return from.SecretRef.Key
}

// claimFor is the claim of a VM's disk.
func claimFor(vm *v1alpha1.VirtualMachine, name string) *corev1.PersistentVolumeClaim {
	template := vm.Spec.VolumeClaimTemplate
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: vm.Namespace,
			Labels: map[string]string{}, Annotations: template.Metadata.Annotations,
			OwnerReferences: []metav1.OwnerReference{ownerReference(vm)},
		},
		Spec: *template.Spec.DeepCopy(),
	}
	for key, value := range template.Metadata.Labels {
		claim.Labels[key] = value
	}
	claim.Labels[v1alpha1.LabelVM] = vm.Name
	if len(claim.Spec.AccessModes) == 0 {
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	return claim
}

func ownerReference(vm *v1alpha1.VirtualMachine) metav1.OwnerReference {
	return *metav1.NewControllerRef(vm, v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.VirtualMachineKind))
}

const (
	// defaultMemory is what a guest has if nothing says more.
	defaultMemory = 512 << 20
	// cpuShare is what a Pod asks for, in thousandths of a CPU, for each virtual CPU
	// whose VM says nothing about resources: VMs mostly idle, and share what is there
	// in proportion.
	cpuShare = 100
)

// overhead is the memory that hypervisor process and QEMU need beside the guest's.
var overhead = resource.MustParse("192Mi")

// guestCPUs is the number of virtual CPUs.
func guestCPUs(spec *v1alpha1.VirtualMachineSpec) int64 {
	if spec.CPUs > 0 {
		return int64(spec.CPUs)
	}
	return max(1, spec.Resources.Limits.Cpu().Value()) // Value rounds up
}

// guestMemory is the guest's memory in bytes; 0 or less if the limits leave none.
func guestMemory(spec *v1alpha1.VirtualMachineSpec) int64 {
	if spec.Memory != nil {
		return spec.Memory.Value()
	}
	if limit, found := spec.Resources.Limits[corev1.ResourceMemory]; found {
		return limit.Value() - overhead.Value()
	}
	return defaultMemory
}

// podResources are those of the spec, or else the guest's memory with the overhead and
// a share of the CPUs, without limits.
func podResources(spec *v1alpha1.VirtualMachineSpec) corev1.ResourceRequirements {
	if len(spec.Resources.Requests)+len(spec.Resources.Limits)+len(spec.Resources.Claims) > 0 {
		return *spec.Resources.DeepCopy()
	}
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceMemory: *resource.NewQuantity(guestMemory(spec)+overhead.Value(), resource.BinarySI),
		corev1.ResourceCPU:    *resource.NewMilliQuantity(cpuShare*guestCPUs(spec), resource.DecimalSI),
	}}
}
