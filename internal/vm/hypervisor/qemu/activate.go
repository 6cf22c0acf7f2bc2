package qemu

import "context"

// Activate makes a machine whose guest is stopped acquire its disks and their locks, as Cont does. A machine that
// has sent its guest, or has received a guest whose disks were not copied, has released them. If QEMU 7.2 then
// resizes such a disk or migrates the guest again, it aborts with an assertion failure. Activate has no effect if
// the machine already has its disks.
//
// QEMU has no command for this, but it activates a disk when the disk is exported.
func (p *Process) Activate(ctx context.Context) error {
	var exports []object
	for _, node := range p.disks {
		exports = append(exports, object{"type": "nbd", "id": "activate-" + node, "node-name": node, "name": node, "writable": false})
	}
	err := p.export(ctx, exports)
	if err == nil {
		err = p.CloseExports(ctx)
	}
	return err
}

// export serves disks on DiskSocket.
func (p *Process) export(ctx context.Context, exports []object) error {
	err := p.monitor.Execute(ctx, "nbd-server-start", object{
		"addr": object{"type": "unix", "data": object{"path": DiskSocket.path()}},
	}, nil)
	for _, export := range exports {
		if err == nil {
			err = p.monitor.Execute(ctx, "block-export-add", export, nil)
		}
	}
	return err
}
