// Package departure sends a running VM to another hypervisor.
//
// What happens next is decided by [handover.Source]; this package does it. Its owner passes
// on what it learns from others by [Departure.Tell], and the results of what this package does by
// [Departure.Take]. Both return what is left for the owner: to resume the guest, to shut it
// down, or to kill the machine.
//
// One operation is under way at a time. A new one begins when the one before it has ended, and
// the result of one that is not wanted any more changes nothing.
package departure

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/bulk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/handover"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/negotiation"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Machine is the machine that leaves: a *qemu.Process.
type Machine interface {
	Listen(socket qemu.Socket) (net.Listener, error)
	Send(ctx context.Context, to qemu.Destination, progress func(qemu.Progress)) error
	Finish(ctx context.Context, to qemu.Destination) error
	Abandon(ctx context.Context) error
}

// Siblings connects to another hypervisor of the VM: an identity.Siblings.
type Siblings interface {
	Dial(endpoint, pod string) (*grpc.ClientConn, error)
	Connect(ctx context.Context, raw net.Conn, pod, protocol string) (*tls.Conn, error)
}

// Options configure a Departure. All fields but LetGo and Bandwidth are required.
type Options struct {
	// Us is this run of the hypervisor.
	Us *vmpb.HypervisorID
	// NextRun returns another run of it, with a higher number.
	NextRun func() (*vmpb.HypervisorID, error)
	// Controller decides who may run the VM.
	Controller vmpb.VMControllerClient
	// Siblings connects to the target.
	Siblings Siblings
	// Machine is what leaves.
	Machine Machine
	// Describe returns what the target must have, too.
	Describe func() (negotiation.Machine, error)
	// LetGo lets disks go that both sides have, before the target may ask for the authority. Nil: there are none.
	LetGo func() error
	// Report is called with news. It does not block.
	Report func(controller.Migration)
	// Bandwidth is the limit of each copy in bytes per second. 0: see qemu.Destination.
	Bandwidth uint64
	// Timing are the time limits. Zero: all defaults.
	Timing Timing
	// Log is the logger.
	Log *slog.Logger
}

// Timing are the time limits of a source. A zero field is the default.
type Timing struct {
	// Ask is how long the controller may take to name a target. Default: 5 min.
	Ask time.Duration
	// Negotiate is how long the target may take to answer. Default: 30 s.
	Negotiate time.Duration
	// Stall is how long a copy may make no progress. Default: 15 s.
	Stall time.Duration
	// Rest is how long the copy may take after the guest was stopped. Default: 30 s.
	Rest time.Duration
	// Switchover is how long after the commit the authority is asked back. It must be longer than
	// the target asks for it. Default: 40 s.
	Switchover time.Duration
	// Call is the limit of one request for the authority, and of the commit. Default: 5 s.
	Call time.Duration
	// Retry is the pause after a first failure; it doubles up to RetryLimit. Default: 1 s.
	Retry time.Duration
	// RetryLimit is the longest pause. Default: 30 s.
	RetryLimit time.Duration
	// Command is how long QEMU may take to give a migration up. Default: 30 s.
	Command time.Duration
}

func (t Timing) withDefaults() Timing {
	t.Ask = cmp.Or(t.Ask, 5*time.Minute)
	t.Negotiate = cmp.Or(t.Negotiate, 30*time.Second)
	t.Stall = cmp.Or(t.Stall, 15*time.Second)
	t.Rest = cmp.Or(t.Rest, 30*time.Second)
	t.Switchover = cmp.Or(t.Switchover, 40*time.Second)
	t.Call = cmp.Or(t.Call, 5*time.Second)
	t.Retry = cmp.Or(t.Retry, time.Second)
	t.RetryLimit = cmp.Or(t.RetryLimit, 30*time.Second)
	t.Command = cmp.Or(t.Command, 30*time.Second)
	return t
}

// Departure is the source's side of migrations, one after the other. It is used by one goroutine, and
// must be closed.
type Departure struct {
	Options
	source  handover.Source
	results chan Result

	// The operation under way.
	number int
	cancel func()
	done   chan struct{}

	// unsettled is whether QEMU may still do something of a migration that was given up.
	unsettled bool
	// pause is that before the next attempt.
	pause time.Duration
	// silent is whether the controller has not answered the last question for a target.
	silent bool

	// What follows belongs to the operation under way.
	attempt attempt
	// next is the run that a source takes to get the authority back.
	next *vmpb.HypervisorID
}

// attempt is one attempt to migrate.
type attempt struct {
	endpoint, pod string
	agreed        *vmpb.MigrationProtocol_QemuNBD
	sender        *bulk.Sender
}

// Result is that of an operation.
type Result struct {
	number  int
	event   handover.SourceEvent // empty: none
	settled bool
	// waited is whether the controller has waited for a target for long: it may be asked again at once.
	waited bool
}

