package podspec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/ipam"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// compact encodes a hypervisor's spec. The result is stable, unlike that of protojson, which varies its white space.
func compact(spec *vmpb.VMSpec) (string, error) {
	raw, err := protojson.Marshal(spec)
	var compact bytes.Buffer
	if err == nil {
		err = json.Compact(&compact, raw)
	}
	if err != nil {
		return "", fmt.Errorf("encoding the spec for the hypervisor of %s: %w", spec.GetName(), err)
	}
	return compact.String(), nil
}

// vmSpec returns the spec for a VM's next hypervisor.
func vmSpec(vm *v1alpha1.VirtualMachine, s Settings) *vmpb.VMSpec {
	spec := &vmpb.VMSpec{
		Name: vm.Name, Namespace: vm.Namespace, Uuid: vm.Spec.UUID,
		Mode:               startMode(vm),
		LeaseMode:          vmpb.LeaseMode_LM_STORAGE_LOCKING,
		Address:            ipam.Of(vm),
		ControllerEndpoint: s.Endpoint,
		PodName:            vm.Status.ActivePodName,
		RootDiskPath:       vmpb.RootDiskPath,
		RootDiskExists:     hasDisk(vm),
		Grace:              durationpb.New(gracePeriod(vm, s)),
		Resources: &vmpb.Resources{
			Cpus: uint32(guestCPUs(&vm.Spec)), MemoryBytes: uint64(max(0, GuestMemory(&vm.Spec, s))),
		},
	}
	if limit := ShutdownTime(vm); limit != DefaultShutdownTime {
		spec.ShutdownTime = durationpb.New(limit)
	}
	if granted := vm.Status.Lease; granted != nil {
		spec.LeaseMode = vmpb.LeaseMode_LM_FULL_LEASES
		spec.LeaseDuration = durationpb.New(time.Duration(granted.DurationSeconds) * time.Second)
	}
	if template := vm.Spec.VolumeClaimTemplate; template != nil {
		spec.RootDiskBytes = requested(template)
		if IsBlock(template) && vm.Status.VolumeClaimName != "" {
			spec.RootDiskPath = vmpb.RootDevicePath
		}
	}
	spec.InitialImage, spec.DataDisks = initialImage(vm.Spec.InitialImage), dataDisks(vm)
	if boot := vm.Spec.KernelBoot; boot != nil {
		spec.KernelBoot = &vmpb.KernelBoot{Kernel: bootFile(&boot.Kernel), Initrd: bootFile(boot.Initrd), CommandLine: boot.CommandLine}
	}
	if vm.Spec.Firmware == v1alpha1.FirmwareUEFI {
		spec.Firmware = vmpb.VMSpec_FIRMWARE_UEFI
	}
	if vm.Spec.Display == v1alpha1.DisplayVNC {
		spec.Display = vmpb.VMSpec_DISPLAY_VNC
	}
	spec.Networks = networkInterfaces(vm)
	if from := vm.Spec.UserData; from != nil {
		spec.UserData = &vmpb.UserData{Path: vmpb.UserDataPath, HostName: from.HostName}
	}
	return spec
}

// startMode returns the mode in which the hypervisor starts. The hypervisor must first write the image unless an
// earlier one has completed the disk. An ephemeral disk is new in each Pod.
func startMode(vm *v1alpha1.VirtualMachine) vmpb.VMSpec_StartMode {
	if vm.Spec.InitialImage != nil && !hasDisk(vm) {
		return vmpb.VMSpec_SM_PREPARE_IMAGE
	}
	return vmpb.VMSpec_SM_RUN
}

// hasDisk reports whether an earlier hypervisor has completed the VM's disk.
func hasDisk(vm *v1alpha1.VirtualMachine) bool {
	return vm.Status.ImagePrepared && vm.Status.VolumeClaimName != ""
}

// ReplacesDisk reports whether the user requested a new disk in place of the one that the active Pod has lost.
func ReplacesDisk(vm *v1alpha1.VirtualMachine) bool {
	return namesActivePod(vm, v1alpha1.AnnotationReplaceDisk)
}

// Restarts reports whether the user requested that the guest of the active Pod stops and starts again.
func Restarts(vm *v1alpha1.VirtualMachine) bool {
	return namesActivePod(vm, v1alpha1.AnnotationRestart)
}

