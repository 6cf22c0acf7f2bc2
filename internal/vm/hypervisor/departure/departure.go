// Package departure sends a running VM to another hypervisor.
//
// [handover.Source] decides what happens next; this package does it. The owner passes events to
// [Departure.Handle], and the results of the operations in this package to [Departure.Take]. Both return what the
// owner must do: resume the guest, shut it down, or kill the machine.
//
// Only one operation is in progress at a time. A new operation starts when the previous one has returned. The
// result of a canceled operation is ignored.
package departure

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/bulk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/handover"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/negotiation"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Machine is the machine that is sent. It is implemented by *qemu.Process.
type Machine interface {
	Listen(socket qemu.Socket) (net.Listener, error)
	Send(ctx context.Context, to qemu.Destination, progress func(qemu.Progress)) error
	Finish(ctx context.Context, to qemu.Destination) error
	Abandon(ctx context.Context) error
}

// Siblings connects to another hypervisor of the VM. It is implemented by identity.Siblings.
type Siblings interface {
	Dial(endpoint, pod string) (*grpc.ClientConn, error)
	Connect(ctx context.Context, raw net.Conn, pod, protocol string) (*tls.Conn, error)
}

// Options configure a Departure. All fields except ReleaseDisks and Bandwidth are required.
type Options struct {
	// Us is this run of the hypervisor.
	Us *vmpb.HypervisorID
	// NextRun returns a new run of this hypervisor, with a higher number.
	NextRun func() (*vmpb.HypervisorID, error)
	// Controller decides which hypervisor may run the VM.
	Controller vmpb.VMControllerClient
	// Siblings connects to the target.
	Siblings Siblings
	// Machine is the machine to send.
	Machine Machine
	// Describe returns the properties that the target must match.
	Describe func() (negotiation.Machine, error)
	// ReleaseDisks unlocks the disks that both sides use, before the target may ask for the authority. If nil, no
	// disks are shared.
	ReleaseDisks func() error
	// Report is called with the progress. It must not block.
	Report func(controller.Migration)
	// Bandwidth limits each copy, in bytes per second, unless the controller sets another limit. If 0, see
	// qemu.Destination.
	Bandwidth uint64
	// Timing holds the time limits. Zero fields use the defaults.
	Timing Timing
	// Log is the logger.
	Log *slog.Logger
}

// Timing holds the time limits of a source. Zero fields use the defaults.
type Timing struct {
	// Ask is how long the controller may take to name a target. The default is 5 min.
	Ask time.Duration
	// Negotiate is how long the target may take to respond. The default is 30 s.
	Negotiate time.Duration
	// Stall is how long a copy may make no progress. The default is 15 s.
	Stall time.Duration
	// Rest is how long the copy may take after the guest has been stopped. The default is 30 s.
	Rest time.Duration
	// Switchover is the time between the commit and the attempt to reclaim the authority. It must be longer than
	// the time for which the target asks for the authority. The default is 40 s.
	Switchover time.Duration
	// Call is the timeout of one request for the authority, and of the commit. The default is 5 s.
	Call time.Duration
	// Retry is the delay after the first failure; it doubles up to RetryLimit. The default is 1 s.
	Retry time.Duration
	// RetryLimit is the longest delay. The default is 30 s.
	RetryLimit time.Duration
	// Command is how long QEMU may take to cancel a migration. The default is 30 s.
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

// Departure is the source's side of consecutive migrations. It must not be used concurrently. The caller must
// close it.
type Departure struct {
	Options
	source  handover.Source
	results chan Result

	// The following fields describe the operation in progress.
	number int
	cancel func()
	done   chan struct{}

	// unsettled is true if QEMU may still be busy with a canceled migration.
	unsettled bool
	// pause is the delay before the next attempt.
	pause time.Duration
	// unanswered is true if the controller did not respond to the last request for a target.
	unanswered bool

	// leaving is set by Leave; nil before.
	leaving atomic.Pointer[leaving]

	// The following fields belong to the attempt in progress.
	attempt attempt
	// next is the run under which a source reclaims the authority.
	next *vmpb.HypervisorID
}

// leaving contains the arguments of Leave.
type leaving struct{ since, forceAt time.Time }

// attempt is one attempt to migrate.
type attempt struct {
	endpoint, pod string
	limits        *vmpb.MigrationLimits
	agreed        *vmpb.MigrationProtocol_QemuNBD
	sender        *bulk.Sender
	// convergence is that of the copy.
	convergence vmpb.ReportStateRequest_Migration_Convergence
}

// Result is the result of an operation.
type Result struct {
	number  int
	event   handover.SourceEvent // empty if there is no event
	settled bool
	// waited is true if the controller spent a long time waiting for a target. It may then be asked again
	// immediately.
	waited bool

	// Grace is how long after since, the argument of Leave, the process may be killed. It is 0 unless the controller
	// knows that this time is less than VMSpec.grace.
	Grace time.Duration
}

// New returns a departure for a running guest.
func New(options Options) *Departure {
	options.Timing = options.Timing.withDefaults()
	done := make(chan struct{})
	close(done)
	return &Departure{Options: options, results: make(chan Result), cancel: func() {}, done: done}
}

// Results receives the results that the owner must pass to Take.
func (d *Departure) Results() <-chan Result { return d.results }

// Take applies the result of an operation and returns what the owner must do.
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
		d.unanswered = d.source.State() == handover.Asking && result.event == handover.Failed
	}
	return d.apply(result.event)
}

