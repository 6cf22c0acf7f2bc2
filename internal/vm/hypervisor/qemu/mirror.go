package qemu

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// mirrorName is the name of the job that copies the root disk, and of its destination node. For a data disk, the
// serial number is appended.
const mirrorName = "migration"

// sectorSize is the unit of sizes in QEMU, in bytes.
const sectorSize = 512

// Export is the destination for the content of a disk.
type Export struct {
	// Serial is the serial number of a data disk. It is empty for the root disk.
	Serial string
	// Name is the name of the NBD export. Required. It must be unique.
	Name string
	// Bytes is the size of the disk to send. If it is a multiple of the sector size, the destination may be larger.
	Bytes uint64
}

// node returns the name of the disk in QEMU.
func (e Export) node() string {
	if e.Serial == "" {
		return rootNode
	}
	return dataNode(e.Serial)
}

// mirror returns the name of the job that copies the disk.
func (e Export) mirror() string {
	if e.Serial == "" {
		return mirrorName
	}
	return mirrorName + "-" + e.Serial
}

// isMirror reports whether a job copies a disk.
func isMirror(name string) bool { return name == mirrorName || strings.HasPrefix(name, mirrorName+"-") }

// jobInfo is a job in the response to query-jobs.
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

// failure returns why the copy of a disk was terminated, or nil while it continues.
func (j jobInfo) failure() error {
	switch {
	case j.ID == "":
		return errors.New("the copy of a disk no longer exists")
	case j.Status == jobConcluded && j.Error != "":
		return fmt.Errorf("copying a disk (%s): %s", j.ID, j.Error)
	case j.Status == jobConcluded:
		return fmt.Errorf("the copy of a disk (%s) was canceled", j.ID)
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

// failure returns why a copy of these disks was terminated, or nil while all of them continue.
func (m mirrors) failure(of []Export) error {
	for _, export := range of {
		if err := m.job(export).failure(); err != nil {
			return err
		}
	}
	return nil
}

// job returns the copy of a disk, or the zero value if there is none.
func (m mirrors) job(of Export) jobInfo {
	at := slices.IndexFunc(m, func(job jobInfo) bool { return job.ID == of.mirror() })
	if at < 0 {
		return jobInfo{}
	}
	return m[at]
}

// progress returns the total progress of all disks.
func (m mirrors) progress(of []Export) Progress {
	var sum Progress
	for _, export := range of {
		job := m.job(export)
		sum.Done += job.Current
		sum.Total += max(job.Total, export.Bytes)
	}
	return sum
}

// mirror copies the disks until they are the same on both sides, and then keeps them the same. It starts the
// copies one after another, because a bandwidth limit applies to each copy. A copy that is complete transfers only
// what the guest writes.
func (s *sending) mirror(ctx context.Context) error {
	for i, export := range s.to.Exports {
		if err := s.beginMirror(ctx, export, s.to.Bandwidth); err != nil {
			return err
		}
		err := s.await(ctx, func(ctx context.Context) (bool, error) {
			copies, err := s.queryMirrors(ctx)
			if err == nil {
				err = copies.failure(s.to.Exports[:i+1])
			}
			if err == nil {
				err = s.force(ctx, copies)
			}
			s.progress(copies.progress(s.to.Exports))
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
		// The destination may be a larger device, but QEMU copies only to a destination of the same size.
		destination["size"] = export.Bytes
	}
	err := p.monitor.Execute(ctx, "blockdev-add", destination, nil)
	if err != nil {
		return fmt.Errorf("connecting to the destination of a disk: %w", err)
	}
	return p.monitor.Execute(ctx, "blockdev-mirror", object{
		"job-id": export.mirror(), "device": export.node(), "target": export.mirror(), "sync": "full",
		"speed": speed,
		// Keep the job until its error has been read.
		"auto-dismiss": false,
	}, nil)
}

// completeMirrors stops the copies when both sides are the same. The guest is stopped, so that all disks are from
// the same moment. QEMU calls this canceling: the machine keeps its own disks.
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
			return fmt.Errorf("copying the rest of the disks: %w", job.failure())
		}
	}
	return p.removeMirrors(ctx, copies)
}

// awaitMirrors waits until all copies have terminated.
func (p *Process) awaitMirrors(ctx context.Context) (mirrors, error) {
	var copies mirrors
	err := p.await(ctx, func(ctx context.Context) (done bool, err error) {
		copies, err = p.queryMirrors(ctx)
		over := !slices.ContainsFunc(copies, func(job jobInfo) bool { return job.Status != jobConcluded })
		return over, err
	})
	return copies, err
}

// removeMirrors removes copies that have terminated.
func (p *Process) removeMirrors(ctx context.Context, copies mirrors) error {
	for _, job := range copies {
		if err := p.monitor.Execute(ctx, "job-dismiss", object{"id": job.ID}, nil); err != nil {
			return err
		}
	}
	return p.removeDestinations(ctx)
}

// abandonMirrors cancels all copies, whether complete or not.
func (p *Process) abandonMirrors(ctx context.Context) error {
	copies, err := p.queryMirrors(ctx)
	if err != nil {
		return err
	}
	for _, job := range copies {
		if job.Status != jobConcluded {
			// An error means that the job is already terminating.
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
