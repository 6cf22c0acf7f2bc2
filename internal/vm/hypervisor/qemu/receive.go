package qemu

import (
	"context"
	"fmt"
)

// Receive makes a machine with Config.Incoming listen on MemorySocket, and with exports also on
// DiskSocket, where it takes the content of these disks. The guest does not run before Cont,
// which must not come before Received has succeeded.
//
// A disk that is not copied stays unlocked until Cont, so that the other machine can be continued.
func (p *Process) Receive(ctx context.Context, exports []Export) error {
	err := p.setCapabilities(ctx, map[string]bool{"events": true, "late-block-activate": true})
	if err != nil {
		return err
	}
	if err := p.monitor.Execute(ctx, "migrate-incoming", object{"uri": "unix:" + MemorySocket.path()}, nil); err != nil {
		return err
	}
	if len(exports) == 0 {
		return nil
	}
	var served []object
	for _, export := range exports {
		served = append(served, object{
			"type": "nbd", "id": export.mirror(), "node-name": export.node(), "name": export.Name, "writable": true,
		})
	}
	return p.export(ctx, served)
}

// Received waits until QEMU has loaded the other machine's state. That is no proof that the other
// machine does not run. Errors: qmp.ErrDisconnected, as QEMU ends if it cannot load it.
func (p *Process) Received(ctx context.Context) error {
	return p.await(ctx, func(ctx context.Context) (bool, error) {
		info, err := p.queryMigration(ctx)
		if err == nil && (info.Status == migrationFailed || info.Status == migrationCancelled) {
			err = fmt.Errorf("receiving the memory: %s (%s)", info.Status, info.Error)
		}
		return info.Status == migrationCompleted, err
	})
}

// CloseExports takes nothing more for the disks. It must come before Cont, if Receive had exports.
func (p *Process) CloseExports(ctx context.Context) error {
	return p.monitor.Execute(ctx, "nbd-server-stop", nil, nil)
}
