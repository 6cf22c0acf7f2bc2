// Package bulk carries the bulk traffic of a live migration between the sockets of two QEMUs,
// through TLS.
//
// There is a channel for memory and devices, and one for the disks, with a connection for each. The
// end of the memory's channel has a meaning: an end in order is the source's commit, after which its
// guest cannot go on without a switchover. Anything else, as the end of the process, is none.
package bulk

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millwright-dev/millwright/internal/connlimit"
)

// Channel is what a connection is for, its protocol in the TLS handshake.
type Channel string

// The channels.
const (
	Memory Channel = "millwright-migration-memory"
	Disk   Channel = "millwright-migration-disk"
)

// ErrCut means that the memory's channel ended without the source's commit.
var ErrCut = errors.New("the connection from the source was cut")

// Secure makes a connection a TLS connection with the other side of this migration, and no other.
type Secure func(ctx context.Context, raw net.Conn, channel Channel) (*tls.Conn, error)

// Dial connects to a socket of QEMU.
type Dial func(ctx context.Context) (net.Conn, error)

// Receiver is the target's end of the channels.
type Receiver struct {
	secure Secure
	dial   map[Channel]Dial
	ports  map[Channel]net.Listener
	cancel context.CancelFunc
	work   sync.WaitGroup
	begun  atomic.Bool // any channel
	taken  atomic.Bool // the memory's channel
	end    chan error
}

// handshakeLimit is how long a client may take for its handshake.
const handshakeLimit = 10 * time.Second

// Bounds of connections in their handshake: whoever is on the network may open them.
const (
	maxAnonymous           = 64
	maxAnonymousPerAddress = 16
)

// Listen opens a port on the host for each channel that dial has. The receiver must be closed.
func Listen(host string, secure Secure, dial map[Channel]Dial) (*Receiver, error) {
	r := &Receiver{secure: secure, dial: dial, ports: map[Channel]net.Listener{}, end: make(chan error, 1)}
	for channel := range dial {
		port, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			r.closePorts()
			return nil, fmt.Errorf("listening for a migration: %w", err)
		}
		r.ports[channel] = connlimit.Listen(port, maxAnonymous, maxAnonymousPerAddress)
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	for channel, port := range r.ports {
		r.work.Go(func() { r.accept(ctx, channel, port) })
	}
	return r, nil
}

// Address is where a channel listens.
func (r *Receiver) Address(channel Channel) string { return r.ports[channel].Addr().String() }

// Begun reports whether the source has connected.
func (r *Receiver) Begun() bool { return r.begun.Load() }

// End receives once, after the end of the memory's channel: nil if the source has committed, else
// ErrCut. It is also the end if a connection of the disks' channel ends before the memory's has begun.
func (r *Receiver) End() <-chan error { return r.end }

// Close ends all connections and waits for that.
func (r *Receiver) Close() {
	r.cancel()
	r.closePorts()
	r.work.Wait()
}

func (r *Receiver) closePorts() {
	for _, port := range r.ports {
		_ = port.Close()
	}
}

// accept serves all clients of a channel. Who is not the source does not get past the handshake,
// and does not keep the source waiting.
func (r *Receiver) accept(ctx context.Context, channel Channel, port net.Listener) {
	for {
		raw, err := port.Accept()
		if err != nil {
			return
		}
		r.work.Go(func() { r.serve(ctx, channel, raw) })
	}
}

func (r *Receiver) serve(ctx context.Context, channel Channel, raw net.Conn) {
	handshake, cancel := context.WithTimeout(ctx, handshakeLimit)
	defer cancel()
	strict := newStrictConn(raw)
	conn, err := r.secure(handshake, strict, channel)
	if err != nil {
		_ = raw.Close()
		return
	}
	connlimit.Known(raw)
	r.begun.Store(true)
	if channel == Disk {
		_ = r.carry(ctx, channel, conn, strict)
		return
	}
	if r.taken.Swap(true) { // there is one connection for memory only
		_ = raw.Close()
		return
	}
	r.end <- r.carry(ctx, channel, conn, strict)
}

// carry copies between the source and QEMU. Nil means an end in order.
func (r *Receiver) carry(ctx context.Context, channel Channel, conn *tls.Conn, strict strictConn) error {
	defer closeWith(ctx, conn)()
	theirs, err := r.dial[channel](ctx)
	if err != nil {
		return fmt.Errorf("%w: connecting to QEMU: %w", ErrCut, err)
	}
	defer closeWith(ctx, theirs)()
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(conn, theirs)
		_ = conn.CloseWrite()
	}()
	err = strict.receive(theirs, conn)
	closeWrite(theirs)
	if channel == Disk {
		r.endDisk()
		<-back
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCut, err)
	}
	return nil
}

// endDisk is the end of a connection of the disks' channel by the source, which copies the disks before the memory,
// and until that has arrived.
func (r *Receiver) endDisk() {
	if !r.taken.Swap(true) {
		r.end <- fmt.Errorf("%w: the disk's channel has ended before the memory's began", ErrCut)
	}
}

// closeWith closes a connection when the context ends, or by the function that it returns.
func closeWith(ctx context.Context, conn io.Closer) func() {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	return func() {
		stop()
		_ = conn.Close()
	}
}

func closeWrite(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}
