// Package memnet connects clients to an in-memory server over a network that tests can cut. It works in bubbles
// of testing/synctest.
package memnet

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"
)

// Cut is a fault of a network. The zero value means no fault.
type Cut struct {
	// Refused makes new connections fail immediately.
	Refused bool
	// Silent delays all data, the closing of connections, and new connections. They arrive when the network is
	// restored, like data that TCP retransmits.
	Silent bool
	// Lost drops all data on the existing connections, permanently: neither side learns that the other has
	// closed. New connections work.
	Lost bool
	// PerByte is the transfer time of each byte.
	PerByte time.Duration
	// After is the number of bytes from clients that arrive before the cut takes effect.
	After int
}

// Network has one server, which accepts connections from it as from a net.Listener.
type Network struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once

	mu      sync.Mutex
	changed chan struct{} // closed when cut changes
	cut     Cut
	cuts    int // number of cuts that lost connections
	dials   int
	open    int
}

// New returns a network without faults.
func New() *Network {
	return &Network{accept: make(chan net.Conn), closed: make(chan struct{}), changed: make(chan struct{})}
}

// Set cuts the network, or restores it with the zero value.
func (n *Network) Set(cut Cut) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = cut
	n.begin(0)
}

// begin counts bytes of clients, and starts the cut after the last of them. The caller holds the lock.
func (n *Network) begin(bytes int) {
	n.cut.After -= bytes
	if n.cut.After <= 0 && n.cut.Lost {
		n.cut.Lost = false
		n.cuts++
	}
	close(n.changed)
	n.changed = make(chan struct{})
}

// Waits reports whether a cut has not taken effect yet, because too few bytes were sent.
func (n *Network) Waits() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cut.After > 0
}

// Dials returns the number of connection attempts.
func (n *Network) Dials() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials
}

// Open returns the number of connections with at least one open side.
func (n *Network) Open() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.open
}

// now returns the cut that is in effect, and a channel that is closed when the cut changes.
func (n *Network) now() (Cut, int, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut.After > 0 {
		return Cut{}, n.cuts, n.changed
	}
	return n.cut, n.cuts, n.changed
}

// Dial connects to the server. It can be used with grpc.WithContextDialer.
func (n *Network) Dial(ctx context.Context, _ string) (net.Conn, error) {
	n.mu.Lock()
	n.dials++
	n.mu.Unlock()
	for {
		cut, era, changed := n.now()
		if cut.Refused {
			return nil, &net.OpError{Op: "dial", Net: "memory", Err: syscall.ECONNREFUSED}
		}
		if !cut.Silent {
			return n.connect(ctx, era)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (n *Network) connect(ctx context.Context, era int) (net.Conn, error) {
	client, atClient := net.Pipe()
	atServer, server := net.Pipe()
	select {
	case n.accept <- server:
	case <-n.closed:
		return nil, &net.OpError{Op: "dial", Net: "memory", Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	n.mu.Lock()
	n.open++
	n.mu.Unlock()
	var terminated sync.WaitGroup
	terminated.Go(func() { n.carry(atClient, atServer, era, true) })
	terminated.Go(func() { n.carry(atServer, atClient, era, false) })
	go func() {
		terminated.Wait()
		n.mu.Lock()
		defer n.mu.Unlock()
		n.open--
	}()
	return client, nil
}

// carry forwards what it reads until either side is closed.
func (n *Network) carry(from, to net.Conn, era int, fromClient bool) {
	queue := make(chan []byte, 4096) // like the buffers of a host
	go func() {
		defer close(queue)
		for {
			buffer := make([]byte, 4096)
			count, err := from.Read(buffer)
			if err != nil {
				return
			}
			queue <- buffer[:count]
		}
	}()
	for data := range queue {
		if !n.pass(era, len(data), fromClient) {
			continue
		}
		if _, err := to.Write(data); err != nil {
			break
		}
	}
	_ = from.Close()
	for range queue { // until it is closed
	}
	if n.pass(era, 0, false) {
		_ = to.Close()
	}
}

// pass waits until bytes have arrived, and reports whether they arrive.
func (n *Network) pass(era, bytes int, fromClient bool) bool {
	for arrived := false; !arrived; {
		cut, now, changed := n.now()
		if now != era {
			return false
		}
		var slow <-chan time.Time // nil blocks forever
		if !cut.Silent {
			slow = time.After(time.Duration(bytes) * cut.PerByte)
		}
		select {
		case <-slow:
			arrived = true
		case <-changed:
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if fromClient && n.cut.After > 0 {
		n.begin(bytes)
	}
	return true
}

// Accept implements net.Listener.
func (n *Network) Accept() (net.Conn, error) {
	select {
	case conn := <-n.accept:
		return conn, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It restores the network.
func (n *Network) Close() error {
	n.once.Do(func() { close(n.closed) })
	n.Set(Cut{})
	return nil
}

// Addr implements net.Listener.
func (n *Network) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
