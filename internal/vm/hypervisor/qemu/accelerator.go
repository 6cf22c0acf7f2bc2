package qemu

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Accelerator is how QEMU runs the guest's instructions.
type Accelerator string

const (
	// KVM runs them on the processor, through the kernel.
	KVM Accelerator = "kvm"
	// TCG translates them. It is ten or more times slower, and works everywhere.
	TCG Accelerator = "tcg"
)

const kvmDevice = "/dev/kvm"

// Choice is an accelerator and why it was chosen.
type Choice struct {
	Accelerator Accelerator
	// Reason is for people, without a full stop.
	Reason string
}

// DetectAccelerator chooses KVM if this machine can run any guest with it, else TCG.
// An override of "kvm" or "tcg" is obeyed without a look at the machine; "" and
// "auto" leave it to the detection. Any other override is a *FieldError.
//
// That /dev/kvm opens is not enough: there are hosts that are virtual machines
// themselves where it does, but whose processor has neither vmx nor svm. QEMU starts
// there, and an ordinary guest never boots. QEMU's own way back (-accel kvm -accel
// tcg) does not help, as it is taken only when KVM cannot be opened.
func DetectAccelerator(override string) (Choice, error) {
	cpuinfo, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return chooseAccelerator(override, strings.NewReader(""), probeKVM)
	}
	defer func() { _ = cpuinfo.Close() }()
	return chooseAccelerator(override, cpuinfo, probeKVM)
}

// probeKVM opens the device as QEMU does.
func probeKVM() error {
	device, err := os.OpenFile(kvmDevice, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return device.Close()
}

func chooseAccelerator(override string, cpuinfo io.Reader, probe func() error) (Choice, error) {
	switch override {
	case string(KVM), string(TCG):
		return Choice{Accelerator(override), "asked for"}, nil
	case "", "auto":
	default:
		return Choice{}, &FieldError{"accelerator", fmt.Sprintf("%q is none of auto, kvm and tcg", override)}
	}
	if !virtualizes(cpuinfo) {
		return Choice{TCG, "the processor has neither vmx nor svm"}, nil
	}
	if err := probe(); err != nil {
		return Choice{TCG, err.Error()}, nil
	}
	return Choice{KVM, "the processor virtualizes and " + kvmDevice + " opens"}, nil
}

// virtualizes looks for the processor's flags in the text of /proc/cpuinfo. Whole
// words only: there are flags such as svm_lock.
func virtualizes(cpuinfo io.Reader) bool {
	lines := bufio.NewScanner(cpuinfo)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		if strings.TrimSpace(key) != "flags" {
			continue
		}
		flags := strings.Fields(value)
		return slices.Contains(flags, "vmx") || slices.Contains(flags, "svm")
	}
	return false
}
