// Package arrival receives a VM from another hypervisor.
//
// [handover.Target] decides what happens next; this package does it. It starts the machine when the source calls
// StartMigration. It asks for the authority once QEMU has loaded the state and the source has committed. The guest
// does not run until the controller has responded with OK and this hypervisor has a lease.
package arrival

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/bulk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/handover"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/negotiation"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Machine is the machine that receives the VM. It is implemented by *qemu.Process.
type Machine interface {
	Receive(ctx context.Context, exports []qemu.Export) error
	Received(ctx context.Context) error
	CloseExports(ctx context.Context) error
	Dial(ctx context.Context, socket qemu.Socket) (net.Conn, error)
	Done() <-chan struct{}
	Exit() qemu.Exit
}

// Siblings authenticates the other hypervisors of the VM. It is implemented by identity.Siblings.
type Siblings interface {
	Caller(ctx context.Context) (pod string, err error)
	Accept(ctx context.Context, raw net.Conn, pod, protocol string) (*tls.Conn, error)
}

// Options configure an Arrival. All fields except Source, TakeDisks and Lease are required.
type Options struct {
	// Us is this run of the hypervisor.
	Us *vmpb.HypervisorID
	// Source is the only Pod that may call. If empty, every other Pod of the VM may call.
	Source string
	// Controller decides which hypervisor may run the VM.
	Controller vmpb.VMControllerClient
	// Siblings authenticates the caller.
	Siblings Siblings
	// Describe returns the properties that the source must match.
	Describe func() (negotiation.Machine, error)
	// Start starts a machine that waits for a state, with empty disks of these sizes. The list is empty if both
	// sides share the disks. The caller of Run owns the machine, even if Run returns an error.
	Start func(ctx context.Context, disks []*vmpb.DiskSize) (Machine, error)
	// TakeDisks locks disks that both sides share, after the source has released them. This hypervisor asks for
	// the authority only once it holds the locks. If nil, no disks are shared.
	TakeDisks func(ctx context.Context, from *vmpb.HypervisorID) error
	// Lease waits until this hypervisor has a lease. It is called once the hypervisor is authoritative. An error
	// terminates the guest, because no other hypervisor has it. If nil, leases do not expire.
	Lease func(ctx context.Context) error
	// Timing holds the time limits. Zero fields use the defaults.
	Timing Timing
	// Log is the logger.
	Log *slog.Logger
}

// Timing holds the time limits of a target. Zero fields use the defaults.
type Timing struct {
	// Call is how long to wait for StartMigration. The default is 5 min.
	Call time.Duration
	// Connect is how long the source may take to connect after its call. The default is 30 s.
	Connect time.Duration
	// Switchover is how long to keep asking for the authority. The default is 30 s.
	Switchover time.Duration
	// Ask is the timeout of one request for the authority. The default is 5 s.
	Ask time.Duration
	// Retry is the delay between two requests. The default is 200 ms.
	Retry time.Duration
	// Command is how long QEMU may take to start or to execute a command. The default is 30 s.
	Command time.Duration
}

func (t Timing) withDefaults() Timing {
	t.Call = cmp.Or(t.Call, 5*time.Minute)
	t.Connect = cmp.Or(t.Connect, 30*time.Second)
	t.Switchover = cmp.Or(t.Switchover, 30*time.Second)
	t.Ask = cmp.Or(t.Ask, 5*time.Second)
	t.Retry = cmp.Or(t.Retry, 200*time.Millisecond)
	t.Command = cmp.Or(t.Command, 30*time.Second)
	return t
}

// ErrNotArrived is wrapped by the errors of Run if the guest has not run here and must not run here.
var ErrNotArrived = errors.New("the virtual machine was not received")

// disksOf returns the disks that are copied. The root disk comes first.
func disksOf(chosen *vmpb.MigrationProtocol_QemuNBD) []*vmpb.DiskSize {
	if !chosen.GetConstraintWithBlockmigration() {
		return nil
	}
	return append([]*vmpb.DiskSize{{Bytes: chosen.GetConstraintDiskBytes()}}, chosen.GetConstraintDataDisks()...)
}

// exportsOf returns the exports that receive the disks. Only clients with the source's certificate can reach them.
func exportsOf(disks []*vmpb.DiskSize) []qemu.Export {
	var exports []qemu.Export
	for _, disk := range disks {
		name := "root"
		if disk.GetName() != "" {
			name = "data-" + disk.GetName()
		}
		exports = append(exports, qemu.Export{Serial: disk.GetName(), Name: name})
	}
	return exports
}

