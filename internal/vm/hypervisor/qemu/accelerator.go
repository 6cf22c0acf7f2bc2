package qemu

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Accelerator is how QEMU executes the guest's instructions.
type Accelerator string

const (
	// KVM executes them on the host's processor.
	KVM Accelerator = "kvm"
	// TCG translates them. It is ten or more times slower, and works everywhere.
	TCG Accelerator = "tcg"
)

// DetectAccelerator returns KVM if this host can run any guest with it, else TCG. With the
// override "kvm" or "tcg" it returns that; "" and "auto" mean detection. Any other override
// is a *FieldError.
//
// It is not enough that /dev/kvm can be opened: on some hosts that are virtual machines it
// can, but the processor has neither vmx nor svm. QEMU starts there, and an ordinary guest
// never boots. QEMU's own fallback (-accel kvm -accel tcg) does not help, as it needs KVM to
// fail when it is opened.
func DetectAccelerator(override string) (Accelerator, error) {
	cpuinfo, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		cpuinfo = nil // no flags: TCG
	}
	return chooseAccelerator(override, string(cpuinfo), probeKVM)
}

// probeKVM opens the device as QEMU does.
func probeKVM() error {
	device, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return device.Close()
}

func chooseAccelerator(override, cpuinfo string, probe func() error) (Accelerator, error) {
	switch override {
	case string(KVM), string(TCG):
		return Accelerator(override), nil
	case "", "auto":
	default:
		return "", &FieldError{"accelerator", fmt.Sprintf("%q is none of auto, kvm and tcg", override)}
	}
	if virtualizes(cpuinfo) && probe() == nil {
		return KVM, nil
	}
	return TCG, nil
}

// virtualizes reports whether /proc/cpuinfo lists one of the flags. It compares whole words:
// there are flags such as svm_lock.
func virtualizes(cpuinfo string) bool {
	for line := range strings.Lines(cpuinfo) {
		key, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) == "flags" {
			flags := strings.Fields(value)
			return slices.Contains(flags, "vmx") || slices.Contains(flags, "svm")
		}
	}
	return false
}
