package hypervisor

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/departure"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/handover"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/negotiation"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/runfolder"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

const (
	// defaultGrace is VMSpec.grace if that is absent.
	defaultGrace = 30 * time.Second
	// maxHope is how long at most a controller is asked that does not answer, and failOver how long if it
	// answered when the process was asked to end: then it is another one that is starting.
	maxHope  = 2 * time.Second
	failOver = time.Minute
)

// leaving is how the VM leaves this hypervisor. The zero value is without live migration.
type leaving struct {
	departure *departure.Departure // nil: it cannot migrate
	// ordered is whether the controller wants the VM to leave, by the run lease.
	ordered bool
	// ending is whether the process was asked to end.
	ending bool
	// late receives when the time for migrating is over.
	late <-chan time.Time
	// hopeless is when a controller that does not answer counts as one that names no target: hope after it
	// answered last.
	hopeless time.Time
	hope     time.Duration
	// doubt receives when that may be so after hurry.
	doubt <-chan time.Time
	// why is why the guest shuts down instead of migrating, for users. Empty: the controller knows it.
	why string
	// shutDown is whether the guest is to shut down, once no migration is under way.
	shutDown bool
}

// prepare makes the machine of a life one that can leave.
func (m *leaving) prepare(l *life) {
	if l.config.Migration == nil {
		return
	}
	m.departure = departure.New(departure.Options{
		Us: l.us, NextRun: l.nextRun, Controller: vmpb.NewVMControllerClient(l.conn),
		Siblings: l.config.Migration.Siblings, Machine: l.machine, Describe: l.describeHardware,
		Report:    func(news controller.Migration) { l.reportMigration(news) },
		LetGo:     l.disks.LetGo,
		Bandwidth: l.config.Migration.Bandwidth, Timing: l.config.Migration.Departure, Log: l.log,
	})
}

func (m *leaving) close() {
	if m.departure != nil {
		m.departure.Close()
	}
}

func (m *leaving) idle() bool     { return m.departure == nil || m.departure.Idle() }
func (m *leaving) handsOff() bool { return m.departure != nil && m.departure.HandsOff() }

func (m *leaving) results() <-chan departure.Result {
	if m.departure == nil {
		return nil
	}
	return m.departure.Results()
}

// nextRun returns another run of this process.
func (l *life) nextRun() (*vmpb.HypervisorID, error) {
	run, err := runfolder.NextRun(l.config.Paths.Run, time.Now())
	if err != nil {
		return nil, err
	}
	next := proto.CloneOf(l.us)
	next.RunId = run
	return next, nil
}

// describeHardware returns what a target must have, too.
func (l *life) describeHardware() (negotiation.Machine, error) {
	hardware, err := l.guestConfig.Hardware()
	if err != nil {
		return negotiation.Machine{}, err
	}
	sizes, err := l.storage.Sizes()
	if err != nil {
		return negotiation.Machine{}, err
	}
	machine := negotiation.Machine{
		Hardware: hardware, DiskBytes: sizes[0].GetBytes(), SharedDisk: l.storage.Shared(), Served: l.served != nil,
	}
	for _, size := range sizes[1:] {
		machine.DataDisks = append(machine.DataDisks, negotiation.DataDisk{Name: size.GetName(), Bytes: size.GetBytes()})
	}
	return machine, nil
}

// reportMigration reports how far a migration is, and nothing else anew.
func (l *life) reportMigration(news controller.Migration) {
	l.reporter.Update(func(r *controller.Report) { r.Migration = news })
}

// obey does what the run lease says. changed is closed when it says something else; nil is never.
// The error is the end.
func (l *life) obey() (changed <-chan struct{}, err error) {
	if l.lease == nil {
		return nil, nil
	}
	authorization, changed := l.lease.Current()
	if authorization.Expired && !authorization.Terminated {
		return nil, l.expire()
	}
	if authorization.Terminated {
		if l.leaving.departure == nil {
			return nil, l.terminate(errTerminated)
		}
		return changed, l.do(l.leaving.departure.Tell(handover.Terminated))
	}
	if !authorization.Granted {
		return changed, nil
	}
	l.paused = authorization.Paused
	return changed, l.move(authorization.Migrate)
}

// move continues a guest that has waited for its lease, or has the VM leave or stay as the controller wants. The
// error is the end.
func (l *life) move(ordered bool) error {
	switch leaving := &l.leaving; {
	case leaving.departure == nil:
		return nil
	case leaving.departure.Leaseless() && !leaving.ending && !l.served.Somewhere():
		return nil // its disks were cut off with the token of before, and are not open to it again
	case leaving.departure.Leaseless():
		return l.do(leaving.departure.Tell(handover.Leased))
	case ordered == leaving.ordered:
		return nil
	}
	l.leaving.ordered = ordered
	switch {
	case ordered:
		return l.do(l.leaving.departure.Tell(handover.Ordered))
	case !l.leaving.ending:
		return l.do(l.leaving.departure.Tell(handover.Cancelled))
	}
	return nil
}