// Arrival is the target's side of one migration.
type Arrival struct {
	Options
	calls chan call
	over  chan struct{} // closed when calls are no longer accepted

	target   handover.Target
	machine  Machine
	receiver *bulk.Receiver
	them     *vmpb.HypervisorID
	response *vmpb.StartMigrationResponse
}

// call is a call of StartMigration that waits for a response.
type call struct {
	request *vmpb.StartMigrationRequest
	local   string // the local address that the caller connected to
	reply   chan<- reply
}

type reply struct {
	response *vmpb.StartMigrationResponse
	err      error
}

// New returns an arrival that waits for its source once Run is called.
func New(options Options) *Arrival {
	options.Timing = options.Timing.withDefaults()
	return &Arrival{Options: options, calls: make(chan call), over: make(chan struct{})}
}

var errBusy = status.Error(codes.FailedPrecondition, "this hypervisor is not waiting for this migration")

// Run receives the VM. If it returns nil, the guest may run here but has not been continued yet. Errors:
// ErrNotArrived, the context's cause, or the error of Lease.
func (a *Arrival) Run(ctx context.Context) error {
	defer close(a.over)
	defer func() {
		if a.receiver != nil {
			a.receiver.Close()
		}
	}()
	for _, step := range []func(context.Context) error{a.awaitCall, a.awaitState, a.switchOver, a.awaitLease} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// From returns the source, once Run has returned nil.
func (a *Arrival) From() *vmpb.HypervisorID { return a.them }

// take applies an event and logs the transition.
func (a *Arrival) take(event handover.TargetEvent) handover.TargetAction {
	from := a.target.State()
	action := a.target.Take(event)
	a.Log.Info("migration", "event", event, "from", from, "to", a.target.State(), "action", action)
	return action
}

// exit returns ErrNotArrived with the reason. There is no guest to run.
func (a *Arrival) exit(event handover.TargetEvent, reason error) error {
	a.take(event)
	return fmt.Errorf("%w: %w", ErrNotArrived, reason)
}

// ended returns the context's cause, because the process must terminate.
func (a *Arrival) ended(ctx context.Context) error {
	a.take(handover.Ended)
	return context.Cause(ctx)
}

// awaitCall waits until a call is accepted.
func (a *Arrival) awaitCall(ctx context.Context) error {
	late := time.After(a.Timing.Call)
	for {
		select {
		case call := <-a.calls:
			if done, err := a.first(ctx, call); done || err != nil {
				return err
			}
		case <-late:
			return a.exit(handover.WaitedTooLong, errors.New("the source has not called"))
		case <-ctx.Done():
			return a.ended(ctx)
		}
	}
}

// first responds to a call. It returns true if the caller will send the VM.
func (a *Arrival) first(ctx context.Context, c call) (bool, error) {
	chosen, err := a.choose(c.request)
	if err != nil {
		c.reply <- reply{err: err} // a later call may still be accepted
		return false, nil
	}
	if a.take(handover.Called) != handover.Listen {
		c.reply <- reply{err: errBusy}
		return false, nil
	}
	if err := a.listen(ctx, chosen, c); err != nil {
		a.Log.Warn("cannot receive the VM", "error", err)
		c.reply <- reply{err: status.Errorf(codes.Unavailable, "preparing to receive the VM: %v", err)}
		return false, a.exit(handover.Broken, err)
	}
	a.them = c.request.GetUs()
	a.response = &vmpb.StartMigrationResponse{MigrationProtocol: &vmpb.MigrationProtocol{
		Kind: &vmpb.MigrationProtocol_QemuNbd{QemuNbd: chosen},
	}}
	c.reply <- reply{response: a.response}
	return true, nil
}

func (a *Arrival) choose(request *vmpb.StartMigrationRequest) (*vmpb.MigrationProtocol_QemuNBD, error) {
	machine, err := a.Describe()
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "describing the machine: %v", err)
	}
	chosen, err := negotiation.Choose(request.GetSupportedMigrationProtocol(), machine)
	if err != nil {
		return nil, err
	}
	return chosen.GetQemuNbd(), nil
}

