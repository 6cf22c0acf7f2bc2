package qemu

import "context"

// Grow makes a disk larger while the guest runs, which sees it at once. The serial number is that of a data disk;
// empty, it is the root disk. A size below the disk's would cut it off: the caller compares.
func (p *Process) Grow(ctx context.Context, serial string, bytes uint64) error {
	node := rootNode
	if serial != "" {
		node = dataNode(serial)
	}
	return p.monitor.Execute(ctx, "block_resize", object{"node-name": node, "size": bytes}, nil)
}
