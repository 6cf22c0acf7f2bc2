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
	// MaxStreams limits the open consoles of a VM and, separately, its open logs, its concurrent screenshots and its
	// forwarded connections. So users who may only read the log cannot keep others from the console. A console or log may
	// use 128 KiB of memory in its hypervisor, and a forwarded connection 256 KiB. Hypervisors have a lower limit for
	// viewers of the display.
	MaxStreams = 32
	// retrySeconds is when a client may retry if a limit was reached.
	retrySeconds = 30

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
	open := func(ctx context.Context, vm vmpb.OOBManagementClient) (grpc.BidiStreamingClient[vmpb.ConsoleIO, vmpb.ConsoleIO], error) {
		if !replay {
			ctx = metadata.AppendToOutgoingContext(ctx, vmpb.MetadataReplay, vmpb.ReplayNone)
		}
		return vm.Console(ctx)
	}
	return withStream(s, c, subresource, open, func(ctx context.Context, stream grpc.BidiStreamingClient[vmpb.ConsoleIO, vmpb.ConsoleIO], header metadata.MD) error {
		begun := port{BidiStreamingClient: stream}
		if size := header.Get(vmpb.MetadataReplay); len(size) > 0 {
			begun.replay, _ = strconv.Atoi(size[0])
		}
		return use(ctx, begun)
	})
}

// withStream opens a stream to the VM's hypervisor for a subresource, and calls use with it and its header. The limit
// of streams applies.
func withStream[M any](s *Server, c call, subresource string,
	open func(context.Context, vmpb.OOBManagementClient) (grpc.BidiStreamingClient[M, M], error),
	use func(context.Context, grpc.BidiStreamingClient[M, M], metadata.MD) error,
) error {
	release, ok := s.open.Take(kind{client.ObjectKeyFromObject(c.vm), subresource})
	if !ok {
		return apierrors.NewTooManyRequests(fmt.Sprintf("too many open %s streams for virtual machine %s", subresource, c.vm.Name), retrySeconds)
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
	stream, err := open(ctx, vm)
	if err != nil {
		return c.failure(err)
	}
	late := time.AfterFunc(startTimeout, cancel)
	header, err := stream.Header()
	if !late.Stop() || err != nil || header == nil {
		if _, why := stream.Recv(); why != nil { // the actual error; joined with another one, it would lose its message
			err = why
		}
		return c.failure(err)
	}
	return use(ctx, stream, header)
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

// upgraderFor returns an upgrader that refuses requests from web pages of other origins, for which a browser sends an
// Origin header.
func upgraderFor(subresource, protocol string) *websocket.Upgrader {
	refuse := func(w http.ResponseWriter, _ *http.Request, code int, reason error) {
		writeError(w, apierrors.NewGenericServerResponse(code, "get", groupResource(subresource), "", reason.Error(), 0, false))
	}
	return &websocket.Upgrader{Subprotocols: []string{protocol}, HandshakeTimeout: startTimeout, Error: refuse}
}

// socket is the WebSocket of a client.
type socket struct {
	*websocket.Conn
	// writeTimeout is how long the client may take to receive data. If 0, it may take any time.
	writeTimeout time.Duration
}

// connect upgrades the request to a WebSocket, and carries data until one side leaves. input handles a message of the
// client, and the client is disconnected if it fails. output returns the next data for the client, or an error after
// the last data.
func (c call) connect(ctx context.Context, upgrader *websocket.Upgrader, writeTimeout time.Duration, input func([]byte) error, output func() ([]byte, error)) {
	conn, err := upgrader.Upgrade(c.w, c.r, nil)
	if err != nil {
		return // Upgrade has sent the response
	}
	defer conn.Close()
	conn.SetReadLimit(messageLimit)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	client := socket{conn, writeTimeout}
	go func() {
		defer cancel()
		client.receive(input)
	}()
	go ping(ctx, conn)
	closeSocket(conn, client.send(output))
}

// receive handles the client's messages until the client or the guest is gone. The error is not needed.
func (s socket) receive(input func([]byte) error) {
	for {
		kind, data, err := s.ReadMessage()
		if err != nil {
			return
		}
		if kind == websocket.BinaryMessage && input(data) != nil {
			// send returns the reason. Stop here even if only a message was too large.
			return
		}
	}
}

// send sends data to the client until output or sending fails, and returns the error.
func (s socket) send(output func() ([]byte, error)) error {
	for {
		data, err := output()
		if err != nil {
			return err
		}
		if len(data) == 0 {
			continue
		}
		var deadline time.Time
		if s.writeTimeout > 0 {
			deadline = time.Now().Add(s.writeTimeout)
		}
		if err := s.SetWriteDeadline(deadline); err != nil {
			return err
		}
		if err := s.WriteMessage(websocket.BinaryMessage, data); err != nil {
			return err
		}
	}
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
		c.connect(ctx, upgraderFor("console", api.ConsoleProtocol), writeTimeout, func(data []byte) error {
			return port.Send(&vmpb.ConsoleIO{Data: data})
		}, func() ([]byte, error) {
			chunk, err := port.Recv()
			return chunk.GetData(), err
		})
		return nil
	})
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

// closeSocket sends the client the reason why its WebSocket is closed.
func closeSocket(socket *websocket.Conn, why error) {
	code := websocket.CloseInternalServerErr
	switch status.Code(why) {
	case codes.OK:
		code = websocket.CloseNormalClosure
	case codes.Unavailable, codes.Canceled:
		code = websocket.CloseGoingAway
	case codes.ResourceExhausted:
		code = websocket.CloseTryAgainLater
	case codes.InvalidArgument, codes.DeadlineExceeded: // a viewer has sent an invalid message, or none in time
		code = websocket.ClosePolicyViolation
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
