package service

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/console"
	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

var (
	errAbsent = status.Error(codes.FailedPrecondition, "the VM is not running here")
	errLeft   = status.Error(codes.Unavailable, "the VM has moved or terminated")
)

// Guest is the part of a machine that the service uses.
type Guest interface {
	// Reset resets the machine.
	Reset(ctx context.Context) error
	// Console returns the serial port.
	Console() *console.Console
	// DialGuest connects to a TCP port of the guest. The text of an error is shown to users.
	DialGuest(ctx context.Context, port uint16) (dialer.Conn, error)
	// DialGuestUDP opens a flow of datagrams to a UDP port of the guest, like dialer.Direct.DialUDP.
	DialGuestUDP(port uint16, receive func(datagram []byte)) (dialer.Flow, error)
	// DialDisplay connects to the VNC server of the display. The text of an error is shown to users.
	DialDisplay(ctx context.Context) (net.Conn, error)
	// Screenshot writes a PNG image of the display. The text of an error is shown to users.
	Screenshot(ctx context.Context, out io.Writer) error
}

// oob implements vmpb.OOBManagementServer.
type oob struct {
	vmpb.UnimplementedOOBManagementServer

	guest atomic.Pointer[Guest]

	// resetting serializes resets, because two attempts of the same reset may be concurrent.
	resetting sync.Mutex
	lastReset uint64

	// viewers is the number of viewers of the display.
	viewers atomic.Int32
	limits  viewerLimits
}

// SetGuest sets the machine to serve, or none if guest is nil. Open consoles stay open.
func (o *oob) SetGuest(guest Guest) {
	if guest == nil {
		o.guest.Store(nil)
		return
	}
	o.guest.Store(&guest)
}

func (o *oob) present() (Guest, error) {
	if guest := o.guest.Load(); guest != nil {
		return *guest, nil
	}
	return nil, errAbsent
}

// DialGuest connects to a TCP port of the guest. It returns an error if the guest does not run in this process, or does
// not accept the connection within five seconds.
func (o *oob) DialGuest(ctx context.Context, port uint16) (dialer.Conn, error) {
	guest, err := o.present()
	if err != nil {
		return nil, err
	}
	return dialGuest(ctx, guest, uint32(port))
}

// DialGuestUDP opens a flow of datagrams to a UDP port of the guest, like dialer.Direct.DialUDP. It returns an error if the
// guest does not run in this process.
func (o *oob) DialGuestUDP(port uint16, receive func(datagram []byte)) (dialer.Flow, error) {
	guest, err := o.present()
	if err != nil {
		return nil, err
	}
	return guest.DialGuestUDP(port, receive)
}

// Reset implements vmpb.OOBManagementServer.
func (o *oob) Reset(ctx context.Context, request *vmpb.ResetRequest) (*vmpb.ResetResponse, error) {
	o.resetting.Lock()
	defer o.resetting.Unlock()
	guest, err := o.present()
	if err != nil {
		return nil, err
	}
	number := request.GetIdempotencyCounter()
	if number != 0 && number == o.lastReset {
		return &vmpb.ResetResponse{}, nil
	}
	if err := guest.Reset(ctx); err != nil {
		return nil, status.Errorf(codes.Unavailable, "resetting the VM: %v", err)
	}
	if number != 0 {
		o.lastReset = number
	}
	return &vmpb.ResetResponse{}, nil
}

// Console implements vmpb.OOBManagementServer. It sends output and receives input. It disconnects a client that is
// too slow, even while the output to this client is blocked.
func (o *oob) Console(stream grpc.BidiStreamingServer[vmpb.ConsoleIO, vmpb.ConsoleIO]) error {
	guest, err := o.present()
	if err != nil {
		return err
	}
	client := attach(stream.Context(), guest.Console())
	defer client.Close()
	// Send the header immediately, so that the caller knows that it is connected even if the guest writes nothing.
	if err := stream.SendHeader(metadata.Pairs(vmpb.MetadataReplay, strconv.Itoa(client.Replay()))); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()

	input, output := make(chan error, 1), make(chan error, 1)
	go func() { input <- receive(ctx, stream, client) }()
	go func() { output <- send(ctx, stream, client) }()
	ended := client.Ended()
	for {
		select {
		case err := <-output:
			return err
		case err := <-input:
			if err != nil {
				return err
			}
			input = nil // the output continues
		case <-ended:
			if client.Slow() {
				return errSlow
			}
			ended = nil // the last output is being sent
		}
	}
}

