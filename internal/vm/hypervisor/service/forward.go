package service

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

const (
	// dialTimeout is how long a guest may take to accept a connection.
	dialTimeout = 5 * time.Second
	// forwardPiece is the maximum number of bytes in a message of a forwarded connection.
	forwardPiece = 32 << 10
	maxPort      = 1<<16 - 1
)

// Forward implements vmpb.OOBManagementServer. Both directions wait for their receiver.
func (o *oob) Forward(stream grpc.BidiStreamingServer[vmpb.ForwardIO, vmpb.ForwardIO]) error {
	guest, err := o.present()
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	conn, err := dialGuest(stream.Context(), guest, first.GetPort())
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(stream.Context(), func() { _ = conn.Close() })
	defer stop()
	// The caller waits for the header before it accepts data.
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	go forwardInput(stream, conn, first.GetData())
	return forwardOutput(stream, conn)
}

// dialGuest connects to a port. The error is a gRPC status.
func dialGuest(ctx context.Context, guest Guest, port uint32) (dialer.Conn, error) {
	if port == 0 || port > maxPort {
		return nil, status.Errorf(codes.InvalidArgument, "%d is not a port number between 1 and %d", port, maxPort)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := guest.DialGuest(ctx, uint16(port))
	switch {
	case err == nil:
		return conn, nil
	case errors.Is(err, context.DeadlineExceeded):
		return nil, status.Errorf(codes.FailedPrecondition, "cannot connect to port %d of the guest: no response within %s; check that the guest is running and that its firewall allows the port", port, dialTimeout)
	}
	return nil, status.Errorf(codes.FailedPrecondition, "cannot connect to port %d of the guest: %v", port, err)
}

// forwardInput sends the caller's data to the guest. It needs no error: if the stream breaks, its context closes the
// connection, and if the connection breaks, forwardOutput returns the reason.
func forwardInput(stream grpc.BidiStreamingServer[vmpb.ForwardIO, vmpb.ForwardIO], conn dialer.Conn, data []byte) {
	for {
		if _, err := conn.Write(data); err != nil {
			return
		}
		message, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				_ = conn.CloseWrite()
			}
			return
		}
		data = message.GetData()
	}
}

// forwardOutput sends the guest's data to the caller until the guest sends no more.
func forwardOutput(stream grpc.BidiStreamingServer[vmpb.ForwardIO, vmpb.ForwardIO], conn dialer.Conn) error {
	buffer := make([]byte, forwardPiece)
	for {
		n, err := conn.Read(buffer)
		if n > 0 {
			if err := stream.Send(&vmpb.ForwardIO{Data: buffer[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return status.Errorf(codes.Unavailable, "the connection to the guest was lost: %v", err)
		}
	}
}
