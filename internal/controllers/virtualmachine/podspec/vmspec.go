package podspec

import (
	"bytes"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/ipam"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// vmSpecJSON returns the hypervisor's spec in a stable form: protojson itself varies its
// white space on purpose.
func vmSpecJSON(vm *v1alpha1.VirtualMachine, endpoint string) (string, error) {
	raw, err := protojson.Marshal(vmSpec(vm, endpoint))
	if err != nil {
		return "", fmt.Errorf("writing the spec for the hypervisor of %s: %w", vm.Name, err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return "", fmt.Errorf("writing the spec for the hypervisor of %s: %w", vm.Name, err)
	}
	return compact.String(), nil
}

// vmSpec returns the spec for the next hypervisor of a VM.
func vmSpec(vm *v1alpha1.VirtualMachine, endpoint string) *vmpb.VMSpec {
	spec := &vmpb.VMSpec{
		Name: vm.Name, Namespace: vm.Namespace, Uuid: vm.Spec.UUID,
		Mode:               startMode(vm),
		LeaseMode:          vmpb.LeaseMode_LM_STORAGE_LOCKING,
		Address:            ipam.Of(vm),
		ControllerEndpoint: endpoint,
		PodName:            vm.Status.ActivePodName,
		RootDiskPath:       vmpb.RootDiskPath,
		Resources: &vmpb.Resources{
			Cpus: uint32(guestCPUs(&vm.Spec)), MemoryBytes: uint64(max(0, GuestMemory(&vm.Spec))),
		},
	}
	if template := vm.Spec.VolumeClaimTemplate; template != nil {
		spec.RootDiskBytes = uint64(max(0, template.Spec.Resources.Requests.Storage().Value()))
	}
	if image := vm.Spec.InitialImage; image != nil {
		spec.InitialImage = &vmpb.InitialImage{Url: image.URL, Checksum: image.Checksum, Format: imageFormat(image.Format)}
	}
	if boot := vm.Spec.KernelBoot; boot != nil {
		spec.KernelBoot = &vmpb.KernelBoot{Kernel: bootFile(&boot.Kernel), Initrd: bootFile(boot.Initrd), CommandLine: boot.CommandLine}
	}
	if vm.Spec.UserData != nil {
		spec.UserData = &vmpb.UserData{Path: vmpb.UserDataPath}
	}
	return spec
}

// startMode returns whether the hypervisor has to write the image to the disk first. An
// ephemeral disk is a new one for each Pod.
func startMode(vm *v1alpha1.VirtualMachine) vmpb.VMSpec_StartMode {
	prepared := vm.Status.ImagePrepared && vm.Status.VolumeClaimName != ""
	if vm.Spec.InitialImage != nil && !prepared {
		return vmpb.VMSpec_SM_PREPARE_IMAGE
	}
	return vmpb.VMSpec_SM_RUN
}

func imageFormat(format v1alpha1.ImageFormat) vmpb.InitialImage_Format {
	switch format {
	case v1alpha1.FormatRaw:
		return vmpb.InitialImage_FORMAT_RAW
	case v1alpha1.FormatQCOW2:
		return vmpb.InitialImage_FORMAT_QCOW2
	}
	return vmpb.InitialImage_FORMAT_UNKNOWN
}

func bootFile(file *v1alpha1.BootFile) *vmpb.BootFile {
	if file == nil {
		return nil
	}
	return &vmpb.BootFile{Url: file.URL, Checksum: file.Checksum}
}
