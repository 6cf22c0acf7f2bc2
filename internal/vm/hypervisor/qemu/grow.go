package qemu

import "context"

// Grow enlarges a disk while the guest runs. The guest detects that immediately. The serial number identifies a
// data disk; if it is empty, the root disk is enlarged. The caller must make sure that the size is not smaller
// than the current one, which would truncate the disk.
func (p *Process) Grow(ctx context.Context, serial string, bytes uint64) error {
	node := rootNode
	if serial != "" {
		node = dataNode(serial)
	}
	return p.monitor.Execute(ctx, "block_resize", object{"node-name": node, "size": bytes}, nil)
}