// New returns a departure whose guest runs.
func New(options Options) *Departure {
	options.Timing = options.Timing.withDefaults()
	done := make(chan struct{})
	close(done)
	return &Departure{Options: options, results: make(chan Result), cancel: func() {}, done: done}
}

// Results receives what is to be passed to Take.
func (d *Departure) Results() <-chan Result { return d.results }

// Take applies a result.
func (d *Departure) Take(result Result) handover.SourceAction {
	if result.number != d.number {
		return handover.Nothing
	}
	if result.settled {
		d.unsettled = false
	}
	if result.waited {
		d.pause = 0
	}
	if result.event != "" {
		d.silent = d.source.State() == handover.Asking && result.event == handover.Failed
	}
	return d.apply(result.event)
}

// Tell applies an event of others: an order, its end, or the end of the run.
func (d *Departure) Tell(event handover.SourceEvent) handover.SourceAction {
	if event == handover.Ordered {
		d.pause = 0
	}
	return d.apply(event)
}

// MayRun reports whether the guest may run here.
func (d *Departure) MayRun() bool { return d.source.MayRun() }

// Idle reports whether no migration is under way or wanted, and QEMU does nothing for one.
func (d *Departure) Idle() bool { return d.source.State() == handover.Running && !d.unsettled }

// Silent reports whether the controller is asked for a target, and does not answer.
func (d *Departure) Silent() bool { return d.silent && d.source.State() == handover.Asking }

// HandsOff reports whether nobody else may tell QEMU to stop or continue the guest.
func (d *Departure) HandsOff() bool {
	return d.unsettled || d.source.State() == handover.Copying || !d.source.MayRun()
}

// Leaseless reports whether the VM was got back, and nothing is missing but a lease.
func (d *Departure) Leaseless() bool { return d.source.State() == handover.Regained }

// Run returns the run of the hypervisor, another one after OpenLease.
func (d *Departure) Run() *vmpb.HypervisorID { return d.Us }

// Close ends what is under way, and waits for that. A target that has no commit by then gets none.
func (d *Departure) Close() {
	d.cancel()
	<-d.done
	d.attempt.close()
}

func (d *Departure) apply(event handover.SourceEvent) handover.SourceAction {
	from := d.source.State()
	action := d.source.Take(event)
	if event != "" {
		d.Log.Info("migration", "event", event, "from", from, "to", d.source.State(), "action", action)
	}
	d.act(from, action)
	return action
}

func (d *Departure) act(from handover.SourceState, action handover.SourceAction) {
	switch action {
	case handover.Ask:
		d.begin(d.settled(d.retry(d.ask, d.Timing.RetryLimit)))
	case handover.Negotiate:
		d.begin(d.negotiate)
	case handover.Copy:
		d.begin(d.copy)
	case handover.Abandon:
		d.unsettled = true
		d.begin(d.abandon)
	case handover.AbandonAndAsk:
		d.unsettled = true
		d.begin(d.settled(d.retry(d.ask, d.Timing.RetryLimit)))
	case handover.Commit:
		d.pause = 0
		d.begin(d.commit)
	case handover.Reclaim:
		d.begin(d.retry(d.reclaim, d.Timing.Retry)) // the guest stands still
	case handover.OpenLease:
		d.Us, d.next = d.next, nil
	case handover.Nothing:
		if from == handover.Asking && d.source.State() == handover.Running {
			d.begin(d.settled(func(context.Context, func(Result)) {})) // ends the request
		}
	}
}

// settled does an operation when QEMU does nothing more of a migration that was given up. The operation that was to see to that
// may have been ended before it could tell.
func (d *Departure) settled(do operation) operation {
	if !d.unsettled {
		return do
	}
	return func(ctx context.Context, tell func(Result)) {
		d.abandon(ctx, tell)
		do(ctx, tell)
	}
}

// operation does something, and tells its results. It returns soon after its context has ended.
type operation func(ctx context.Context, tell func(Result))

// begin ends the operation under way, and begins another one after it.
func (d *Departure) begin(do operation) {
	d.cancel()
	d.number++
	number, before, done := d.number, d.done, make(chan struct{})
	// Of its own: a migration goes on when the process was asked to end.
	ctx, cancel := context.WithCancelCause(context.Background())
	d.cancel, d.done = func() { cancel(errUnwanted) }, done
	go func() {
		defer close(done)
		<-before
		do(ctx, func(result Result) {
			result.number = number
			select {
			case d.results <- result:
			case <-ctx.Done():
			}
		})
	}()
}

// retry does an operation after a pause that grows with each call of retry.
func (d *Departure) retry(do operation, limit time.Duration) operation {
	pause := d.pause
	d.pause = min(max(2*pause, d.Timing.Retry), limit)
	return func(ctx context.Context, tell func(Result)) {
		select {
		case <-time.After(pause):
			do(ctx, tell)
		case <-ctx.Done():
		}
	}
}
