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
	// MaxStreams limits the open consoles of a VM and, separately, its open logs. Users that may only read the log
	// cannot therefore keep others from the console. Each stream may use 128 KiB of memory in its hypervisor.
	MaxStreams = 32

	// startTimeout is how long a hypervisor may take to open a stream.
	startTimeout = 10 * time.Second
	// writeTimeout is how long a client may take to receive data.
	writeTimeout = 20 * time.Second
	// pingInterval is the time between two checks whether a client is still connected.
	pingInterval = 30 * time.Second
	// messageLimit limits the size of a message from a client, in bytes.
	messageLimit = 256 << 10
	// closeTextLimit limits the length of the reason in a WebSocket close message, in bytes.
	closeTextLimit = 120
)

// kind is the key by which open streams are counted.
type kind struct {
	vm          types.NamespacedName
	subresource string
}

// port is an open stream to a VM's serial port.
type port struct {
	grpc.BidiStreamingClient[vmpb.ConsoleIO, vmpb.ConsoleIO]
	// replay is the number of bytes at the start of the stream that are earlier output.
	replay int
}

// withPort opens a stream to the VM's serial port for a subresource, and calls a function with it.
func (s *Server) withPort(c call, subresource string, replay bool, use func(context.Context, port) error) error {
	release, ok := s.open.Take(kind{client.ObjectKeyFromObject(c.vm), subresource})
	if !ok {
		return apierrors.NewTooManyRequests(fmt.Sprintf("too many open %s streams for virtual machine %s", subresource, c.vm.Name), 30)
	}
	defer release()
	vm, conn, err := s.oob(c)
	if err != nil {
		return err
	}
	defer conn.Close()
	// The request's context is not canceled when the client closes a hijacked connection.
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	if !replay {
		ctx = metadata.AppendToOutgoingContext(ctx, vmpb.MetadataReplay, vmpb.ReplayNone)
	}
	stream, err := vm.Console(ctx)
	if err != nil {
		return c.failure(err)
	}
	late := time.AfterFunc(startTimeout, cancel)
	header, err := stream.Header()
	if !late.Stop() || err != nil || header == nil {
		_, why := stream.Recv() // returns the actual error
		return c.failure(errors.Join(why, err))
	}
	begun := port{BidiStreamingClient: stream}
	if size := header.Get(vmpb.MetadataReplay); len(size) > 0 {
		begun.replay, _ = strconv.Atoi(size[0])
	}
	return use(ctx, begun)
}

// flag returns the value of a boolean query parameter. The default is false.
func (c call) flag(name string) (bool, error) {
	text := c.r.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, badRequest("%s: invalid value %q; must be true or false", name, text)
	}
	return value, nil
}

// upgrader refuses requests from web pages of other origins, for which a browser sends an Origin header.
var upgrader = websocket.Upgrader{Subprotocols: []string{api.ConsoleProtocol}, HandshakeTimeout: startTimeout, Error: refuse}

func refuse(w http.ResponseWriter, _ *http.Request, code int, reason error) {
	writeError(w, apierrors.NewGenericServerResponse(code, "get", groupResource("console"), "", reason.Error(), 0, false))
}

// console connects a WebSocket to the serial port.
func (s *Server) console(c call) error {
	replay, err := c.flag(api.ReplayParameter)
	if err != nil {
		return err
	}
	if !websocket.IsWebSocketUpgrade(c.r) {
		return badRequest("the console requires a WebSocket connection with subprotocol %s", api.ConsoleProtocol)
	}
	return s.withPort(c, "console", replay, func(ctx context.Context, port port) error {
		socket, err := upgrader.Upgrade(c.w, c.r, nil)
		if err != nil {
			return nil // Upgrade has sent the response
		}
		defer socket.Close()
		socket.SetReadLimit(messageLimit)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stop := context.AfterFunc(ctx, func() { socket.Close() })
		defer stop()
		go func() {
			defer cancel()
			sendInput(socket, port)
		}()
		go ping(ctx, socket)
		closeConsole(socket, sendOutput(socket, port))
		return nil
	})
}

// sendInput sends the client's input to the guest. It returns when the client or the guest is gone. The error is not
// needed.
func sendInput(socket *websocket.Conn, port port) {
	for {
		kind, data, err := socket.ReadMessage()
		if err != nil {
			return
		}
		if kind == websocket.BinaryMessage && port.Send(&vmpb.ConsoleIO{Data: data}) != nil {
			// sendOutput returns the reason. Stop here even if only a message was too large.
			return
		}
	}
}

// sendOutput sends the output of the guest to the client until the stream fails, and returns the error.
func sendOutput(socket *websocket.Conn, port port) error {
	for {
		chunk, err := port.Recv()
		if err != nil {
			return err
		}
		if len(chunk.GetData()) == 0 {
			continue
		}
		if err := socket.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
		if err := socket.WriteMessage(websocket.BinaryMessage, chunk.GetData()); err != nil {
			return err
		}
	}
}

// ping detects clients that are gone without having closed the connection.
func ping(ctx context.Context, socket *websocket.Conn) {
	ticker := time.NewTicker(pingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if socket.WriteControl(websocket.PingMessage, nil, time.Now().Add(writeTimeout)) != nil {
				return // the next write of output fails, or the kernel closes the connection
			}
		}
	}
}

// closeConsole sends the client the reason why its console is closed.
func closeConsole(socket *websocket.Conn, why error) {
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

// log sends the output of the guest.
func (s *Server) log(c call) error {
	follow, err := c.flag(api.FollowParameter)
	if err != nil {
		return err
	}
	return s.withPort(c, "log", true, func(_ context.Context, port port) error {
		c.w.Header().Set("Content-Type", "application/octet-stream") // so that browsers do not render it
		c.w.Header().Set("X-Content-Type-Options", "nosniff")
		c.w.WriteHeader(http.StatusOK)
		out := http.NewResponseController(c.w)
		if out.Flush() != nil {
			return nil
		}
		for sent := 0; follow || sent < port.replay; {
			chunk, err := port.Recv()
			if err != nil {
				return nil // the client sees that the response is complete
			}
			data := chunk.GetData()
			if !follow {
				data = data[:min(len(data), port.replay-sent)]
			}
			sent += len(data)
			if out.SetWriteDeadline(time.Now().Add(writeTimeout)) != nil {
				return nil
			}
			if _, err := c.w.Write(data); err != nil || out.Flush() != nil {
				return nil
			}
		}
		return nil
	})
}

// isName reports whether a string is a valid node name.
func isName(text string) bool { return len(validation.IsDNS1123Subdomain(text)) == 0 }
