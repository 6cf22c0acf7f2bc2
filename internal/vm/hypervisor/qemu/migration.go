package qemu

import (
	"context"
	"time"
)

const (
	// lookEvery is how often progress is asked for.
	lookEvery = time.Second
	// leftEvery is how often QEMU is asked whether it has left, which no event tells. It is a matter of milliseconds,
	// in which the guest runs nowhere.
	leftEvery = 2 * time.Millisecond
)

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

// await repeats a check, after each event and now and then, until it says that it is done.
func (p *Process) await(ctx context.Context, check func(context.Context) (done bool, err error)) error {
	return p.awaitEvery(ctx, lookEvery, check)
}

// awaitEvery is await for what no event may announce.
func (p *Process) awaitEvery(ctx context.Context, period time.Duration, check func(context.Context) (done bool, err error)) error {
	look := time.NewTicker(period)
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
