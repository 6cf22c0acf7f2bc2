package hypervisor_test

import (
	"bytes"
	"context"
	"errors"
	"image/png"
	"io"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/tier"
	"github.com/millwright-dev/millwright/test/support/vncviewer"
)

// displayStream is the connection of a viewer.
type displayStream struct {
	grpc.BidiStreamingClient[vmpb.DisplayIO, vmpb.DisplayIO]
	rest []byte
}

// Read implements io.Reader.
func (d *displayStream) Read(to []byte) (int, error) {
	for len(d.rest) == 0 {
		message, err := d.Recv()
		if err != nil {
			return 0, err
		}
		d.rest = message.GetData()
	}
	n := copy(to, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

// Write implements io.Writer.
func (d *displayStream) Write(data []byte) (int, error) {
	return len(data), d.Send(&vmpb.DisplayIO{Data: data})
}

// views connects a viewer to the display of a member whose guest runs, and checks that the display shows the text of the
// firmware.
func (m *member) views() *displayStream {
	m.t.Helper()
	conn, err := service.DialSocket(filepath.Join(m.root, vmpb.SocketPath))
	must(m.t, err)
	m.t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.t.Context()), waitTimeout)
	m.t.Cleanup(cancel)
	client := vmpb.NewOOBManagementClient(conn)
	stream, err := client.Display(ctx)
	must(m.t, err)
	display := &displayStream{BidiStreamingClient: stream}
	viewer, err := vncviewer.New(display)
	must(m.t, err)
	seen, err := viewer.Picture()
	must(m.t, err)

	parts, err := client.Screenshot(ctx, &vmpb.ScreenshotRequest{})
	must(m.t, err)
	var file bytes.Buffer
	for {
		part, err := parts.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		must(m.t, err)
		file.Write(part.GetData())
	}
	taken, err := png.Decode(&file)
	must(m.t, err)
	for name, picture := range map[string]int{"the viewer": vncviewer.Pixels(seen), "the screenshot": vncviewer.Pixels(taken)} {
		if picture < 100 {
			m.t.Errorf("%s of %s shows %d pixels, want the text of the firmware", name, m.pod, picture)
		}
	}
	return display
}

// TestMigration_Display checks that a guest with a display moves to another hypervisor, where the display shows the same
// picture, and that viewers are disconnected and can connect again there.
func TestMigration_Display(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newTestCluster(t)
	h.display = true
	source := h.source()
	here := source.counts()
	here.keepsRunning()
	viewer := source.views()
	target, there := h.follows(source, here, "web-2")
	if _, err := io.Copy(io.Discard, viewer); status.Code(err) != codes.Unavailable {
		t.Errorf("the viewer at the source was disconnected with %v, want UNAVAILABLE", err)
	}
	there.keepsRunning()
	target.views()
}
