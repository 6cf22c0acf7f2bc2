package network

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/millwright-dev/millwright/internal/unixsocket"
)

// Switch passes packets between guests. Create it with NewSwitch.
type Switch struct {
	log     *slog.Logger
	refused *Refusals

	mu sync.RWMutex
	// owners are the ports that have an address. The last port is where the guest was last seen; it receives the
	// frames for that address.
	owners map[netip.Addr][]*attached
}

// attached is a port that is in use.
type attached struct {
	Port
	queue chan []byte
}

const (
	// maxQueued is the maximum number of frames that may be pending for a guest. Further frames are dropped.
	maxQueued = 512
	// helloLimit is how long a hypervisor may take to send its port.
	helloLimit = 10 * time.Second
)

// NewSwitch returns a switch without ports.
func NewSwitch(log *slog.Logger) *Switch {
	return &Switch{log: log, refused: NewRefusals(log), owners: map[netip.Addr][]*attached{}}
}

// ErrTaken means that another VM already has one of the addresses.
var ErrTaken = errors.New("another VM already has the address")

// Listen opens the socket of a switch, which only the user of this process may access. It replaces an existing
// socket, so no other user may have access to the directory.
func Listen(path string) (net.Listener, error) {
	listener, err := unixsocket.Listen(path)
	if err != nil {
		return nil, fmt.Errorf("opening the socket of the switch: %w", err)
	}
	return listener, nil
}

// Serve serves the ports of hypervisors that connect to the listener until the context is canceled. It then closes
// the listener. Any client may claim any port.
func (s *Switch) Serve(ctx context.Context, listener net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accepting hypervisors: %w", err)
		}
		all.Go(func() {
			if err := s.serve(ctx, conn); err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil {
				s.log.Warn("closed the port of a guest", "error", err)
			}
		})
	}
}

// serve serves one port until the connection is closed or the context is canceled.
func (s *Switch) serve(ctx context.Context, conn net.Conn) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer conn.Close()
	in := bufio.NewReaderSize(conn, 1<<16)
	_ = conn.SetReadDeadline(time.Now().Add(helloLimit))
	port, err := readHello(in)
	if err != nil {
		return err
	}
	_ = conn.SetReadDeadline(time.Time{})
	a := &attached{Port: port, queue: make(chan []byte, maxQueued)}
	if err := s.attach(a); err != nil {
		return fmt.Errorf("%s: %w", port.VM, err)
	}
	ended := make(chan struct{})
	defer func() { <-ended }()
	defer conn.Close()
	defer s.detach(a)
	go func() {
		defer close(ended)
		writeFrames(conn, a.queue)
	}()
	for {
		frame, err := readFrame(in, maxFrame)
		if err != nil {
			return err
		}
		s.pass(a, frame)
	}
}

// attach assigns the addresses of a port to it. It returns ErrTaken if another VM has one of them.
func (s *Switch) attach(a *attached) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, address := range a.Addresses() {
		if owners := s.owners[address]; len(owners) > 0 && owners[0].VM != a.VM {
			return fmt.Errorf("%w: %s belongs to %s", ErrTaken, address, owners[0].VM)
		}
	}
	for _, address := range a.Addresses() {
		// A guest that is being migrated still runs at its previous port.
		s.owners[address] = append([]*attached{a}, s.owners[address]...)
	}
	return nil
}

// detach removes the port's addresses, so no more frames are sent to it.
func (s *Switch) detach(a *attached) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, address := range a.Addresses() {
		s.owners[address] = slices.DeleteFunc(s.owners[address], func(other *attached) bool { return other == a })
		if len(s.owners[address]) == 0 {
			delete(s.owners, address)
		}
	}
	close(a.queue)
}

// pass forwards a frame of a guest, or drops it. It never waits for the receiver.
func (s *Switch) pass(from *attached, frame []byte) {
	to, refusal := from.Inspect(frame)
	if refusal == "" {
		s.seen(from)
	}
	if refusal == "" && to.IsValid() {
		refusal = s.deliver(to, frame)
	}
	if refusal != "" {
		s.refused.Count(from.VM, refusal)
	}
}

// seen makes a guest's addresses refer to the port from which it sends.
func (s *Switch) seen(a *attached) {
	for _, address := range a.Addresses() {
		if s.owner(address) != a {
			s.move(address, a)
		}
	}
}

func (s *Switch) owner(address netip.Addr) *attached {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if owners := s.owners[address]; len(owners) > 0 {
		return owners[len(owners)-1]
	}
	return nil
}

func (s *Switch) move(address netip.Addr, a *attached) {
	s.mu.Lock()
	defer s.mu.Unlock()
	owners := s.owners[address]
	if at := slices.Index(owners, a); at >= 0 {
		s.owners[address] = append(slices.Delete(owners, at, at+1), a)
	}
}

func (s *Switch) deliver(to netip.Addr, frame []byte) Refusal {
	s.mu.RLock() // queues are closed only while this lock is held
	defer s.mu.RUnlock()
	owners := s.owners[to]
	if len(owners) == 0 {
		return NoGuest
	}
	receiver := owners[len(owners)-1]
	receiver.route(frame)
	select {
	case receiver.queue <- frame:
		return ""
	default:
		return QueueFull
	}
}

// Refused returns the number of dropped frames since the start, by VM and reason.
func (s *Switch) Refused() map[string]map[Refusal]uint64 { return s.refused.All() }

// writeFrames writes frames until the queue is closed. It writes in batches if frames arrive faster than they can
// be written. After an error it drops frames; reading from the connection then fails, too.
func writeFrames(conn io.Writer, queue <-chan []byte) {
	out := bufio.NewWriterSize(conn, 1<<16)
	for frame := range queue {
		_, _ = out.Write(framed(frame)) // the error persists, and Flush returns it
		if len(queue) > 0 {
			continue
		}
		if out.Flush() != nil {
			out.Reset(io.Discard)
		}
	}
}