// leave begins the end that a signal asks for: the VM migrates while that leaves time for a shutdown.
func (l *life) leave() error {
	l.leaving.ending = true
	grace := defaultGrace
	if l.config.Spec.GetGrace() != nil {
		grace = l.config.Spec.GetGrace().AsDuration()
	}
	left := grace - l.config.Timing.Grace - l.config.Timing.Quit - l.config.Timing.Margin
	if l.leaving.departure == nil || left <= 0 {
		return l.leaveNoMore()
	}
	l.log.Info("asked to end; migrating", "within", left)
	l.leaving.late = time.After(left)
	l.leaving.hope = min(left/10, maxHope) // the whole installation may be about to end
	if l.lease != nil && l.lease.Connected() {
		l.leaving.hope = min(left/10, failOver)
	}
	l.leaving.hopeless = time.Now().Add(l.leaving.hope)
	return l.do(l.leaving.departure.Tell(handover.Ordered))
}

// take applies the result of a migration's step. The error is the end.
func (l *life) take(result departure.Result) error {
	if err := l.do(l.leaving.departure.Take(result)); err != nil {
		return err
	}
	if !l.silent() {
		l.leaving.hopeless = time.Now().Add(l.leaving.hope)
	}
	return l.despair()
}

// hurry waits no longer for a controller that does not answer than if it had never answered.
func (m *leaving) hurry() {
	m.hope = min(m.hope, maxHope)
	m.hopeless = time.Now().Add(m.hope)
	m.doubt = time.After(m.hope)
}

// despair gives the migration up that the end of the process has begun if the controller has not answered for too
// long. The error is the end.
func (l *life) despair() error {
	if l.leaving.ending && !l.leaving.shutDown && l.silent() && !time.Now().Before(l.leaving.hopeless) {
		l.log.Warn("the controller does not answer; the guest is shut down instead of migrated")
		l.leaving.why = "The controller did not answer."
		return l.leaveNoMore()
	}
	return nil
}

// silent reports whether the controller is asked for a target, and cannot be reached. One that can be
// has no target yet.
func (l *life) silent() bool {
	return l.leaving.departure.Silent() && (l.lease == nil || !l.lease.Connected())
}

// leaveNoMore lets the guest shut down instead, unless the migration can only succeed any more, or be
// taken back.
func (l *life) leaveNoMore() error {
	l.leaving.shutDown = true
	if l.leaving.departure == nil {
		return nil
	}
	return l.do(l.leaving.departure.Tell(handover.Cancelled))
}

// errMoved is the end of a source whose VM was taken over.
var errMoved = &ending{vmpb.EndTerminated, "the virtual machine has moved to another hypervisor"}

// do does what a migration leaves to do. The error is the end.
func (l *life) do(action handover.SourceAction) error {
	switch action {
	case handover.ShutDown:
		l.leaving.shutDown = l.leaving.ending
	case handover.Kill:
		if l.guestLeft {
			return l.terminate(errMoved)
		}
		return l.terminate(errTerminated)
	case handover.Commit:
		l.guestLeft = true
	case handover.Reclaim:
		l.closeLease()
	case handover.OpenLease:
		return l.regain()
	case handover.Resume:
		return l.resume()
	}
	l.offerGuest()
	return nil
}

// offerGuest serves the guest while it can run here, and only then.
func (l *life) offerGuest() {
	if l.leaving.departure.MayRun() {
		l.server.SetGuest(l.machine)
		return
	}
	l.server.SetGuest(nil)
	l.server.SetServing(false)
}

// closeLease ends the lease of a run that is over. If it expires, the process still ends with it, until
// another run has one.
func (l *life) closeLease() {
	if l.lease == nil {
		return
	}
	l.lease.Close()
	if fullLeases(l.config.Spec) {
		l.deadline = time.After(l.lease.Left())
	}
	l.lease = nil
}

// regain opens the lease of the run that has got the VM back.
func (l *life) regain() error {
	l.us = l.leaving.departure.Run()
	l.reporter.Become(l.us)
	if err := l.openLease(context.Background()); err != nil || fullLeases(l.config.Spec) {
		return err
	}
	return l.do(l.leaving.departure.Tell(handover.Leased))
}

// resume continues a guest that has not arrived elsewhere.
func (l *life) resume() error {
	if err := l.retakeDisks(); err != nil {
		return err
	}
	l.deadline = nil
	l.guestLeft = false
	l.leaving.ordered = false
	l.leaving.shutDown = l.leaving.ending
	l.guest.told = orderNone
	l.offerGuest()
	if err := l.goOn(); err != nil {
		return l.lost(err)
	}
	return nil
}
