package network

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/millwright-dev/millwright/internal/unixsocket"
)

// Link connects a guest to a switch. Create it with Join.
type Link struct {
	socket  string
	port    Port
	hello   []byte
	deliver func(frame []byte) error
	log     *slog.Logger
	// responses are frames of the link itself.
	responses chan []byte
	delivery  sync.Mutex // held during deliver

	mu    sync.Mutex
	queue chan []byte // nil while disconnected
	done  chan struct{}
}

// The delay between attempts to connect grows from firstPause to lastPause.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
)

// maxResponses is the maximum number of pending responses. Guests repeat requests that got no response.
const maxResponses = 64

// Join connects the port to the switch at the socket until the context is canceled. It reconnects, because a guest
// outlives the switch. Frames for the guest are delivered sequentially in QEMU's format: a length of four bytes,
// followed by the content. If deliver fails, the link terminates.
func Join(ctx context.Context, socket string, port Port, deliver func(framed []byte) error, log *slog.Logger) (*Link, error) {
	if err := port.Check(); err != nil {
		return nil, err
	}
	hello, err := json.Marshal(port)
	if err != nil {
		return nil, fmt.Errorf("describing the port: %w", err)
	}
	l := &Link{
		socket: socket, port: port, hello: framed(hello), deliver: deliver, log: log,
		responses: make(chan []byte, maxResponses), done: make(chan struct{}),
	}
	go l.run(ctx)
	return l, nil
}

// Done is closed when the link has terminated.
func (l *Link) Done() <-chan struct{} { return l.done }

// Send sends a frame of the guest, or responds to it if the guest looks for another guest on its own link. It never
// blocks: it drops the frame if there is no connection or too many frames are pending.
func (l *Link) Send(frame []byte) {
	response, local := l.port.Resolve(frame)
	if response != nil {
		select {
		case l.responses <- framed(response):
		default:
		}
	}
	if local {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue == nil {
		return
	}
	select {
	case l.queue <- frame:
	default:
	}
}

// errGuest means that frames can no longer be delivered to the guest.
var errGuest = errors.New("the guest does not accept frames")

func (l *Link) run(ctx context.Context) {
	defer close(l.done)
	ctx, stop := context.WithCancel(ctx)
	var responding sync.WaitGroup
	responding.Go(func() { l.respond(ctx) })
	defer responding.Wait()
	defer stop()
	pause := firstPause
	for ctx.Err() == nil {
		began := time.Now()
		err := l.connect(ctx)
		if errors.Is(err, errGuest) {
			return
		}
		if time.Since(began) > lastPause {
			pause = firstPause
		}
		if ctx.Err() == nil && pause < lastPause {
			l.log.Warn("cannot connect the guest to other guests; retrying", "error", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, lastPause)
	}
}

// respond delivers the link's own frames. It does not depend on the switch, so the guest keeps its neighbors while
// the switch restarts.
func (l *Link) respond(ctx context.Context) {
	for {
		select {
		case frame := <-l.responses:
			if l.deliverNext(frame) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// deliverNext delivers one frame at a time.
func (l *Link) deliverNext(frame []byte) error {
	l.delivery.Lock()
	defer l.delivery.Unlock()
	return l.deliver(frame)
}

// connect connects once and carries frames until the connection is closed.
func (l *Link) connect(ctx context.Context) error {
	conn, err := unixsocket.Dial(ctx, l.socket)
	if err != nil {
		return fmt.Errorf("connecting to the switch: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer conn.Close()
	if _, err := conn.Write(l.hello); err != nil {
		return fmt.Errorf("joining the switch: %w", err)
	}
	queue := make(chan []byte, maxQueued)
	written := make(chan struct{})
	go func() {
		defer close(written)
		writeFrames(conn, queue)
	}()
	l.setQueue(queue)
	defer func() {
		l.setQueue(nil)
		close(queue)
		_ = conn.Close()
		<-written
	}()
	return l.receive(conn)
}

func (l *Link) setQueue(queue chan []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = queue
}

func (l *Link) receive(conn net.Conn) error {
	in := bufio.NewReaderSize(conn, 1<<16)
	for {
		frame, err := readFrame(in, maxFrame)
		if err != nil {
			return fmt.Errorf("receiving: %w", err)
		}
		if frame == nil {
			continue
		}
		if err := l.deliverNext(framed(frame)); err != nil {
			return fmt.Errorf("%w: %w", errGuest, err)
		}
	}
}
