package service

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// hello is the handshake of a viewer.
const hello = "RFB 003.008\n\x01\x01"

// keyA is the message for a pressed key.
const keyA = "\x04\x01\x00\x00\x00\x00\x00a"

type viewerStream = grpc.BidiStreamingClient[vmpb.DisplayIO, vmpb.DisplayIO]

// display returns a client of a server whose guest has a display, and the VNC server's side of the connections.
func display(t *testing.T, limits viewerLimits) (vmpb.OOBManagementClient, <-chan net.Conn) {
	t.Helper()
	conns := make(chan net.Conn, MaxViewers+1)
	s, g := newServer(t, Peers{}), newGuest(t)
	s.limits = limits
	g.display = func() (net.Conn, error) {
		ours, theirs := net.Pipe()
		t.Cleanup(func() { _ = theirs.Close() })
		conns <- theirs
		return ours, nil
	}
	s.SetGuest(g)
	local, _ := connect(t, s)
	return vmpb.NewOOBManagementClient(local), conns
}

// view connects a viewer, and waits until it is connected.
func view(t *testing.T, client vmpb.OOBManagementClient) viewerStream {
	t.Helper()
	stream, err := client.Display(bounded(t))
	must(t, err)
	if header, err := stream.Header(); err != nil || header == nil {
		_, why := stream.Recv()
		t.Fatalf("header %v, %v: %v", header, err, why)
	}
	return stream
}

// reads reads a text from a connection.
func reads(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("the display got %q, %v, want %q", got, err, want)
	}
}

// wantClosed reads a stream until it is closed, and checks the reason.
func wantClosed(t *testing.T, stream viewerStream, code codes.Code, text string) {
	t.Helper()
	for {
		if _, err := stream.Recv(); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			if status.Code(err) != code || err != nil && !strings.Contains(err.Error(), text) {
				t.Errorf("the stream was closed with %v, want %s with %q", err, code, text)
			}
			return
		}
	}
}

func TestDisplay_CarriesBothDirections(t *testing.T) {
	client, conns := display(t, defaultViewerLimits)
	stream := view(t, client)
	conn := <-conns
	for _, piece := range []string{hello[:5], "", hello[5:] + keyA[:3], keyA[3:]} {
		must(t, stream.Send(&vmpb.DisplayIO{Data: []byte(piece)}))
	}
	reads(t, conn, hello+keyA)
	picture := bytes.Repeat([]byte("\x00\xff0123456789abcdef"), 64<<10)
	go func() {
		_, _ = conn.Write(picture)
		_ = conn.Close()
	}()
	var got bytes.Buffer
	for {
		message, err := stream.Recv()
		if err != nil {
			if status.Code(err) != codes.Unavailable {
				t.Errorf("error = %v, want UNAVAILABLE when the machine terminates", err)
			}
			break
		}
		got.Write(message.GetData())
	}
	if !bytes.Equal(got.Bytes(), picture) {
		t.Errorf("the viewer got %d bytes, want %d", got.Len(), len(picture))
	}
}

// TestDisplay_FiltersViewers checks that the VNC server does not get a message that the filter rejects.
func TestDisplay_FiltersViewers(t *testing.T) {
	client, conns := display(t, defaultViewerLimits)
	stream := view(t, client)
	conn := <-conns
	const enableAudio = "\xff\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	must(t, stream.Send(&vmpb.DisplayIO{Data: []byte(hello + keyA + enableAudio + keyA)}))
	reads(t, conn, hello+keyA)
	if n, err := conn.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		t.Fatalf("the display got %d bytes more, %v; want the end of the connection", n, err)
	}
	wantClosed(t, stream, codes.InvalidArgument, "message of type 255.1")
}

// TestDisplay_LimitsViewers checks that a viewer above the limit is refused, that the others stay connected, and that another
// one can connect when one of them disconnects.
func TestDisplay_LimitsViewers(t *testing.T) {
	client, conns := display(t, defaultViewerLimits)
	var viewers []viewerStream
	var displays []net.Conn
	for range MaxViewers {
		viewers = append(viewers, view(t, client))
		displays = append(displays, <-conns)
	}
	for range 3 {
		stream, err := client.Display(bounded(t))
		must(t, err)
		if header, _ := stream.Header(); header != nil {
			t.Fatal("a viewer above the limit is connected")
		}
		wantClosed(t, stream, codes.ResourceExhausted, "4 viewers are connected")
	}
	must(t, viewers[0].CloseSend())
	wantClosed(t, viewers[0], codes.OK, "")
	if rest, err := io.ReadAll(displays[0]); len(rest) > 0 || err != nil {
		t.Errorf("the display got %q, %v; want the end of the connection", rest, err)
	}
	viewers[0] = view(t, client)
	displays[0] = <-conns
	for i, stream := range viewers {
		must(t, stream.Send(&vmpb.DisplayIO{Data: []byte(hello)}))
		reads(t, displays[i], hello)
	}
}

// TestDisplay_LimitsTime checks that viewers are disconnected if they do not complete the handshake, or send nothing for too
// long.
func TestDisplay_LimitsTime(t *testing.T) {
	const short = 50 * time.Millisecond
	for name, test := range map[string]struct {
		limits viewerLimits
		sent   string
		want   string
	}{
		"no handshake":   {viewerLimits{short, time.Hour}, "", "did not complete the handshake"},
		"half handshake": {viewerLimits{short, time.Hour}, hello[:12], "did not complete the handshake"},
		"no messages":    {viewerLimits{time.Hour, short}, hello, "sent nothing for 50ms"},
		"half a message": {viewerLimits{time.Hour, short}, hello + keyA[:3], "sent nothing for 50ms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, conns := display(t, test.limits)
			stream := view(t, client)
			conn := <-conns
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			must(t, stream.Send(&vmpb.DisplayIO{Data: []byte(test.sent)}))
			wantClosed(t, stream, codes.DeadlineExceeded, test.want)
		})
	}
}

func TestDisplay_Absent(t *testing.T) {
	s := newServer(t, Peers{})
	s.SetGuest(newGuest(t))
	local, _ := connect(t, s)
	client := vmpb.NewOOBManagementClient(local)
	stream, err := client.Display(bounded(t))
	must(t, err)
	wantClosed(t, stream, codes.FailedPrecondition, errNoDisplay.Error())
	picture, err := client.Screenshot(bounded(t), &vmpb.ScreenshotRequest{})
	must(t, err)
	if _, err := picture.Recv(); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), errNoDisplay.Error()) {
		t.Errorf("the screenshot failed with %v", err)
	}
}

func TestScreenshot_ReturnsPicture(t *testing.T) {
	s, g := newServer(t, Peers{}), newGuest(t)
	g.picture = bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	s.SetGuest(g)
	local, _ := connect(t, s)
	stream, err := vmpb.NewOOBManagementClient(local).Screenshot(bounded(t), &vmpb.ScreenshotRequest{})
	must(t, err)
	var got bytes.Buffer
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		got.Write(part.GetData())
	}
	if !bytes.Equal(got.Bytes(), g.picture) {
		t.Errorf("got %d bytes, want %d", got.Len(), len(g.picture))
	}
}
