package qemu

import (
	"errors"
	"io/fs"
	"testing"
)

func TestAccelerator_Detection(t *testing.T) {
	const (
		intel   = "processor\t: 0\nflags\t\t: fpu vme vmx sse2\n"
		amd     = "flags\t\t: fpu svm sse2\n"
		neither = "model name\t: vmx svm\nflags\t\t: fpu hypervisor svm_lock evmx\n\nflags\t\t: fpu\n"
	)
	opens := func() error { return nil }
	refused := func() error { return fs.ErrPermission }
	for name, test := range map[string]struct {
		override, cpuinfo string
		probe             func() error
		want              Accelerator
	}{
		"Intel":                            {"", intel, opens, KVM},
		"AMD":                              {"auto", amd, opens, KVM},
		"device without processor support": {"auto", neither, opens, TCG},
		"processor support without device": {"auto", intel, refused, TCG},
		"no cpuinfo":                       {"auto", "", opens, TCG},
		"KVM forced":                       {"kvm", neither, refused, KVM},
		"TCG forced":                       {"tcg", intel, opens, TCG},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := chooseAccelerator(test.override, test.cpuinfo, test.probe)
			if err != nil || got != test.want {
				t.Errorf("accelerator = %q, %v; want %s", got, err, test.want)
			}
		})
	}
}

func TestAccelerator_UnknownIsRejected(t *testing.T) {
	var refusal *FieldError
	if got, err := DetectAccelerator("KVM"); !errors.As(err, &refusal) {
		t.Errorf("accelerator = %q, %v; want a *FieldError", got, err)
	}
}

// The accelerator that is detected on this host must be able to boot a guest.
func TestAccelerator_DetectedOneBoots(t *testing.T) {
	detected, err := DetectAccelerator("auto")
	must(t, err)
	config := machine(t, echo)
	config.Processor.Accelerator = detected
	p := start(t, config)
	console := attach(t, p)
	must(t, p.Cont(bounded(t)))
	console.until(echoBanner)
}
