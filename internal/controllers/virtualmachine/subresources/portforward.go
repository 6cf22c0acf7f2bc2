package subresources

import (
	"context"
	"errors"
	"io"
	"strconv"

	"github.com/gorilla/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	api "github.com/millwright-dev/millwright/api/vm/subresources"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// portForward connects a WebSocket to a TCP port of the guest. The hypervisor connects, and can reach only its guest.
func (s *Server) portForward(c call) error {
	port, err := strconv.ParseUint(c.r.URL.Query().Get(api.PortParameter), 10, 16)
	if err != nil || port == 0 {
		return badRequest("%s: must be a port number between 1 and 65535", api.PortParameter)
	}
	if c.dryRun {
		return s.try(c, "ports of virtual machine "+c.vm.Name+" can be forwarded (server dry run)")
	}
	if !websocket.IsWebSocketUpgrade(c.r) {
		return badRequest("port forwarding requires a WebSocket connection with subprotocol %s", api.PortForwardProtocol)
	}
	open := func(ctx context.Context, vm vmpb.OOBManagementClient) (grpc.BidiStreamingClient[vmpb.ForwardIO, vmpb.ForwardIO], error) {
		stream, err := vm.Forward(ctx)
		if err == nil {
			_ = stream.Send(&vmpb.ForwardIO{Port: uint32(port)}) // Recv returns the error
		}
		return stream, err
	}
	return withStream(s, c, "portforward", open, func(ctx context.Context, stream grpc.BidiStreamingClient[vmpb.ForwardIO, vmpb.ForwardIO], _ metadata.MD) error {
		// As with any TCP connection, a client that does not read delays only its own connection.
		const noTimeout = 0
		c.connect(ctx, upgraderFor("portforward", api.PortForwardProtocol), noTimeout, func(data []byte) error {
			if len(data) == 0 {
				return stream.CloseSend()
			}
			err := stream.Send(&vmpb.ForwardIO{Data: data})
			if errors.Is(err, io.EOF) {
				return nil // the guest has closed the connection; the client still gets its last data
			}
			return err
		}, func() ([]byte, error) {
			piece, err := stream.Recv()
			return piece.GetData(), err
		})
		return nil
	})
}

// try writes a message if a connection could be opened. It does not open one.
func (s *Server) try(c call, message string) error {
	_, conn, err := s.oob(c)
	if err != nil {
		return err
	}
	defer conn.Close()
	writeSuccess(c.w, message)
	return nil
}
