package service

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/console"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// script is the stream of a console with the given messages, after which the caller closes its side.
type script struct {
	grpc.ServerStream
	ctx      context.Context
	messages [][]byte
	sent     bytes.Buffer
}

func (s *script) Context() context.Context { return s.ctx }

// Recv implements grpc.BidiStreamingServer. It rejects invalid messages, as gRPC does.
func (s *script) Recv() (*vmpb.ConsoleIO, error) {
	if len(s.messages) == 0 {
		return nil, io.EOF
	}
	message := &vmpb.ConsoleIO{}
	err := proto.Unmarshal(s.messages[0], message)
	s.messages = s.messages[1:]
	if err != nil {
		return nil, status.Error(codes.Internal, "invalid message")
	}
	return message, nil
}

func (s *script) SendHeader(metadata.MD) error { return nil }

func (s *script) Send(message *vmpb.ConsoleIO) error {
	s.sent.Write(message.GetData())
	return nil
}

// FuzzOOBManagement checks that, whatever a caller sends and the guest writes, both calls return when the guest
// terminates, a console carries the guest's bytes unchanged, and a reset is performed once per number.
func FuzzOOBManagement(f *testing.F) {
	hello, err := proto.Marshal(&vmpb.ConsoleIO{Data: []byte("hello\n")})
	if err != nil {
		f.Fatal(err)
	}
	number, err := proto.Marshal(&vmpb.ResetRequest{IdempotencyCounter: 7})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(hello, []byte("login: "), number)
	f.Add([]byte(nil), []byte("\x1b[2J\x00\xff"), []byte(nil))
	f.Add([]byte{0xff}, bytes.Repeat([]byte("x"), 1<<16), []byte{0x08})
	f.Fuzz(func(t *testing.T, input, output, reset []byte) {
		output = output[:min(len(output), console.HistorySize)] // more could be too fast for a client
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		defer cancel()
		ours, port := net.Pipe()
		g := &guest{console: console.New(ours), port: port}
		o := &oob{}
		o.SetGuest(g)
		go func() { _, _ = io.Copy(io.Discard, port) }() // the guest reads at any time
		resets(ctx, t, o, g, reset)

		stream := &script{ctx: ctx, messages: [][]byte{input, input}}
		ended := make(chan error, 1)
		client := g.console.Attach() // receives everything that the guest writes
		go func() { ended <- o.Console(stream) }()
		if _, err := port.Write(output); err != nil {
			t.Fatal(err)
		}
		if err := port.Close(); err != nil {
			t.Fatal(err)
		}
		var want bytes.Buffer
		for {
			piece, err := client.Next(ctx)
			if err != nil {
				break
			}
			want.Write(piece)
		}
		if ctx.Err() != nil {
			t.Fatal("the console does not terminate with the guest")
		}
		switch err := <-ended; status.Code(err) {
		case codes.Internal: // caused by the caller's message
		case codes.Unavailable:
			if !bytes.Equal(stream.sent.Bytes(), want.Bytes()) && !bytes.HasSuffix(want.Bytes(), stream.sent.Bytes()) {
				t.Errorf("the caller got %q, the guest wrote %q", stream.sent.Bytes(), want.Bytes())
			}
		default:
			t.Errorf("the console returned %v", err)
		}
	})
}

// resets sends a request twice.
func resets(ctx context.Context, t *testing.T, o *oob, g *guest, raw []byte) {
	t.Helper()
	request := &vmpb.ResetRequest{}
	if proto.Unmarshal(raw, request) != nil {
		return // gRPC would have rejected it
	}
	for range 2 {
		if _, err := o.Reset(ctx, request); err != nil {
			t.Errorf("reset: %v", err)
		}
	}
	want := int32(2)
	if request.GetIdempotencyCounter() != 0 {
		want = 1
	}
	if got := g.resets.Load(); got != want {
		t.Errorf("%d resets for number %d, want %d", got, request.GetIdempotencyCounter(), want)
	}
}