// Handle applies an external event: a request to move, its cancellation, a lease, or the termination of the run.
// It returns what the owner must do.
func (d *Departure) Handle(event handover.SourceEvent) handover.SourceAction {
	if event == handover.Ordered {
		d.pause = 0
	}
	return d.apply(event)
}

// Leave makes this and all later copies continue after their timeout, and stops the guest for the rest of the copy as
// soon as possible from forceAt on. since is when the process was asked to terminate, and it must terminate soon after
// forceAt. Leave may be called again with another forceAt.
func (d *Departure) Leave(since, forceAt time.Time) { d.leaving.Store(&leaving{since, forceAt}) }

// forceAt returns the time from which on the guest is stopped for the rest of a copy; nil if the process need not
// terminate.
func (d *Departure) forceAt() *time.Time {
	if leaving := d.leaving.Load(); leaving != nil {
		return &leaving.forceAt
	}
	return nil
}

// MayRun reports whether the guest may run here.
func (d *Departure) MayRun() bool { return d.source.MayRun() }

// Idle reports whether no migration is in progress or requested, and QEMU is not busy with one.
func (d *Departure) Idle() bool { return d.source.State() == handover.Running && !d.unsettled }

// Unanswered reports whether the controller was asked for a target and did not respond.
func (d *Departure) Unanswered() bool { return d.unanswered && d.source.State() == handover.Asking }

// ControlsQEMU reports whether a migration controls QEMU. The owner must then not stop or continue the guest.
func (d *Departure) ControlsQEMU() bool {
	return d.unsettled || d.source.State() == handover.Copying || !d.source.MayRun()
}

// AwaitsLease reports whether the authority was regained and only a lease is missing.
func (d *Departure) AwaitsLease() bool { return d.source.State() == handover.Regained }

// Run returns the current run of the hypervisor. It changes with OpenLease.
func (d *Departure) Run() *vmpb.HypervisorID { return d.Us }

// Target returns the target of the last attempt.
func (d *Departure) Target() (endpoint, pod string) { return d.attempt.endpoint, d.attempt.pod }

// Close cancels the operation in progress and waits until it has returned. If no commit was sent by then, none
// will be sent.
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
		d.begin(d.retry(d.reclaim, d.Timing.Retry)) // the guest is stopped
	case handover.OpenLease:
		d.Us, d.next = d.next, nil
	case handover.Nothing:
		if from == handover.Asking && d.source.State() == handover.Running {
			d.begin(d.settled(func(context.Context, func(Result)) {})) // cancels the request
		}
	}
}

// settled delays an operation until QEMU has canceled the previous migration. That must not be left to the
// operation that canceled it, which may itself be canceled before it can report.
func (d *Departure) settled(do operation) operation {
	if !d.unsettled {
		return do
	}
	return func(ctx context.Context, emit func(Result)) {
		d.abandon(ctx, emit)
		do(ctx, emit)
	}
}

// operation performs a step and reports its results. It returns soon after its context is canceled.
type operation func(ctx context.Context, emit func(Result))

// begin cancels the operation in progress and then starts another one.
func (d *Departure) begin(do operation) {
	d.cancel()
	d.number++
	number, before, done := d.number, d.done, make(chan struct{})
	// The context is not derived from that of the process, because a migration continues when the process was
	// asked to terminate.
	ctx, cancel := context.WithCancelCause(context.Background())
	d.cancel, d.done = func() { cancel(errCanceled) }, done
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

// retry delays an operation. The delay increases with each call of retry.
func (d *Departure) retry(do operation, limit time.Duration) operation {
	pause := d.pause
	d.pause = min(max(2*pause, d.Timing.Retry), limit)
	return func(ctx context.Context, emit func(Result)) {
		select {
		case <-time.After(pause):
			do(ctx, emit)
		case <-ctx.Done():
		}
	}
}
