package service

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/rfb"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

const (
	// MaxViewers is the maximum number of viewers of a display. For a viewer that does not read, QEMU may keep a whole
	// picture in memory.
	MaxViewers = 4
	// displayPiece is the maximum number of bytes in a message of a display or of a screenshot.
	displayPiece = 32 << 10
	// screenshotTimeout is how long a screenshot may take, including the time to wait for another one and to send it.
	screenshotTimeout = 20 * time.Second
)

// viewerLimits limits the time of viewers.
type viewerLimits struct {
	// handshake is how long the handshake of a viewer may take.
	handshake time.Duration
	// idle is how long a viewer may send nothing. Viewers also send nothing while the picture does not change.
	idle time.Duration
}

var defaultViewerLimits = viewerLimits{handshake: 10 * time.Second, idle: time.Hour}

// Display implements vmpb.OOBManagementServer. In both directions, it reads no more data than the receiver accepts.
func (o *oob) Display(stream grpc.BidiStreamingServer[vmpb.DisplayIO, vmpb.DisplayIO]) error {
	guest, err := o.present()
	if err != nil {
		return err
	}
	defer o.viewers.Add(-1)
	if o.viewers.Add(1) > MaxViewers {
		return status.Errorf(codes.ResourceExhausted, "%d viewers are connected to the display, the maximum number; disconnect one of them", MaxViewers)
	}
	conn, err := guest.DialDisplay(stream.Context())
	if err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	defer conn.Close()
	stop := context.AfterFunc(stream.Context(), func() { _ = conn.Close() })
	defer stop()
	// The caller waits for the header before it accepts data.
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	late := time.NewTimer(o.limits.handshake)
	defer late.Stop()
	input := &viewerInput{stream: stream, late: late, idle: o.limits.idle}
	left, ended := make(chan error, 1), make(chan error, 1)
	go func() { left <- input.pass(conn) }()
	go func() { ended <- displayOutput(stream, conn) }()
	select {
	case err := <-left:
		return err
	case err := <-ended:
		return err
	case <-late.C:
		return status.Error(codes.DeadlineExceeded, input.silence())
	}
}

// errDisplayClosed means that QEMU has closed the connection.
var errDisplayClosed = status.Error(codes.Unavailable, "the VM has moved or terminated, or its display has disconnected the viewer")

// displayOutput sends the output of the VNC server, until QEMU closes the connection.
func displayOutput(stream grpc.BidiStreamingServer[vmpb.DisplayIO, vmpb.DisplayIO], conn net.Conn) error {
	buffer := make([]byte, displayPiece)
	for {
		n, err := conn.Read(buffer)
		if n > 0 {
			if err := stream.Send(&vmpb.DisplayIO{Data: buffer[:n]}); err != nil {
				return err
			}
		}
		if err != nil {
			return errDisplayClosed
		}
	}
}

// viewerInput is the input from a viewer.
type viewerInput struct {
	stream grpc.BidiStreamingServer[vmpb.DisplayIO, vmpb.DisplayIO]
	// late expires when the viewer must be disconnected.
	late *time.Timer
	idle time.Duration
	// connected is set once the handshake is complete.
	connected atomic.Bool
	// data is what has been received, but not yet read.
	data []byte
}

// pass sends the viewer's permitted messages to the display, until the viewer disconnects. The error is a gRPC status.
func (v *viewerInput) pass(display io.Writer) error {
	err := rfb.Handshake(display, v)
	if err == nil {
		v.connected.Store(true)
		v.late.Reset(v.idle)
		err = rfb.Messages(display, v)
	}
	if refused, is := errors.AsType[*rfb.Error](err); is {
		return status.Error(codes.InvalidArgument, refused.Error())
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil // the viewer has left
	}
	if _, is := errors.AsType[*net.OpError](err); is {
		return errDisplayClosed
	}
	return err
}

// Read implements io.Reader.
func (v *viewerInput) Read(to []byte) (int, error) {
	for len(v.data) == 0 {
		message, err := v.stream.Recv()
		if err != nil {
			return 0, err
		}
		v.data = message.GetData()
		if v.connected.Load() {
			v.late.Reset(v.idle)
		}
	}
	n := copy(to, v.data)
	v.data = v.data[n:]
	return n, nil
}

// silence explains why late has expired.
func (v *viewerInput) silence() string {
	if v.connected.Load() {
		return fmt.Sprintf("the viewer sent nothing for %s and was disconnected", v.idle)
	}
	return "the viewer did not complete the handshake in time"
}

// Screenshot implements vmpb.OOBManagementServer.
func (o *oob) Screenshot(_ *vmpb.ScreenshotRequest, stream grpc.ServerStreamingServer[vmpb.ScreenshotPart]) error {
	guest, err := o.present()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(stream.Context(), screenshotTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		out := bufio.NewWriterSize(parts{stream}, displayPiece)
		done <- errors.Join(guest.Screenshot(ctx, out), out.Flush())
	}()
	select {
	case err = <-done:
	case <-ctx.Done(): // the caller does not read; the write to parts fails once this function has returned
		err = ctx.Err()
	}
	if err != nil {
		return status.Errorf(codes.FailedPrecondition, "cannot take a screenshot: %v", err)
	}
	return nil
}

// parts is an io.Writer that sends a screenshot.
type parts struct {
	grpc.ServerStreamingServer[vmpb.ScreenshotPart]
}

// Write implements io.Writer.
func (p parts) Write(data []byte) (int, error) {
	for piece := range slices.Chunk(data, displayPiece) {
		if err := p.Send(&vmpb.ScreenshotPart{Data: piece}); err != nil {
			return 0, err
		}
	}
	return len(data), nil
}
