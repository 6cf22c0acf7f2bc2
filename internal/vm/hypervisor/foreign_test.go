package hypervisor_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/partition/gpt"

	"github.com/millwright-dev/millwright/internal/vm/image"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/gptdisk"
)

// kernelOf returns a file with the magic number of a kernel.
func kernelOf(at int, mark string) []byte {
	kernel := make([]byte, 4096)
	copy(kernel[at:], mark)
	return kernel
}

// reading makes the hypervisor read real images below a directory.
func (w *fixture) reading(dir string) {
	access := image.Access{Files: dir}
	w.config.WriteDisk = func(ctx context.Context, source image.Source, target image.Target, options image.Options) error {
		options.Access = access
		return image.WriteDisk(ctx, source, target, options)
	}
	w.config.Fetch = func(ctx context.Context, source image.Source, path string, options image.Options) error {
		options.Access = access
		return image.Fetch(ctx, source, path, options)
	}
}

// An image that is certainly for other processors or other firmware is rejected before QEMU starts, with a message
// that names what the virtual machine has. Any other image is started.
func TestImage_OtherMachinesAreRejected(t *testing.T) {
	arm64, x86 := kernelOf(0x38, "ARM\x64"), kernelOf(0x202, "HdrS")
	foreignDisk, uefiDisk := gptdisk.New(t, gpt.LinuxRootArm64), gptdisk.New(t, gpt.LinuxRootX86_64, gpt.EFISystemPartition)
	ownDisk := bytes.Clone(uefiDisk)
	copy(ownDisk, "\xeb\x63\x90")
	biosDisk := gptdisk.New(t, gpt.BIOSBoot, gpt.LinuxRootX86_64)
	copy(biosDisk, "\xeb\x63\x90")
	ovmf := filepath.Join(t.TempDir(), "OVMF.fd")
	must(t, os.WriteFile(ovmf, nil, 0o600))
	for name, test := range map[string]struct {
		kernel, disk []byte
		firmware     vmpb.VMSpec_Firmware
		refused      string
	}{
		"kernel for arm64":                  {kernel: arm64, refused: "it is a kernel for arm64, but the virtual machine has x86_64 processors"},
		"kernel for x86_64":                 {kernel: x86},
		"32-bit kernel":                     {kernel: []byte("\x7fELF\x01\x01\x01" + strings.Repeat("\x00", 11) + "\x03\x00")},
		"unknown kernel":                    {kernel: []byte("multiboot")},
		"disk for arm64":                    {disk: foreignDisk, refused: "the system on it is for arm64, but the virtual machine has x86_64 processors"},
		"disk for x86_64":                   {disk: ownDisk},
		"disk that boots only by UEFI":      {disk: uefiDisk, refused: "it boots only by UEFI; set firmware: UEFI, or use"},
		"disk that boots by UEFI":           {disk: uefiDisk, firmware: vmpb.VMSpec_FIRMWARE_UEFI},
		"disk that boots by both":           {disk: ownDisk, firmware: vmpb.VMSpec_FIRMWARE_UEFI},
		"disk that boots only by BIOS":      {disk: biosDisk, firmware: vmpb.VMSpec_FIRMWARE_UEFI, refused: "it does not boot by UEFI, because it has no EFI system partition; set firmware: BIOS, or use"},
		"BIOS disk":                         {disk: biosDisk},
		"UEFI disk that is not booted":      {kernel: x86, disk: uefiDisk},
		"unknown disk":                      {disk: make([]byte, 4096)},
		"disk for arm64 that is not booted": {kernel: x86, disk: foreignDisk},
		"kernel for arm64 next to its disk": {kernel: arm64, disk: foreignDisk, refused: "it is a kernel for arm64, but"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			withFixture(t, func(w *fixture) {
				w.reading(dir)
				w.config.Spec.Firmware, w.machines.Firmware = test.firmware, ovmf
				if test.disk != nil {
					w.preparing()
					w.config.Spec.InitialImage.Url = "file://" + filepath.Join(dir, "disk")
					must(t, os.WriteFile(filepath.Join(dir, "disk"), test.disk, 0o600))
				}
				if test.kernel != nil {
					w.config.Spec.KernelBoot = &vmpb.KernelBoot{Kernel: &vmpb.BootFile{Url: "file://" + filepath.Join(dir, "kernel")}}
					must(t, os.WriteFile(filepath.Join(dir, "kernel"), test.kernel, 0o600))
				}
				p := w.start()
				if test.refused == "" {
					p.wantAlive()
					return
				}
				end := p.wantEnd(vmpb.EndImageRejected)
				if !strings.Contains(end.Message, test.refused) || !strings.Contains(end.Message, "file://"+dir) {
					t.Errorf("message = %q", end.Message)
				}
				if len(w.machines.Started()) > 0 {
					t.Error("started a machine")
				}
				if test.kernel == nil && w.disk() != "" {
					t.Error("a disk exists, which a later image would not replace")
				}
			})
		})
	}
}