// StartRequested reports whether the user requested that the VM starts now, with or without its disk.
func StartRequested(vm *v1alpha1.VirtualMachine) bool { return ReplacesDisk(vm) || Restarts(vm) }

// namesActivePod reports whether an annotation names the active Pod, and therefore has not taken effect yet.
func namesActivePod(vm *v1alpha1.VirtualMachine, annotation string) bool {
	pod := vm.Annotations[annotation]
	return pod != "" && pod == vm.Status.ActivePodName
}

// ShutsDown reports whether the guest of the active Pod must shut down.
func ShutsDown(vm *v1alpha1.VirtualMachine) bool {
	return vm.Spec.RunStrategy == v1alpha1.RunHalted || Restarts(vm)
}

var imageFormats = map[v1alpha1.ImageFormat]vmpb.InitialImage_Format{
	v1alpha1.FormatRaw:   vmpb.InitialImage_FORMAT_RAW,
	v1alpha1.FormatQCOW2: vmpb.InitialImage_FORMAT_QCOW2,
}

func initialImage(image *v1alpha1.InitialImage) *vmpb.InitialImage {
	if image == nil {
		return nil
	}
	return &vmpb.InitialImage{Url: image.URL, Checksum: image.Checksum, Format: imageFormats[image.Format]}
}

func bootFile(file *v1alpha1.BootFile) *vmpb.BootFile {
	if file == nil {
		return nil
	}
	return &vmpb.BootFile{Url: file.URL, Checksum: file.Checksum}
}

const (
	// defaultMemory is a guest's memory in bytes if the VM sets none.
	defaultMemory = 512 << 20
	// cpuShare is the CPU request for each virtual CPU, in millicores, if the VM sets no resources. It is low because
	// most VMs are idle.
	cpuShare = 100
)

// overheadBytes is the memory of the hypervisor process and QEMU, in addition to the guest's memory and QEMU's
// translated code. "make bench-overhead" measures it.
const overheadBytes = 192 << 20

// displayBytes is the additional memory of a VM with a display. It includes the memory of the graphics card, a copy for
// the VNC server, and the memory that viewers and a screenshot may use.
const displayBytes = 64 << 20

// Overhead returns the memory of a hypervisor Pod in addition to the guest's memory, in bytes. It is not known in
// advance whether a host has KVM, so it includes the memory for emulation unless the accelerator is KVM.
func (s Settings) Overhead(spec *v1alpha1.VirtualMachineSpec) int64 {
	bytes := int64(overheadBytes)
	if s.Accelerator != AcceleratorKVM {
		bytes += vmpb.TranslatedCodeMiB << 20
	}
	if spec.Display == v1alpha1.DisplayVNC {
		bytes += displayBytes
	}
	return bytes
}

func guestCPUs(spec *v1alpha1.VirtualMachineSpec) int64 {
	if spec.CPUs > 0 {
		return int64(spec.CPUs)
	}
	return max(1, spec.Resources.Limits.Cpu().Value()) // Value rounds up
}

// GuestMemory returns the guest's memory in bytes. It is 0 or less if the limits are too low.
func GuestMemory(spec *v1alpha1.VirtualMachineSpec, s Settings) int64 {
	if spec.Memory != nil {
		return spec.Memory.Value()
	}
	if limit, found := spec.Resources.Limits[corev1.ResourceMemory]; found {
		return limit.Value() - s.Overhead(spec)
	}
	return defaultMemory
}

// podResources returns the resources of the spec. If the spec has none, the Pod requests the guest's memory plus the
// overhead, and a share of the CPUs, and has no limits.
func podResources(spec *v1alpha1.VirtualMachineSpec, s Settings) corev1.ResourceRequirements {
	if len(spec.Resources.Requests)+len(spec.Resources.Limits)+len(spec.Resources.Claims) > 0 {
		return *spec.Resources.DeepCopy()
	}
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceMemory: *resource.NewQuantity(GuestMemory(spec, s)+s.Overhead(spec), resource.BinarySI),
		corev1.ResourceCPU:    *resource.NewMilliQuantity(cpuShare*guestCPUs(spec), resource.DecimalSI),
	}}
}
