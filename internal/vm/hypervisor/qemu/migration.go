package qemu

import (
	"context"
	"fmt"
	"time"
)

// The copy of the root disk, in the QEMU that sends it.
const (
	// migrationJob copies the disk.
	migrationJob = "migration"
	// migrationNode is the destination of the copy.
	migrationNode = "migration"
)

// lookEvery is how often progress is asked for.
const lookEvery = time.Second

// migrationStatus is QEMU's name for how far a migration is. There are more than these.
type migrationStatus string

const (
	preSwitchover      migrationStatus = "pre-switchover"
	migrationCompleted migrationStatus = "completed"
	migrationFailed    migrationStatus = "failed"
	migrationCancelled migrationStatus = "cancelled"
	migrationNone      migrationStatus = "none"
)

// over reports whether QEMU does nothing more for a migration.
func (s migrationStatus) over() bool {
	switch s {
	case migrationCompleted, migrationFailed, migrationCancelled, migrationNone, "":
		return true
	default:
		return false
	}
}

// migrationInfo is the answer to query-migrate.
type migrationInfo struct {
	Status migrationStatus `json:"status"`
	Error  string          `json:"error-desc"`
	RAM    struct {
		Transferred uint64 `json:"transferred"`
		Remaining   uint64 `json:"remaining"`
	} `json:"ram"`
}

func (p *Process) queryMigration(ctx context.Context) (migrationInfo, error) {
	var info migrationInfo
	err := p.monitor.Execute(ctx, "query-migrate", nil, &info)
	return info, err
}

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

// queryJob returns the copy of the disk; the zero value if there is none.
func (p *Process) queryJob(ctx context.Context) (jobInfo, error) {
	var jobs []jobInfo
	if err := p.monitor.Execute(ctx, "query-jobs", nil, &jobs); err != nil {
		return jobInfo{}, err
	}
	for _, job := range jobs {
		if job.ID == migrationJob {
			return job, nil
		}
	}
	return jobInfo{}, nil
}

// failure returns why the copy of the disk has ended; nil if it goes on.
func (j jobInfo) failure() error {
	switch {
	case j.ID == "":
		return fmt.Errorf("the copy of the disk has vanished")
	case j.Status == jobConcluded && j.Error != "":
		return fmt.Errorf("copying the disk: %s", j.Error)
	case j.Status == jobConcluded:
		return fmt.Errorf("the copy of the disk was ended")
	}
	return nil
}

// await repeats a check, after each event and now and then, until it says that it is done.
func (p *Process) await(ctx context.Context, check func(context.Context) (done bool, err error)) error {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		if done, err := check(ctx); done || err != nil {
			return err
		}
		select {
		case <-p.events.moved:
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// setCapabilities switches properties of migrations on or off.
func (p *Process) setCapabilities(ctx context.Context, wanted map[string]bool) error {
	var list []object
	for name, state := range wanted {
		list = append(list, object{"capability": name, "state": state})
	}
	return p.monitor.Execute(ctx, "migrate-set-capabilities", object{"capabilities": list}, nil)
}

func unixAddress(s Socket) object { return object{"type": "unix", "path": s.path()} }
