package qemu

import (
	"context"
	"fmt"
)

// Receive makes a machine with Config.Incoming listen on MemorySocket, and with exports also on DiskSocket, where it
// receives the content of these disks. The guest does not run before Cont, which must not be called before Received
// has succeeded.
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

// Received waits until QEMU has loaded the other machine's state. This does not prove that the other machine is
// stopped. Errors: qmp.ErrDisconnected, as QEMU exits if it cannot load the state.
func (p *Process) Received(ctx context.Context) error {
	return p.await(ctx, func(ctx context.Context) (bool, error) {
		info, err := p.queryMigration(ctx)
		if err == nil && (info.Status == migrationFailed || info.Status == migrationCancelled) {
			err = fmt.Errorf("receiving the memory: %s (%s)", info.Status, info.Error)
		}
		return info.Status == migrationCompleted, err
	})
}

// CloseExports stops receiving disks. It must be called before Cont if Receive had exports.
func (p *Process) CloseExports(ctx context.Context) error {
	return p.monitor.Execute(ctx, "nbd-server-stop", nil, nil)
}
