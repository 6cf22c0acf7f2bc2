package manager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// lock is several leases that one process holds together: who does the work of both of
// MCM's processes must keep out either. It is not given away while a task of this
// process runs; then it runs out.
//
// client-go's MultiLock does not serve here. It is made for moving from one kind of lock
// to another, where both have the same holder: it takes what it knows of the validity
// from the first lock only, and overwrites the second one unread. With leases that
// others hold one by one it would take one from a holder who is alive.
type lock struct {
	leases []*lease
	idle   func() bool
	log    logr.Logger
	// won is closed when this process first holds all leases.
	won chan struct{}
	// lost is closed when this process, having held all leases, reads one that another holds.
	lost   chan struct{}
	losing sync.Once
	begun  bool
	// standsBy is for whom this process was last seen to stand by.
	standsBy string
}

var _ resourcelock.Interface = (*lock)(nil)

// lease is one of them.
type lease struct {
	resourcelock.Interface
	// missing reports that the lease does not exist.
	missing bool
	// holder is who held it when it was last read or written.
	holder string
}

// Get returns the record of a lease that somebody else holds, or else of one that is
// ours, or else of any. The raw form is that of all of them, so that every renewal of
// any is noticed.
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
	if foreign != nil && l.begun {
		l.losing.Do(func() { close(l.lost) })
	}
	l.sayStandBy(foreign)
	for _, record := range []*resourcelock.LeaderElectionRecord{foreign, own, free} {
		if record != nil {
			return record, bytes.Join(raw, []byte(",")), nil
		}
	}
	return nil, nil, absent
}

// longer is the record that is valid for longer. Which of the holders it names does not
// matter: none of them is us.
func longer(a, b *resourcelock.LeaderElectionRecord) *resourcelock.LeaderElectionRecord {
	if a != nil && a.LeaseDurationSeconds >= b.LeaseDurationSeconds {
		return a
	}
	return b
}

// sayStandBy says, once for each holder, for whom this process stands by.
func (l *lock) sayStandBy(foreign *resourcelock.LeaderElectionRecord) {
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

// Create makes all leases.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	for _, part := range l.leases {
		if err := part.create(ctx, record); err != nil {
			return err
		}
	}
	l.hold()
	return nil
}

// hold notes that this process holds all leases.
func (l *lock) hold() {
	if !l.begun {
		close(l.won)
	}
	l.begun = true
}

var errLeasesLost = errors.New("another manager took the leases, as it may after this process was suspended")

// Start ends the manager, by its error, when this process has lost its leases. client-go does so
// only when it could not renew them for the renew deadline, also if it reads at once that another
// process has them: both would work until then.
func (l *lock) Start(ctx context.Context) error {
	select {
	case <-l.lost:
		return errLeasesLost
	case <-ctx.Done():
		return nil
	}
}

// NeedLeaderElection has Start run from the beginning.
func (l *lock) NeedLeaderElection() bool { return false }

var errBusy = errors.New("a task still runs; the leases are left to run out")

// Update writes all leases, each only if nobody has written it since it was read. To
// give them away is refused while a task runs.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	release := record.HolderIdentity == ""
	if release && !l.idle() {
		return errBusy
	}
	for _, part := range l.leases {
		if release && part.holder != l.Identity() {
			continue // not ours to give away
		}
		if err := part.write(ctx, record); err != nil {
			return err
		}
	}
	if !release {
		l.hold()
	}
	return nil
}

// RecordEvent does what the leases do with events, which is nothing without a recorder.
func (l *lock) RecordEvent(text string) {
	for _, part := range l.leases {
		part.RecordEvent(text)
	}
}

// Identity is this process.
func (l *lock) Identity() string { return l.leases[0].Identity() }

// Describe names the leases.
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

func (p *lease) wrote(record resourcelock.LeaderElectionRecord, err error) error {
	if err != nil {
		return fmt.Errorf("lease %s: %w", p.Describe(), err)
	}
	p.missing, p.holder = false, record.HolderIdentity
	return nil
}
