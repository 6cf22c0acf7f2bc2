package hypervisor

import (
	"context"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
)

// QEMU starts machines with QEMU.
type QEMU struct {
	// Program is the path of QEMU, or its name in PATH. Empty: qemu.DefaultProgram.
	Program string
	// Accelerator is "kvm", "tcg" or "auto"; see qemu.DetectAccelerator. Empty: auto.
	Accelerator string
}

// Start implements Starter.
func (q QEMU) Start(ctx context.Context, config qemu.Config) (Machine, error) {
	accelerator, err := qemu.DetectAccelerator(q.Accelerator)
	if err != nil {
		return nil, err
	}
	config.Processor.Accelerator = accelerator
	process, err := qemu.Start(ctx, q.Program, config)
	if err != nil {
		return nil, err // and no Machine that is a nil *qemu.Process
	}
	return process, nil
}
