// Package ports lets clients connect to TCP ports of the guest, and send datagrams to its UDP ports, at the Pod of its
// hypervisor. It also checks whether the guest is ready for them.
package ports

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
)

const (
	// maxConnections is the maximum number of open connections of all ports. Each may hold tens of kilobytes that one
	// side has not read yet.
	maxConnections = 1024
	// piece is the number of bytes that are copied at a time.
	piece = 16 << 10
	// retryAfter is the delay after a failure to accept a connection.
	retryAfter = 100 * time.Millisecond
	// halfOpenTime is how long a client may send nothing after the guest has sent the end of its data. The guest has
	// usually closed the connection, and has such a limit itself, but this process cannot know that before it sends more.
	halfOpenTime = time.Minute
)

// Guest is the guest that clients reach. It is implemented by *service.Server.
type Guest interface {
	// DialGuest is a Dial.
	DialGuest(ctx context.Context, port uint16) (dialer.Conn, error)
	// DialGuestUDP opens a flow of datagrams to a UDP port of the guest. It calls receive with each datagram from this port.
	// It returns an error if the guest does not run in this process.
	DialGuestUDP(port uint16, receive func(datagram []byte)) (dialer.Flow, error)
}

// Dial connects to a TCP port of the guest. It returns an error if the guest does not run in this process, or does not
// accept the connection in time.
type Dial func(ctx context.Context, port uint16) (dialer.Conn, error)

// Config describes the ports of a guest.
type Config struct {
	// Address is the address to listen on. If empty, all addresses are used.
	Address string
	// Ports are TCP ports of the guest, and UDPPorts are UDP ports. They are also the ports to listen on.
	Ports, UDPPorts []uint16
	// Probe determines whether the guest is ready. Required.
	Probe *Probe
}

// Server forwards connections and datagrams. Create it with Listen.
type Server struct {
	guest     Guest
	probe     *Probe
	log       *slog.Logger
	ctx       context.Context
	cancel    context.CancelFunc
	listeners []net.Listener
	datagrams []*datagramPort
	running   sync.WaitGroup
	activity  activity
	// open counts connections, and clients has them by client.
	open    *connlimit.Counter
	clients *connlimit.Pool
	// flows has the flows of datagrams by client.
	flows *connlimit.Pool
	// full and manyFlows limit how often a client can cause a log line.
	full, manyFlows rate.Sometimes
}

// Listen serves until Close is called. The guest may start later. A nil logger logs nothing.
func Listen(config Config, guest Guest, log *slog.Logger) (*Server, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		guest: guest, probe: config.Probe, log: log,
		open: connlimit.NewCounter(maxConnections, maxConnections), clients: connlimit.NewUnlimitedPool(),
		flows: connlimit.NewPool(maxFlows),
		full:  rate.Sometimes{Interval: time.Minute}, manyFlows: rate.Sometimes{Interval: time.Minute},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for _, port := range config.Ports {
		listener, err := net.Listen("tcp", net.JoinHostPort(config.Address, strconv.Itoa(int(port))))
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("listening for connections to the guest: %w", err)
		}
		s.listeners = append(s.listeners, listener)
		s.running.Go(func() { s.serve(listener, port) })
	}
	for _, port := range config.UDPPorts {
		if err := s.listenUDP(config.Address, port); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// Close closes all connections and flows of datagrams, and stops Check. It returns when they are closed.
func (s *Server) Close() {
	s.cancel()
	for _, listener := range s.listeners {
		_ = listener.Close()
	}
	for _, port := range s.datagrams {
		_ = port.socket.Close()
	}
	s.running.Wait()
	for _, port := range s.datagrams {
		port.close()
	}
}

// AwaitIdle waits until there is no connection, and has been none for a while.
func (s *Server) AwaitIdle(ctx context.Context, quiet time.Duration) {
	begun := time.Now()
	for left := quiet; left > 0 && sleep(ctx, left); {
		left = quiet - time.Since(s.activity.last(begun))
	}
}

// activity is when there were connections.
type activity struct {
	mu    sync.Mutex
	open  int
	ended time.Time
}

func (a *activity) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open++
}

