package qemu

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// mirrorName is the name of what copies the root disk: a job, and the node that is its destination. Those of a data
// disk have its serial number behind it.
const mirrorName = "migration"

// sectorSize is the unit of sizes in QEMU, in bytes.
const sectorSize = 512

// Export is where the content of a disk goes.
type Export struct {
	// Serial of the data disk. Empty: it is the root disk.
	Serial string
	// Name of the NBD export. Required. No two are the same.
	Name string
	// Bytes is the size of the disk to send. The other one may be larger if this is whole sectors.
	Bytes uint64
}

// node is the disk's name in QEMU.
func (e Export) node() string {
	if e.Serial == "" {
		return rootNode
	}
	return dataNode(e.Serial)
}

// mirror is the name of what copies the disk.
func (e Export) mirror() string {
	if e.Serial == "" {
		return mirrorName
	}
	return mirrorName + "-" + e.Serial
}

// isMirror reports whether a name is one of what copies a disk.
func isMirror(name string) bool { return name == mirrorName || strings.HasPrefix(name, mirrorName+"-") }

// jobInfo is a job in the answer to query-jobs.
type jobInfo struct {
	ID      string `json:"id"`
	Status  string `json:"status"`
	Current uint64 `json:"current-progress"`
	Total   uint64 `json:"total-progress"`
	Error   string `json:"error"`
}

// Statuses of a job.
const (
	jobReady     = "ready"
	jobConcluded = "concluded"
)

// failure returns why the copy of a disk has ended; nil if it goes on.
func (j jobInfo) failure() error {
	switch {
	case j.ID == "":
		return errors.New("the copy of a disk has vanished")
	case j.Status == jobConcluded && j.Error != "":
		return fmt.Errorf("copying a disk (%s): %s", j.ID, j.Error)
	case j.Status == jobConcluded:
		return fmt.Errorf("the copy of a disk (%s) was ended", j.ID)
	}
	return nil
}

// mirrors are the copies of disks.
type mirrors []jobInfo

// queryMirrors returns the copies of all disks.
func (p *Process) queryMirrors(ctx context.Context) (mirrors, error) {
	var jobs mirrors
	err := p.monitor.Execute(ctx, "query-jobs", nil, &jobs)
	return slices.DeleteFunc(jobs, func(job jobInfo) bool { return !isMirror(job.ID) }), err
}

// failure returns why a copy of these disks has ended; nil if all go on.
func (m mirrors) failure(of []Export) error {
	for _, export := range of {
		if err := m.job(export).failure(); err != nil {
			return err
		}
	}
	return nil
}

// job returns the copy of a disk; the zero value if there is none.
func (m mirrors) job(of Export) jobInfo {
	at := slices.IndexFunc(m, func(job jobInfo) bool { return job.ID == of.mirror() })
	if at < 0 {
		return jobInfo{}
	}
	return m[at]
}

// progress is that of all disks together.
func (m mirrors) progress(of []Export) Progress {
	var sum Progress
	for _, export := range of {
		job := m.job(export)
		sum.Done += job.Current
		sum.Total += max(job.Total, export.Bytes)
	}
	return sum
}

// mirror copies the disks until they are the same on both sides, and remain so. It begins with one after the other:
// a limit of the bandwidth is that of one copy, and of those that are done only what the guest writes follows.
func (p *Process) mirror(ctx context.Context, to Destination, progress func(Progress)) error {
	for i, export := range to.Exports {
		if err := p.beginMirror(ctx, export, to.Bandwidth); err != nil {
			return err
		}
		err := p.await(ctx, func(ctx context.Context) (bool, error) {
			copies, err := p.queryMirrors(ctx)
			if err == nil {
				err = copies.failure(to.Exports[:i+1])
			}
			progress(copies.progress(to.Exports))
			return copies.job(export).Status == jobReady, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *Process) beginMirror(ctx context.Context, export Export, speed uint64) error {
	destination := object{
		"node-name": export.mirror(), "driver": "raw", "discard": "unmap",
		"file": object{"driver": "nbd", "server": unixAddress(DiskSocket), "export": export.Name, "discard": "unmap"},
	}
	if export.Bytes > 0 && export.Bytes%sectorSize == 0 {
		// The other disk may be a larger device, and QEMU copies only to one of the same size.
		destination["size"] = export.Bytes
	}
	err := p.monitor.Execute(ctx, "blockdev-add", destination, nil)
	if err != nil {
		return fmt.Errorf("connecting to the other disk: %w", err)
	}
	return p.monitor.Execute(ctx, "blockdev-mirror", object{
		"job-id": export.mirror(), "device": export.node(), "target": export.mirror(), "sync": "full",
		"speed": speed,
		// The job stays until its error is read.
		"auto-dismiss": false,
	}, nil)
}

// completeMirrors ends the copies when both sides are the same, with the guest stopped: so all disks are those of one
// moment. QEMU calls that cancelling: the machine keeps its own disks.
func (p *Process) completeMirrors(ctx context.Context, to Destination) error {
	copies, err := p.queryMirrors(ctx)
	if err == nil {
		err = copies.failure(to.Exports)
	}
	if err != nil {
		return err
	}
	for _, export := range to.Exports {
		if err := p.monitor.Execute(ctx, "block-job-cancel", object{"device": export.mirror()}, nil); err != nil {
			return err
		}
	}
	if copies, err = p.awaitMirrors(ctx); err != nil {
		return err
	}
	for _, export := range to.Exports {
		if job := copies.job(export); job.ID == "" || job.Error != "" {
			return fmt.Errorf("copying the last of the disks: %w", job.failure())
		}
	}
	return p.removeMirrors(ctx, copies)
}

// awaitMirrors waits for the end of all copies.
func (p *Process) awaitMirrors(ctx context.Context) (mirrors, error) {
	var copies mirrors
	err := p.await(ctx, func(ctx context.Context) (done bool, err error) {
		copies, err = p.queryMirrors(ctx)
		over := !slices.ContainsFunc(copies, func(job jobInfo) bool { return job.Status != jobConcluded })
		return over, err
	})
	return copies, err
}

// removeMirrors removes what is left of copies that have ended.
func (p *Process) removeMirrors(ctx context.Context, copies mirrors) error {
	for _, job := range copies {
		if err := p.monitor.Execute(ctx, "job-dismiss", object{"id": job.ID}, nil); err != nil {
			return err
		}
	}
	return p.removeDestinations(ctx)
}

// abandonMirrors ends all copies, whether or not they are complete.
func (p *Process) abandonMirrors(ctx context.Context) error {
	copies, err := p.queryMirrors(ctx)
	if err != nil {
		return err
	}
	for _, job := range copies {
		if job.Status != jobConcluded {
			// An error means that it is ending already.
			_ = p.monitor.Execute(ctx, "block-job-cancel", object{"device": job.ID, "force": true}, nil)
		}
	}
	if copies, err = p.awaitMirrors(ctx); err != nil {
		return err
	}
	return p.removeMirrors(ctx, copies)
}

// removeDestinations removes the destinations of disks, which no job uses any more.
func (p *Process) removeDestinations(ctx context.Context) error {
	var nodes []struct {
		Name string `json:"node-name"`
	}
	if err := p.monitor.Execute(ctx, "query-named-block-nodes", object{"flat": true}, &nodes); err != nil {
		return err
	}
	for _, node := range nodes {
		if !isMirror(node.Name) {
			continue
		}
		if err := p.monitor.Execute(ctx, "blockdev-del", object{"node-name": node.Name}, nil); err != nil {
			return err
		}
	}
	return nil
}
