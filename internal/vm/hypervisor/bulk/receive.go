// Package bulk carries the bulk traffic of a live migration between the sockets of two QEMUs, through TLS.
//
// One channel carries memory and devices, and one the disks, with a connection for each disk. The end of the memory
// channel has a meaning: a proper end (close_notify) is the source's commit, after which the source's guest cannot
// continue without a switchover. Any other end, such as the termination of the process, is not a commit.
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

// Channel is the purpose of a connection, and its protocol in the TLS handshake.
type Channel string

// The channels.
const (
	Memory Channel = "millwright-migration-memory"
	Disk   Channel = "millwright-migration-disk"
)

// ErrCut means that the memory channel ended without the source's commit.
var ErrCut = errors.New("the connection from the source was cut")

// Secure turns a connection into a TLS connection with the other side of this migration, and with no one else.
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
	begun  atomic.Bool // the source has connected on any channel
	taken  atomic.Bool // the source has connected on the memory channel
	end    chan error
}

// handshakeLimit is how long a handshake may take.
const handshakeLimit = 10 * time.Second

// Limits of connections in their handshake: anyone on the network can open them.
const (
	maxAnonymous           = 64
	maxAnonymousPerAddress = 16
)

// Listen opens a port on the host for each channel in dial. The receiver must be closed.
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

// Address returns the address on which a channel listens.
func (r *Receiver) Address(channel Channel) string { return r.ports[channel].Addr().String() }

// Begun reports whether the source has connected.
func (r *Receiver) Begun() bool { return r.begun.Load() }

// End receives once, after the end of the memory channel: nil if the source has committed, else ErrCut. It also
// receives if a connection of the disk channel ends before the memory channel has begun.
func (r *Receiver) End() <-chan error { return r.end }

// Close closes all connections and waits for that.
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

// accept serves all clients of a channel. A client that is not the source fails in the handshake, and does not delay
// the source.
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
	if r.taken.Swap(true) { // only one connection carries the memory
		_ = raw.Close()
		return
	}
	r.end <- r.carry(ctx, channel, conn, strict)
}

// carry copies between the source and QEMU. It returns nil after a proper end.
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

// endDisk fails the migration if the source closes a disk connection early. The source copies the disks before the
// memory, and keeps their connections open until the memory has arrived.
func (r *Receiver) endDisk() {
	if !r.taken.Swap(true) {
		r.end <- fmt.Errorf("%w: the disk channel ended before the memory channel began", ErrCut)
	}
}

// closeWith closes a connection when the context ends, or when the returned function is called.
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