// listen starts the machine and adds its addresses to the protocol.
func (a *Arrival) listen(ctx context.Context, chosen *vmpb.MigrationProtocol_QemuNBD, c call) error {
	ctx, cancel := context.WithTimeout(ctx, a.Timing.Command)
	defer cancel()
	disks := disksOf(chosen)
	machine, err := a.Start(ctx, disks)
	if err != nil {
		return err
	}
	a.machine = machine
	exports := exportsOf(disks)
	dial := map[bulk.Channel]bulk.Dial{bulk.Memory: a.dial(qemu.MemorySocket)}
	if len(exports) > 0 {
		dial[bulk.Disk] = a.dial(qemu.DiskSocket)
	}
	if err := machine.Receive(ctx, exports); err != nil {
		return err
	}
	pod := c.request.GetUs().GetPodName()
	a.receiver, err = bulk.Listen(c.local, func(ctx context.Context, raw net.Conn, channel bulk.Channel) (*tls.Conn, error) {
		return a.Siblings.Accept(ctx, raw, pod, string(channel))
	}, dial)
	if err != nil {
		return err
	}
	chosen.NegotiatedEndpoint = "tcp:" + a.receiver.Address(bulk.Memory)
	for _, export := range exports {
		if export.Serial == "" {
			chosen.NegotiatedNbdEndpoint, chosen.NegotiatedExport = a.receiver.Address(bulk.Disk), export.Name
		} else {
			chosen.NegotiatedDataExports = append(chosen.NegotiatedDataExports, export.Name)
		}
	}
	return nil
}

func (a *Arrival) dial(socket qemu.Socket) bulk.Dial {
	return func(ctx context.Context) (net.Conn, error) { return a.machine.Dial(ctx, socket) }
}

// awaitState waits until QEMU has loaded the whole state and the source has committed.
func (a *Arrival) awaitState(ctx context.Context) error {
	loading, cancel := context.WithCancel(ctx)
	defer cancel()
	loaded := make(chan error, 1)
	go func() { loaded <- a.machine.Received(loading) }()
	committed := a.receiver.End()
	late := time.After(a.Timing.Connect)
	for loaded != nil || committed != nil {
		var err error
		select {
		case c := <-a.calls:
			c.reply <- a.again(c)
		case err = <-loaded:
			loaded = nil
		case err = <-committed:
			committed = nil
		case <-a.machine.Done():
			err = fmt.Errorf("QEMU exited: %s", a.machine.Exit())
		case <-late:
			if !a.receiver.Begun() {
				return a.exit(handover.WaitedTooLong, errors.New("the source has not connected"))
			}
		case <-ctx.Done():
			return a.ended(ctx)
		}
		if err != nil {
			return a.exit(handover.Broken, err)
		}
	}
	return a.complete(ctx)
}

// again responds to calls after the first one.
func (a *Arrival) again(c call) reply {
	if !proto.Equal(c.request.GetUs(), a.them) || a.receiver.Begun() {
		return reply{err: errBusy}
	}
	return reply{response: a.response}
}

// complete stops accepting data from the source.
func (a *Arrival) complete(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.Timing.Command)
	defer cancel()
	var err error
	switch copied := a.response.GetMigrationProtocol().GetQemuNbd().GetConstraintWithBlockmigration(); {
	case copied:
		err = a.machine.CloseExports(ctx)
	case a.TakeDisks != nil:
		err = a.TakeDisks(ctx, a.them)
	}
	if err != nil {
		return a.exit(handover.Broken, err)
	}
	a.take(handover.Received)
	return nil
}

// switchOver asks for the authority until the controller responds.
func (a *Arrival) switchOver(ctx context.Context) error {
	late := time.After(a.Timing.Switchover)
	for {
		event := a.ask(ctx)
		switch a.take(event) {
		case handover.AwaitLease:
			return nil
		case handover.Exit:
			return fmt.Errorf("%w: the controller has authorized another hypervisor", ErrNotArrived)
		}
		select {
		case <-time.After(a.Timing.Retry):
		case <-late:
			return a.exit(handover.WaitedTooLong, errors.New("the controller has not responded"))
		case <-a.machine.Done():
			return a.exit(handover.WaitedTooLong, fmt.Errorf("QEMU exited: %s", a.machine.Exit()))
		case <-ctx.Done():
			return a.ended(ctx)
		}
	}
}

// awaitLease waits until the guest may run.
func (a *Arrival) awaitLease(ctx context.Context) error {
	if a.Lease != nil {
		if err := a.Lease(ctx); err != nil {
			a.take(handover.Ended)
			return err
		}
	}
	a.take(handover.GotLease)
	return nil
}

// ask asks for the authority once. Any other status counts as no response, because the controller may have
// switched over.
func (a *Arrival) ask(ctx context.Context) handover.TargetEvent {
	ctx, cancel := context.WithTimeout(ctx, a.Timing.Ask)
	defer cancel()
	_, err := a.Controller.MigrationSwitchover(ctx, &vmpb.MigrationSwitchoverRequest{Us: a.Us, Them: a.them})
	switch status.Code(err) {
	case codes.OK:
		return handover.SwitchedOver
	case codes.FailedPrecondition:
		return handover.Refused
	default:
		a.Log.Warn("cannot determine whether the authority was granted", "error", err)
		return handover.Unanswered
	}
}
