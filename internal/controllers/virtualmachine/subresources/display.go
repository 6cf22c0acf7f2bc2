package subresources

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/gorilla/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/millwright-dev/millwright/api/vm/subresources"
	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

const (
	// screenshotTimeout is the time limit of a screenshot. The hypervisor has a shorter limit.
	screenshotTimeout = 30 * time.Second
	// screenshotLimit limits the size of a screenshot, in bytes.
	screenshotLimit = 32 << 20
)

// checkDisplay returns an error for a VM without a display.
func (c call) checkDisplay() error {
	if c.vm.Spec.Display != v1alpha1.DisplayVNC {
		return c.conflict("virtual machine %s has no display; to get one, create it with spec.display: VNC", c.vm.Name)
	}
	return nil
}

// vnc connects a WebSocket to the display. The hypervisor filters what the viewer sends.
func (s *Server) vnc(c call) error {
	if err := c.checkDisplay(); err != nil {
		return err
	}
	if c.dryRun {
		return s.try(c, "the display of virtual machine "+c.vm.Name+" can be viewed (server dry run)")
	}
	if !websocket.IsWebSocketUpgrade(c.r) {
		return badRequest("the display requires a WebSocket connection with subprotocol %s", api.VNCProtocol)
	}
	open := func(ctx context.Context, vm vmpb.OOBManagementClient) (grpc.BidiStreamingClient[vmpb.DisplayIO, vmpb.DisplayIO], error) {
		return vm.Display(ctx)
	}
	return withStream(s, c, "vnc", open, func(ctx context.Context, stream grpc.BidiStreamingClient[vmpb.DisplayIO, vmpb.DisplayIO], _ metadata.MD) error {
		c.connect(ctx, upgraderFor("vnc", api.VNCProtocol), writeTimeout, func(data []byte) error {
			if len(data) == 0 {
				return stream.CloseSend()
			}
			err := stream.Send(&vmpb.DisplayIO{Data: data})
			if errors.Is(err, io.EOF) {
				return nil // the hypervisor has closed the stream; the client still gets the reason
			}
			return err
		}, func() ([]byte, error) {
			piece, err := stream.Recv()
			return piece.GetData(), err
		})
		return nil
	})
}

// screenshot sends an image of the display.
func (s *Server) screenshot(c call) error {
	if err := c.checkDisplay(); err != nil {
		return err
	}
	release, ok := s.open.Take(kind{client.ObjectKeyFromObject(c.vm), "screenshot"})
	if !ok {
		return apierrors.NewTooManyRequests(fmt.Sprintf("too many concurrent screenshots of virtual machine %s", c.vm.Name), retrySeconds)
	}
	defer release()
	vm, conn, err := s.oob(c)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(c.r.Context(), screenshotTimeout)
	defer cancel()
	stream, err := vm.Screenshot(ctx, &vmpb.ScreenshotRequest{})
	if err != nil {
		return c.failure(err)
	}
	part, err := stream.Recv()
	if err != nil {
		return c.failure(err)
	}
	c.w.Header().Set("Content-Type", api.ScreenshotType)
	c.w.Header().Set("Cache-Control", "no-store")
	c.w.Header().Set("X-Content-Type-Options", "nosniff")
	if err := http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(screenshotTimeout)); err != nil {
		return err
	}
	for sent := 0; err == nil && sent <= screenshotLimit; part, err = stream.Recv() {
		n, err := c.w.Write(part.GetData())
		if err != nil {
			return nil // the client is gone
		}
		sent += n
	}
	if !errors.Is(err, io.EOF) {
		panic(http.ErrAbortHandler) // the client sees that the response is incomplete
	}
	return nil
}
