package manager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// lock consists of several leases that one process holds together. A manager that replaces both of MCM's
// processes must exclude both. While a task of this process is running, the lock is not released; it then
// expires.
//
// The MultiLock of client-go cannot be used. It is made for the migration from one kind of lock to another,
// where both have the same holder. It reads only the first lock and overwrites the second, so it would take a
// lease from another running process.
type lock struct {
	leases []*lease
	// interval is the time between two renewals. The elector requests renewals more often, at the interval at
	// which a standby process checks the leases.
	interval time.Duration
	// deadline is how long the leases are held without a renewal.
	deadline time.Duration
	// renewed is when the last renewal began. It is nil if this process has not held the leases.
	renewed atomic.Pointer[time.Time]
	idle    func() bool
	log     logr.Logger
	// seen is closed when this process has read all leases or found that they do not exist.
	seen   chan struct{}
	seeing sync.Once
	// won is closed when this process first holds all leases.
	won chan struct{}
	// lost is closed when this process has held all leases and then reads one that another process holds.
	lost   chan struct{}
	losing sync.Once
	begun  bool
	// standsBy is the holder that was last logged.
	standsBy string
}

var _ resourcelock.Interface = (*lock)(nil)

// lease is one of the leases of a lock.
type lease struct {
	resourcelock.Interface
	// missing reports that the lease does not exist.
	missing bool
	// holder is the holder at the last read or write.
	holder string
}

// Get returns the record of a lease that another process holds, or else of one that this process holds, or else
// of any lease. The raw form combines all leases, so that every renewal is noticed.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	var foreign, own, free *resourcelock.LeaderElectionRecord
	var raw [][]byte
	var absent error
	for _, part := range l.leases {
		record, text, err := part.read(ctx)
		switch {
		case apierrors.IsNotFound(err):
			absent = err
		case err != nil:
			return nil, nil, err
		case record.HolderIdentity == l.Identity():
			own = record
		case record.HolderIdentity == "":
			free = record
		default:
			foreign = longer(foreign, record)
		}
		raw = append(raw, text)
	}
	l.seeing.Do(func() { close(l.seen) })
	if foreign != nil && l.begun {
		l.losing.Do(func() { close(l.lost) })
	}
	l.logStandBy(foreign)
	for _, record := range []*resourcelock.LeaderElectionRecord{foreign, own, free} {
		if record != nil {
			return record, bytes.Join(raw, []byte(",")), nil
		}
	}
	return nil, nil, absent
}

// longer returns the record that is valid for longer. Both belong to other processes.
func longer(a, b *resourcelock.LeaderElectionRecord) *resourcelock.LeaderElectionRecord {
	if a != nil && a.LeaseDurationSeconds >= b.LeaseDurationSeconds {
		return a
	}
	return b
}

// logStandBy logs, once for each holder, that this process is a standby.
func (l *lock) logStandBy(foreign *resourcelock.LeaderElectionRecord) {
	if foreign == nil {
		l.standsBy = ""
		return
	}
	if l.standsBy == foreign.HolderIdentity {
		return
	}
	l.standsBy = foreign.HolderIdentity
	var names []string
	for _, part := range l.leases {
		if part.holder != "" && part.holder != l.Identity() {
			names = append(names, part.Describe())
		}
	}
	l.log.Info("standing by: another manager holds the leases", "holder", foreign.HolderIdentity, "leases", names)
}

// Create creates all leases.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	began := time.Now()
	for _, part := range l.leases {
		if err := part.create(ctx, record); err != nil {
			return err
		}
	}
	l.hold(began)
	return nil
}

// hold records that this process holds all leases.
func (l *lock) hold(since time.Time) {
	l.renewed.Store(&since)
	if !l.begun {
		close(l.won)
	}
	l.begun = true
}

var errLeasesLost = errors.New("another manager acquired the leases, probably because this process was suspended")

// Start stops the manager with an error when this process has lost its leases. client-go stops only when it
// could not renew them for the renew deadline, even if it reads immediately that another process holds them.
// Until then, both processes would be active.
func (l *lock) Start(ctx context.Context) error {
	select {
	case <-l.lost:
		return errLeasesLost
	case <-ctx.Done():
		return nil
	}
}

// NeedLeaderElection returns false, so that Start runs before the election.
func (l *lock) NeedLeaderElection() bool { return false }

var errBusy = errors.New("a task is still running; the leases are not released and will expire")

// Update writes all leases, each only if it was not written since it was read. It skips renewals that come
// sooner than the interval. It refuses to release the leases while a task is running.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	release := record.HolderIdentity == ""
	if release && !l.idle() {
		return errBusy
	}
	// The elector's pauses are a quarter of the interval, so the fourth pause may elapse slightly early.
	began := time.Now()
	if renewed := l.renewed.Load(); !release && renewed != nil && began.Sub(*renewed) < l.interval-l.interval/8 {
		return nil
	}
	for _, part := range l.leases {
		write := part.write
		if release {
			write = part.release
		}
		if err := write(ctx, record); err != nil {
			return err
		}
	}
	if !release {
		l.hold(began)
	}
	return nil
}

// RecordEvent records an event on each lease if it has a recorder.
func (l *lock) RecordEvent(text string) {
	for _, part := range l.leases {
		part.RecordEvent(text)
	}
}

// Identity returns the identity of this process.
func (l *lock) Identity() string { return l.leases[0].Identity() }

// Describe returns the names of the leases.
func (l *lock) Describe() string {
	var names []string
	for _, part := range l.leases {
		names = append(names, part.Describe())
	}
	return strings.Join(names, ", ")
}

func (p *lease) read(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := p.Get(ctx)
	p.missing, p.holder = apierrors.IsNotFound(err), ""
	if err != nil {
		return nil, nil, fmt.Errorf("lease %s: %w", p.Describe(), err)
	}
	p.holder = record.HolderIdentity
	return record, raw, nil
}

func (p *lease) create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return p.wrote(record, p.Create(ctx, record))
}

func (p *lease) write(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if p.missing {
		return p.create(ctx, record)
	}
	return p.wrote(record, p.Interface.Update(ctx, record))
}

// release writes a record without a holder unless another process holds the lease. When the elector stops, it cancels a
// renewal, but the API server may still store it after the lease was read. The release then fails with a conflict, and
// is repeated: otherwise, the lease would have to expire.
func (p *lease) release(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	for p.holder == p.Identity() {
		err := p.write(ctx, record)
		if !apierrors.IsConflict(err) {
			return err
		}
		if _, _, err := p.read(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *lease) wrote(record resourcelock.LeaderElectionRecord, err error) error {
	if err != nil {
		return fmt.Errorf("lease %s: %w", p.Describe(), err)
	}
	p.missing, p.holder = false, record.HolderIdentity
	return nil
}