func (a *activity) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open, a.ended = a.open-1, time.Now()
}

// last returns when there last was a connection since a time, or this time.
func (a *activity) last(since time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.open > 0:
		return time.Now()
	case a.ended.After(since):
		return a.ended
	}
	return since
}

func (s *Server) serve(listener net.Listener, port uint16) {
	for {
		client, err := listener.Accept()
		switch {
		case err == nil:
		case s.ctx.Err() != nil:
			return
		default: // for example, too many open files
			s.log.Warn("cannot accept a connection to the guest", "port", port, "error", err)
			if !sleep(s.ctx, retryAfter) {
				return
			}
			continue
		}
		ctx, cancel := context.WithCancel(s.ctx)
		release, ok := s.admit(client.RemoteAddr(), cancel)
		if !ok {
			cancel()
			reset(client)
			continue
		}
		s.activity.begin()
		s.running.Go(func() {
			defer s.activity.end()
			defer release()
			defer cancel()
			s.forward(ctx, client, port)
		})
	}
}

// admit counts a connection until release. If there are too many, it closes the oldest connection of the client with the
// most connections, by its end, unless this client then had more. It returns false if there still are too many.
func (s *Server) admit(client net.Addr, end func()) (release func(), ok bool) {
	from := connlimit.OriginOf(client)
	free, ok := s.open.Take(from)
	if !ok {
		s.full.Do(func() {
			s.log.Warn("too many connections to the guest; closing those of the client with the most", "client", client, "limit", maxConnections)
		})
		if s.clients.Displace(from) {
			free, ok = s.open.Take(from)
		}
	}
	if !ok {
		return nil, false
	}
	leave := s.clients.Add(from, func() {
		free()
		end()
	})
	return func() {
		leave()
		free()
	}, true
}

// forward copies both directions of a connection until both have ended, one side fails, or the client keeps a connection
// that the guest has ended.
func (s *Server) forward(ctx context.Context, client net.Conn, port uint16) {
	defer client.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	guest, err := s.guest.DialGuest(ctx, port)
	if err != nil {
		s.log.Debug("a connection to the guest failed", "port", port, "error", err)
		reset(client)
		return
	}
	defer guest.Close()
	stop := context.AfterFunc(ctx, func() { _, _ = guest.Close(), client.SetDeadline(time.Now()) })
	defer stop()
	var idle atomic.Pointer[time.Timer] // nil until the guest has ended its direction
	sent := make(chan error, 1)
	go func() {
		err := transfer(guest, reader(func(into []byte) (int, error) {
			n, err := client.Read(into)
			if limit := idle.Load(); limit != nil {
				limit.Reset(halfOpenTime)
			}
			return n, err
		}))
		if err != nil {
			cancel()
		}
		sent <- err
	}()
	if err = transfer(client.(dialer.Conn), guest); err != nil {
		cancel()
	}
	limit := time.AfterFunc(halfOpenTime, cancel)
	defer limit.Stop()
	idle.Store(limit)
	if err = errors.Join(err, <-sent); err != nil {
		reset(client)
	}
}

// reader is a function that reads.
type reader func(into []byte) (int, error)

// Read implements io.Reader.
func (r reader) Read(into []byte) (int, error) { return r(into) }

// transfer copies one direction, and then its end. An error is not an end, and the connection is of no more use.
func transfer(to dialer.Conn, from io.Reader) error {
	// The types are hidden so that io.CopyBuffer uses the small buffer instead of methods of the connections.
	if _, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, piece)); err != nil {
		return err
	}
	return to.CloseWrite()
}

// reset closes a connection so that its client gets an error instead of the end of the data.
func reset(client net.Conn) {
	if tcp, ok := client.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // fails only if it is closed
	}
	_ = client.Close()
}
