// Package bulk carries the bulk traffic of a live migration between the sockets of two QEMU processes, over TLS.
//
// One channel carries the memory and the device state. Another one carries the disks, with one connection per
// disk. The way in which the memory channel is closed has a meaning. If it is closed with close_notify, the source
// has committed: its guest cannot continue without a switchover. If it is closed in any other way, for example
// because the process has terminated, the source has not committed.
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

	"github.com/millwright-dev/millwright/internal/connlimit"
)

// Channel is the purpose of a connection. It is also the name of the protocol in the TLS handshake.
type Channel string

// The channels.
const (
	Memory Channel = "millwright-migration-memory"
	Disk   Channel = "millwright-migration-disk"
)

// ErrCut means that the memory channel was closed without the source's commit.
var ErrCut = errors.New("the connection from the source was cut")

// Secure converts a connection to a TLS connection with the other side of this migration. It rejects all other
// peers.
type Secure func(ctx context.Context, raw net.Conn, channel Channel) (*tls.Conn, error)

// Dial connects to a QEMU socket.
type Dial func(ctx context.Context) (net.Conn, error)

// Receiver is the target's side of the channels.
type Receiver struct {
	secure Secure
	dial   map[Channel]Dial
	ports  map[Channel]net.Listener
	cancel context.CancelFunc
	work   sync.WaitGroup
	begun  atomic.Bool // whether the source has connected on any channel
	taken  atomic.Bool // whether the source has connected on the memory channel
	end    chan error
}

// maxAnonymous limits connections that are still in their handshake. Anyone on the network can open such connections.
const maxAnonymous = 128

// Listen opens a port on the host for each channel in dial. The caller must close the receiver.
func Listen(host string, secure Secure, dial map[Channel]Dial) (*Receiver, error) {
	r := &Receiver{secure: secure, dial: dial, ports: map[Channel]net.Listener{}, end: make(chan error, 1)}
	for channel := range dial {
		port, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			r.closePorts()
			return nil, fmt.Errorf("listening for a migration: %w", err)
		}
		r.ports[channel] = connlimit.Listen(port, maxAnonymous)
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

// End returns a channel that receives one value after the memory channel was closed: nil if the source has
// committed, or ErrCut otherwise. It also receives an error if a disk connection is closed before the memory
// channel is open.
func (r *Receiver) End() <-chan error { return r.end }

// Close closes all connections and waits until they are closed.
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

// accept serves all clients of a channel. A client that is not the source fails in the handshake and does not
// delay the source.
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
	handshake, cancel := context.WithTimeout(ctx, connlimit.HandshakeTimeout)
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

// carry copies between the source and QEMU. It returns nil if the connection was closed properly.
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
// memory, and keeps the disk connections open until the memory has arrived.
func (r *Receiver) endDisk() {
	if !r.taken.Swap(true) {
		r.end <- fmt.Errorf("%w: the disk channel was closed before the memory channel was opened", ErrCut)
	}
}

// closeWith closes a connection when the context is canceled or the returned function is called.
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
