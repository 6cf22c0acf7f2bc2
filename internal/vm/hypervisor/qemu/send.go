package qemu

import (
	"context"
	"fmt"
)

// Destination is where a machine is sent.
type Destination struct {
	// Export is the name of the NBD export that takes the root disk. Empty: the disk is not
	// copied, since the other machine has the same one.
	Export string
	// Bandwidth is the limit of each channel in bytes per second. 0: no limit for the disk,
	// and QEMU's default for the memory.
	Bandwidth uint64
}

// Progress is how far a copy is, in bytes.
type Progress struct{ Done, Total uint64 }

// Send copies the disk and the memory to another machine while the guest runs, and then stops the guest.
// QEMU connects to DiskSocket and MemorySocket. Finish does the rest. After an error, and in
// its stead, there must be a call of Abandon.
//
// QEMU is not told of a way back from the other machine: with one it would continue the guest
// when an acknowledgement is lost, and the other machine might run it, too.
func (p *Process) Send(ctx context.Context, to Destination, progress func(Progress)) error {
	err := p.setCapabilities(ctx, map[string]bool{"events": true, "pause-before-switchover": true, "return-path": false})
	if err != nil {
		return err
	}
	if to.Bandwidth != 0 {
		if err := p.monitor.Execute(ctx, "migrate-set-parameters", object{"max-bandwidth": to.Bandwidth}, nil); err != nil {
			return err
		}
	}
	if to.Export != "" {
		if err := p.mirror(ctx, to, progress); err != nil {
			return err
		}
	}
	if err := p.monitor.Execute(ctx, "migrate", object{"uri": "unix:" + MemorySocket.path()}, nil); err != nil {
		return err
	}
	return p.await(ctx, func(ctx context.Context) (bool, error) { return p.sent(ctx, to, progress) })
}

// mirror copies the disk until it is the same on both sides, and remains so.
func (p *Process) mirror(ctx context.Context, to Destination, progress func(Progress)) error {
	err := p.monitor.Execute(ctx, "blockdev-add", object{
		"node-name": migrationNode, "driver": "raw", "discard": "unmap",
		"file": object{"driver": "nbd", "server": unixAddress(DiskSocket), "export": to.Export, "discard": "unmap"},
	}, nil)
	if err != nil {
		return fmt.Errorf("connecting to the other disk: %w", err)
	}
	err = p.monitor.Execute(ctx, "blockdev-mirror", object{
		"job-id": migrationJob, "device": rootNode, "target": migrationNode, "sync": "full",
		"speed": to.Bandwidth,
		// The job stays until its error is read.
		"auto-dismiss": false,
	}, nil)
	if err != nil {
		return err
	}
	return p.await(ctx, func(ctx context.Context) (bool, error) {
		job, err := p.queryJob(ctx)
		if err == nil {
			err = job.failure()
		}
		progress(Progress{job.Current, job.Total})
		return job.Status == jobReady, err
	})
}

// sent reports whether QEMU has stopped the guest.
func (p *Process) sent(ctx context.Context, to Destination, progress func(Progress)) (bool, error) {
	var job jobInfo
	if to.Export != "" {
		var err error
		if job, err = p.queryJob(ctx); err == nil {
			err = job.failure()
		}
		if err != nil {
			return false, err
		}
	}
	info, err := p.queryMigration(ctx)
	if err != nil {
		return false, err
	}
	progress(Progress{job.Current + info.RAM.Transferred, job.Total + info.RAM.Transferred + info.RAM.Remaining})
	if info.Status.over() {
		return false, fmt.Errorf("sending the memory: %s (%s)", info.Status, info.Error)
	}
	return info.Status == preSwitchover, nil
}

// Finish sends the rest after Send, with the guest stopped. When it returns without an error, QEMU has
// written everything to its sockets, does not continue the guest by itself, and is Left: Cont is possible.
func (p *Process) Finish(ctx context.Context, to Destination) error {
	if to.Export != "" {
		if err := p.completeMirror(ctx); err != nil {
			return err
		}
	}
	if err := p.monitor.Execute(ctx, "migrate-continue", object{"state": preSwitchover}, nil); err != nil {
		return err
	}
	return p.await(ctx, func(ctx context.Context) (bool, error) {
		info, err := p.queryMigration(ctx)
		if err == nil && info.Status.over() && info.Status != migrationCompleted {
			err = fmt.Errorf("sending the last of the memory: %s (%s)", info.Status, info.Error)
		}
		if err != nil || info.Status != migrationCompleted {
			return false, err
		}
		state, err := p.State(ctx) // it changes a little later, and refuses to continue until then
		return state.Status == Left, err
	})
}

// completeMirror ends the copy of the disk when both sides are the same. QEMU calls that cancelling: the
// machine keeps its own disk.
func (p *Process) completeMirror(ctx context.Context) error {
	job, err := p.queryJob(ctx)
	if err == nil {
		err = job.failure()
	}
	if err != nil {
		return err
	}
	if err := p.monitor.Execute(ctx, "block-job-cancel", object{"device": migrationJob}, nil); err != nil {
		return err
	}
	err = p.await(ctx, func(ctx context.Context) (bool, error) {
		job, err = p.queryJob(ctx)
		return job.ID == "" || job.Status == jobConcluded, err
	})
	switch {
	case err != nil:
		return err
	case job.ID == "" || job.Error != "":
		return fmt.Errorf("copying the last of the disk: %w", job.failure())
	}
	return p.removeMirror(ctx)
}

// removeMirror removes what is left of a copy that has ended.
func (p *Process) removeMirror(ctx context.Context) error {
	if err := p.monitor.Execute(ctx, "job-dismiss", object{"id": migrationJob}, nil); err != nil {
		return err
	}
	return p.monitor.Execute(ctx, "blockdev-del", object{"node-name": migrationNode}, nil)
}

// Abandon ends a migration that did not succeed, or is not wanted any more. QEMU continues a guest
// that it has stopped for it, unless Finish has succeeded: then Cont does. The sockets
// must be closed before: QEMU may wait for them with all it does.
func (p *Process) Abandon(ctx context.Context) error {
	if err := p.monitor.Execute(ctx, "migrate_cancel", nil, nil); err != nil {
		return err
	}
	err := p.await(ctx, func(ctx context.Context) (bool, error) {
		info, err := p.queryMigration(ctx)
		return info.Status.over(), err
	})
	if err != nil {
		return err
	}
	return p.abandonMirror(ctx)
}

func (p *Process) abandonMirror(ctx context.Context) error {
	job, err := p.queryJob(ctx)
	if err != nil {
		return err
	}
	if job.ID != "" && job.Status != jobConcluded {
		// An error means that it is ending already.
		_ = p.monitor.Execute(ctx, "block-job-cancel", object{"device": migrationJob, "force": true}, nil)
	}
	err = p.await(ctx, func(ctx context.Context) (bool, error) {
		job, err = p.queryJob(ctx)
		return job.ID == "" || job.Status == jobConcluded, err
	})
	if err != nil {
		return err
	}
	if job.ID != "" {
		return p.removeMirror(ctx)
	}
	return p.removeNode(ctx)
}

// removeNode removes the destination of the disk, if there is one that no job uses.
func (p *Process) removeNode(ctx context.Context) error {
	var nodes []struct {
		Name string `json:"node-name"`
	}
	if err := p.monitor.Execute(ctx, "query-named-block-nodes", object{"flat": true}, &nodes); err != nil {
		return err
	}
	for _, node := range nodes {
		if node.Name == migrationNode {
			return p.monitor.Execute(ctx, "blockdev-del", object{"node-name": migrationNode}, nil)
		}
	}
	return nil
}
