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
	// Throttle is by how much the guest's CPUs are slowed down, in percent.
	Throttle int `json:"cpu-throttle-percentage"`
	RAM      struct {
		Transferred uint64 `json:"transferred"`
		Remaining   uint64 `json:"remaining"`
		// Passes is how often QEMU has determined which pages have to be sent.
		Passes uint64 `json:"dirty-sync-count"`
		// DirtyPages is the number of pages that the guest writes per second.
		DirtyPages uint64 `json:"dirty-pages-rate"`
		PageSize   uint64 `json:"page-size"`
		// Megabits is the rate at which the memory is sent, in 10^6 bits per second.
		Megabits float64 `json:"mbps"`
	} `json:"ram"`
}

const (
	// minPasses is the number of passes after which the rate at which the guest writes memory is meaningful.
	minPasses = 3
	// maxPasses is the number of passes in which a copy that converges is usually complete.
	maxPasses = 10
)

// diverging reports whether the guest seems to write memory faster than it is sent, so that what is left never
// becomes small enough to stop the guest.
func (i migrationInfo) diverging() bool {
	if i.Status.over() || i.Status == preSwitchover {
		return false
	}
	const bytesPerMegabit = 1e6 / 8
	dirtied, sent := float64(i.RAM.DirtyPages*i.RAM.PageSize), i.RAM.Megabits*bytesPerMegabit
	return i.Throttle > 0 || i.RAM.Passes >= maxPasses || i.RAM.Passes >= minPasses && dirtied > 0 && dirtied >= sent
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
