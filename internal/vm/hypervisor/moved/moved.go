// Package moved continues the connections of clients to a guest that has moved to another hypervisor.
//
// The clients stay connected to the former hypervisor, and so do new ones until all hosts know the new one. Their
// connections to the guest also stay at the former hypervisor. Only the packets of these connections travel between both
// hypervisors: see vmpb.Hypervisor.CarryConnections.
package moved

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// retryAfter is the time between two calls of a hypervisor that is waiting for the guest.
const retryAfter = 20 * time.Millisecond

// Carrier is the side of the former hypervisor.
type Carrier struct {
	cancel  context.CancelFunc
	ready   chan struct{}
	done    chan struct{}
	stream  grpc.BidiStreamingClient[vmpb.GuestPacket, vmpb.GuestPacket] // set before ready is closed
	sending sync.Mutex
}

// Carry keeps the connections to a guest that has just moved to the hypervisor that dial connects to. It does not block.
// It returns nil if the connections are already broken. The caller must close the result.
func Carry(dial func() (*grpc.ClientConn, error), direct *dialer.Direct, log *slog.Logger) *Carrier {
	ctx, cancel := context.WithCancel(context.Background())
	c := &Carrier{cancel: cancel, ready: make(chan struct{}), done: make(chan struct{})}
	if !direct.Move(ctx, func(packet []byte) error { return c.send(ctx, packet) }) {
		cancel()
		return nil
	}
	go func() {
		defer close(c.done)
		defer cancel()
		err := c.run(ctx, dial, direct)
		if ctx.Err() == nil {
			log.Info("the connections of clients ended, because the guest's hypervisor does not carry them", "error", err)
		}
	}()
	return c
}

// Ready is closed when packets reach the guest.
func (c *Carrier) Ready() <-chan struct{} { return c.ready }

// Done is closed when all connections are broken, because packets no longer reach the guest.
func (c *Carrier) Done() <-chan struct{} { return c.done }

// Close closes all connections.
func (c *Carrier) Close() {
	c.cancel()
	<-c.done
}

// run carries packets until an error.
func (c *Carrier) run(ctx context.Context, dial func() (*grpc.ClientConn, error), direct *dialer.Direct) error {
	conn, err := dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if c.stream, err = open(ctx, vmpb.NewHypervisorClient(conn)); err != nil {
		return err
	}
	close(c.ready)
	for {
		message, err := c.stream.Recv()
		if err != nil {
			return err
		}
		direct.Deliver(message.GetPacket())
	}
}

// open calls the other hypervisor until it has the guest.
func open(ctx context.Context, to vmpb.HypervisorClient) (grpc.BidiStreamingClient[vmpb.GuestPacket, vmpb.GuestPacket], error) {
	for {
		stream, err := to.CarryConnections(ctx)
		if err != nil {
			return nil, err
		}
		header, err := stream.Header()
		if err == nil && header != nil {
			return stream, nil
		}
		if _, err = stream.Recv(); status.Code(err) != codes.FailedPrecondition {
			return nil, err
		}
		select {
		case <-time.After(retryAfter):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// send sends a packet to the guest as soon as that is possible.
func (c *Carrier) send(ctx context.Context, packet []byte) error {
	select {
	case <-c.ready:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	return c.stream.Send(&vmpb.GuestPacket{Packet: packet})
}
