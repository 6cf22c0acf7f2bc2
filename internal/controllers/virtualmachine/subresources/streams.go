package subresources

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/gorilla/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/millwright-dev/millwright/api/vm/subresources"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

const (
	// MaxStreams is how many consoles of one VM may be open, and how many logs: who may read the log only must not
	// be able to keep others from the console. Each may use 128 KiB of its hypervisor.
	MaxStreams = 32

	// startLimit is how long a hypervisor may take to open a stream.
	startLimit = 10 * time.Second
	// writeLimit is how long a client may take to read anything.
	writeLimit = 20 * time.Second
	// pingPause is the time between two looks whether a client is there.
	pingPause = 30 * time.Second
	// messageLimit is how long a message of a client may be, in bytes.
	messageLimit = 256 << 10
	// closeTextLimit is how long the reason of a WebSocket's end may be, in bytes.
	closeTextLimit = 120
)

// kind is what streams are counted by.
type kind struct {
	vm          types.NamespacedName
	subresource string
}

// port is an open stream to a VM's serial port.
type port struct {
	grpc.BidiStreamingClient[vmpb.ConsoleIO, vmpb.ConsoleIO]
	// replay is how many bytes come first that are old.
	replay int
}

// withPort calls a function with a stream to the VM's serial port, for a subresource.
func (s *Server) withPort(c call, subresource string, replay bool, use func(context.Context, port) error) error {
	release, ok := s.open.Take(kind{client.ObjectKeyFromObject(c.vm), subresource})
	if !ok {
		return apierrors.NewTooManyRequests(fmt.Sprintf("too many streams of the %s of %s are open", subresource, c.vm.Name), 30)
	}
	defer release()
	vm, conn, err := s.oob(c)
	if err != nil {
		return err
	}
	defer conn.Close()
	// A connection that was taken over does not end its request.
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	if !replay {
		ctx = metadata.AppendToOutgoingContext(ctx, vmpb.MetadataReplay, vmpb.ReplayNone)
	}
	stream, err := vm.Console(ctx)
	if err != nil {
		return c.failure(err)
	}
	late := time.AfterFunc(startLimit, cancel)
	header, err := stream.Header()
	if !late.Stop() || err != nil || header == nil {
		_, why := stream.Recv() // what is wrong
		return c.failure(errors.Join(why, err))
	}
	begun := port{BidiStreamingClient: stream}
	if size := header.Get(vmpb.MetadataReplay); len(size) > 0 {
		begun.replay, _ = strconv.Atoi(size[0])
	}
	return use(ctx, begun)
}

// flag reads a parameter that is true or false.
func (c call) flag(name string) (bool, error) {
	text := c.r.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, badRequest("%s: %q is not true or false", name, text)
	}
	return value, nil
}

// upgrader refuses pages of other sites: a browser sends their Origin.
var upgrader = websocket.Upgrader{Subprotocols: []string{api.ConsoleProtocol}, HandshakeTimeout: startLimit, Error: refuse}

func refuse(w http.ResponseWriter, _ *http.Request, code int, reason error) {
	fail(w, apierrors.NewGenericServerResponse(code, "get", groupResource("console"), "", reason.Error(), 0, false))
}

// console connects a WebSocket to the serial port.
func (s *Server) console(c call) error {
	replay, err := c.flag(api.ReplayParameter)
	if err != nil {
		return err
	}
	if !websocket.IsWebSocketUpgrade(c.r) {
		return badRequest("a console is a WebSocket with the protocol %s", api.ConsoleProtocol)
	}
	return s.withPort(c, "console", replay, func(ctx context.Context, port port) error {
		socket, err := upgrader.Upgrade(c.w, c.r, nil)
		if err != nil {
			return nil // the client has an answer
		}
		defer socket.Close()
		socket.SetReadLimit(messageLimit)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stop := context.AfterFunc(ctx, func() { socket.Close() })
		defer stop()
		go func() {
			defer cancel()
			typed(socket, port)
		}()
		go ping(ctx, socket)
		say(socket, shown(socket, port))
		return nil
	})
}

// typed sends what a client types. Its error would say that the client has gone, or the guest.
func typed(socket *websocket.Conn, port port) {
	for {
		kind, data, err := socket.ReadMessage()
		if err != nil {
			return
		}
		if kind == websocket.BinaryMessage && port.Send(&vmpb.ConsoleIO{Data: data}) != nil {
			// The reason comes to shown. A client whose message was too large is not to go on.
			return
		}
	}
}

// shown sends what the guest says until that ends, and returns why.
func shown(socket *websocket.Conn, port port) error {
	for {
		piece, err := port.Recv()
		if err != nil {
			return err
		}
		if len(piece.GetData()) == 0 {
			continue
		}
		if err := socket.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
			return err
		}
		if err := socket.WriteMessage(websocket.BinaryMessage, piece.GetData()); err != nil {
			return err
		}
	}
}

// ping notices clients that are gone without a word.
func ping(ctx context.Context, socket *websocket.Conn) {
	ticker := time.NewTicker(pingPause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if socket.WriteControl(websocket.PingMessage, nil, time.Now().Add(writeLimit)) != nil {
				return // the next output fails, or the kernel gives up
			}
		}
	}
}

// say tells a client why its console ends.
func say(socket *websocket.Conn, why error) {
	code := websocket.CloseInternalServerErr
	switch status.Code(why) {
	case codes.OK:
		code = websocket.CloseNormalClosure
	case codes.Unavailable, codes.Canceled:
		code = websocket.CloseGoingAway
	case codes.ResourceExhausted:
		code = websocket.CloseTryAgainLater
	}
	text := status.Convert(why).Message()
	if errors.Is(why, io.EOF) {
		code, text = websocket.CloseNormalClosure, ""
	}
	message := websocket.FormatCloseMessage(code, messages.Line(messages.Shorten(text, closeTextLimit)))
	_ = socket.WriteControl(websocket.CloseMessage, message, time.Now().Add(time.Second))
}

// log sends what the guest has said.
func (s *Server) log(c call) error {
	follow, err := c.flag(api.FollowParameter)
	if err != nil {
		return err
	}
	return s.withPort(c, "log", true, func(_ context.Context, port port) error {
		c.w.Header().Set("Content-Type", "application/octet-stream") // not for browsers to show
		c.w.Header().Set("X-Content-Type-Options", "nosniff")
		c.w.WriteHeader(http.StatusOK)
		out := http.NewResponseController(c.w)
		if out.Flush() != nil {
			return nil
		}
		for sent := 0; follow || sent < port.replay; {
			piece, err := port.Recv()
			if err != nil {
				return nil // the client notices the end
			}
			data := piece.GetData()
			if !follow {
				data = data[:min(len(data), port.replay-sent)]
			}
			sent += len(data)
			if out.SetWriteDeadline(time.Now().Add(writeLimit)) != nil {
				return nil
			}
			if _, err := c.w.Write(data); err != nil || out.Flush() != nil {
				return nil
			}
		}
		return nil
	})
}

// isName reports whether a text can be the name of a node.
func isName(text string) bool { return len(validation.IsDNS1123Subdomain(text)) == 0 }
