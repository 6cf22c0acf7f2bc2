package moved

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// callLimit is how long the former hypervisor may take to call.
const callLimit = time.Minute

// Receiver is the side of the hypervisor that has received the guest.
type Receiver struct {
	// former is the Pod of the former hypervisor, and caller returns the Pod of a caller.
	former string
	caller func(context.Context) (pod string, err error)

	adopted *dialer.Adopted
	late    *time.Timer
	taken   atomic.Bool
}

// Ports are TCP and UDP ports of the guest.
type Ports struct{ TCP, UDP []uint16 }

// Receive lets the hypervisor in a Pod, from which the guest comes, continue its connections to the ports of the guest.
// The guest must not run here yet. caller is Siblings.Caller.
func Receive(direct *dialer.Direct, ports Ports, former string, caller func(context.Context) (string, error)) *Receiver {
	r := &Receiver{former: former, caller: caller, adopted: direct.Adopt(ports.TCP, ports.UDP)}
	r.late = time.AfterFunc(callLimit, r.giveUp)
	return r
}

// giveUp gives up the connections, unless the former hypervisor has called.
func (r *Receiver) giveUp() {
	if r.take() {
		r.adopted.Close()
	}
}

// take returns true once, for the call or for giveUp.
func (r *Receiver) take() bool { return !r.taken.Swap(true) }

// CarryConnections implements service.Moved.
func (r *Receiver) CarryConnections(stream grpc.BidiStreamingServer[vmpb.GuestPacket, vmpb.GuestPacket]) error {
	pod, err := r.caller(stream.Context())
	if err != nil {
		return err
	}
	if pod != r.former || !r.take() {
		return status.Errorf(codes.NotFound, "this hypervisor has no connections of %s", pod)
	}
	r.late.Stop()
	defer r.adopted.Close()
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.accept(stream)
	}()
	for {
		select {
		case packet := <-r.adopted.Packets():
			if err := stream.Send(&vmpb.GuestPacket{Packet: packet}); err != nil {
				return err
			}
		case <-r.adopted.Done():
			return status.Error(codes.Unavailable, "the VM has moved or terminated")
		case <-ended:
			return nil
		}
	}
}

// accept sends packets of the former hypervisor to the guest.
func (r *Receiver) accept(stream grpc.BidiStreamingServer[vmpb.GuestPacket, vmpb.GuestPacket]) {
	for {
		message, err := stream.Recv()
		if err != nil || r.adopted.Send(message.GetPacket()) != nil {
			return
		}
	}
}
