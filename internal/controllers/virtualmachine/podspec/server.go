package podspec

import (
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// serverResources are the requests of a disk server, which may run two storage daemons during a migration.
var serverResources = corev1.ResourceList{
	corev1.ResourceMemory: resource.MustParse("96Mi"), corev1.ResourceCPU: resource.MustParse("50m"),
}

// DiskServer returns the Pod that serves the disks of a VM, under the name that the status reserves. holder is the
// Pod of the VM's current hypervisor, or nil. The server has the disks of that hypervisor or, without one, the disks
// of the spec. If the VM may not have a Pod, the error is a RefusedError.
func DiskServer(vm *v1alpha1.VirtualMachine, holder *corev1.Pod, s Settings) (*corev1.Pod, error) {
	vm = vm.DeepCopy()
	// The kernel remains, because a guest with a kernel may have a root disk from which it cannot boot.
	vm.Spec.UserData = nil
	s.Accelerator, s.Networks, s.HostPorts, s.Migration = "", nil, nil, Migration{}
	s.Options.KVMResource, s.Options.KVMDevice = "", ""
	spec := vmSpec(vm, s)
	spec.PodName, spec.Address, spec.Grace = vm.Status.DiskServer.PodName, nil, durationpb.New(DefaultGracePeriod)
	spec.ShutdownTime = nil
	spec.LeaseMode, spec.LeaseDuration = vmpb.LeaseMode_LM_STORAGE_LOCKING, nil
	if holder != nil {
		has, err := specOf(holder)
		if err != nil {
			return nil, err
		}
		spec.RootDiskBytes, spec.DataDisks = has.GetRootDiskBytes(), has.GetDataDisks()
	}
	pod, err := basePod(vm, spec, s)
	if err != nil {
		return nil, err
	}
	pod.Labels[v1alpha1.LabelDiskServer] = "true"
	container := &pod.Spec.Containers[0]
	container.Name, container.Command = ServerContainerName, vmpb.DiskServerCommand()
	container.Resources = corev1.ResourceRequirements{Requests: serverResources.DeepCopy()}
	container.Env = slices.DeleteFunc(container.Env, func(variable corev1.EnvVar) bool { return variable.Name == vmpb.EnvListen })
	for _, name := range []string{vmpb.EnvDisksControl, vmpb.EnvDisksSessions} {
		container.Env = append(container.Env, corev1.EnvVar{Name: name, Value: "$(POD_IP):0"})
	}
	s.Options.apply(pod)
	return pod, nil
}

// Served reports whether a disk server serves the disks of a VM.
func Served(vm *v1alpha1.VirtualMachine) bool { return vm.Spec.DiskAccess == v1alpha1.DiskAccessServed }

// IsDiskServer reports whether a Pod is a disk server.
func IsDiskServer(pod *corev1.Pod) bool { return containerOf(pod, ServerContainerName) != nil }

// HypervisorsAndServers splits the Pods of a VM into hypervisors and disk servers.
func HypervisorsAndServers(pods []*corev1.Pod) (hypervisors, servers []*corev1.Pod) {
	for _, pod := range pods {
		if IsDiskServer(pod) {
			servers = append(servers, pod)
		} else {
			hypervisors = append(hypervisors, pod)
		}
	}
	return hypervisors, servers
}

// useServedDisks changes the spec of a hypervisor so that it uses disks that a disk server prepares and serves.
func useServedDisks(spec *vmpb.VMSpec) {
	spec.DisksServed, spec.RootDiskExists, spec.InitialImage = true, true, nil
	if spec.GetMode() == vmpb.VMSpec_SM_PREPARE_IMAGE {
		spec.Mode = vmpb.VMSpec_SM_RUN
	}
	for _, disk := range spec.DataDisks {
		disk.Exists, disk.InitialImage = true, nil
	}
}

// Serves reports whether a disk server has the disks of a VM's spec, in the same order and with the same sizes, and
// the image of the next disk server.
func Serves(vm *v1alpha1.VirtualMachine, server *corev1.Pod, s Settings) (bool, error) {
	has, err := specOf(server)
	if err != nil {
		return false, err
	}
	served := []v1alpha1.DiskSize{{Bytes: int64(has.GetRootDiskBytes())}}
	for _, disk := range has.GetDataDisks() {
		served = append(served, v1alpha1.DiskSize{Name: disk.GetName(), Bytes: int64(disk.GetBytes())})
	}
	container := containerOf(server, ServerContainerName)
	return slices.Equal(served, specDisks(vm)) && container != nil && container.Image == Image(vm, s), nil
}

// RecordServedDisks records which disks are complete according to a disk server's report.
func RecordServedDisks(vm *v1alpha1.VirtualMachine, status *v1alpha1.VirtualMachineStatus, report *vmpb.ReportStateRequest) {
	status.ImagePrepared = status.ImagePrepared || report.GetImagePrepared()
	RecordDataDisks(&vm.Spec, status, report)
}
