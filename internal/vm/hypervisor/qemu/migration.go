package qemu

import (
	"context"
	"time"
)

const (
	// progressInterval is the interval of progress requests.
	progressInterval = time.Second
	// sentInterval is how often QEMU is asked whether it has sent the guest, which it does not announce by an event.
	// Sending takes milliseconds, during which the guest does not run.
	sentInterval = 2 * time.Millisecond
)

// migrationStatus is QEMU's name for the status of a migration. QEMU also has other values.
type migrationStatus string

const (
	preSwitchover      migrationStatus = "pre-switchover"
	migrationCompleted migrationStatus = "completed"
	migrationFailed    migrationStatus = "failed"
	migrationCancelled migrationStatus = "cancelled"
	migrationNone      migrationStatus = "none"
)

// over reports whether QEMU has finished a migration.
func (s migrationStatus) over() bool {
	switch s {
	case migrationCompleted, migrationFailed, migrationCancelled, migrationNone, "":
		return true
	default:
		return false
	}
}

// migrationInfo is the response to query-migrate.
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

// await repeats a check after each event and at intervals until the check reports that it is done.
func (p *Process) await(ctx context.Context, check func(context.Context) (done bool, err error)) error {
	return p.awaitEvery(ctx, progressInterval, check)
}

// awaitEvery is like await, for changes that QEMU may not announce by an event.
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

// setCapabilities turns capabilities of migrations on or off.
func (p *Process) setCapabilities(ctx context.Context, capabilities map[string]bool) error {
	var list []object
	for name, state := range capabilities {
		list = append(list, object{"capability": name, "state": state})
	}
	return p.monitor.Execute(ctx, "migrate-set-capabilities", object{"capabilities": list}, nil)
}

func unixAddress(s Socket) object { return object{"type": "unix", "path": s.path()} }