// attach adds a client. It includes the earlier output, unless the client declines it.
func attach(ctx context.Context, port *console.Console) *console.Client {
	if replay := metadata.ValueFromIncomingContext(ctx, vmpb.MetadataReplay); len(replay) > 0 && replay[0] == vmpb.ReplayNone {
		return port.AttachNow()
	}
	return port.Attach()
}

var errSlow = status.Error(codes.ResourceExhausted, console.ErrSlowClient.Error())

// receive forwards input. It returns nil when the client has closed its side.
func receive(ctx context.Context, stream grpc.BidiStreamingServer[vmpb.ConsoleIO, vmpb.ConsoleIO], client *console.Client) error {
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		err = client.Write(ctx, message.GetData())
		if errors.Is(err, console.ErrEnded) {
			return nil // send returns the error after the last output
		}
		if err != nil {
			return consoleError(err)
		}
	}
}

// send forwards output until there is no more.
func send(ctx context.Context, stream grpc.BidiStreamingServer[vmpb.ConsoleIO, vmpb.ConsoleIO], client *console.Client) error {
	for {
		output, err := client.Next(ctx)
		if err != nil {
			return consoleError(err)
		}
		if err := stream.Send(&vmpb.ConsoleIO{Data: output}); err != nil {
			return err
		}
	}
}

func consoleError(err error) error {
	switch {
	case errors.Is(err, console.ErrSlowClient):
		return errSlow
	case errors.Is(err, io.EOF), errors.Is(err, console.ErrEnded):
		return errLeft
	default:
		return status.FromContextError(err).Err()
	}
}

// Incoming is the migration that this hypervisor is waiting for.
type Incoming interface {
	StartMigration(ctx context.Context, request *vmpb.StartMigrationRequest) (*vmpb.StartMigrationResponse, error)
}

// migration implements vmpb.HypervisorServer.
type migration struct {
	vmpb.UnimplementedHypervisorServer

	incoming atomic.Pointer[Incoming]
	moved    atomic.Pointer[Moved]
}

// Moved continues the connections of the former hypervisor to a guest that has moved here. It is implemented by
// *moved.Receiver.
type Moved interface {
	// CarryConnections implements vmpb.HypervisorServer.
	CarryConnections(stream grpc.BidiStreamingServer[vmpb.GuestPacket, vmpb.GuestPacket]) error
}

// SetMoved sets the connections of the former hypervisor.
func (m *migration) SetMoved(moved Moved) { m.moved.Store(&moved) }

// CarryConnections implements vmpb.HypervisorServer.
func (m *migration) CarryConnections(stream grpc.BidiStreamingServer[vmpb.GuestPacket, vmpb.GuestPacket]) error {
	if moved := m.moved.Load(); moved != nil {
		return (*moved).CarryConnections(stream)
	}
	if m.incoming.Load() != nil {
		return status.Error(codes.FailedPrecondition, "this hypervisor is waiting for the guest")
	}
	return status.Error(codes.NotFound, "this hypervisor has no connections of another one")
}

// SetIncoming sets the migration that this hypervisor is waiting for, or none if incoming is nil.
func (m *migration) SetIncoming(incoming Incoming) {
	if incoming == nil {
		m.incoming.Store(nil)
		return
	}
	m.incoming.Store(&incoming)
}

// StartMigration implements vmpb.HypervisorServer.
func (m *migration) StartMigration(ctx context.Context, request *vmpb.StartMigrationRequest) (*vmpb.StartMigrationResponse, error) {
	if incoming := m.incoming.Load(); incoming != nil {
		return (*incoming).StartMigration(ctx, request)
	}
	return nil, status.Error(codes.FailedPrecondition, "this hypervisor is not waiting for a migration")
}
