package bulk

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// ErrNotSent means that there is nothing to commit, because not everything that QEMU wrote was sent.
var ErrNotSent = errors.New("the memory was not sent completely")

// Sender is the source's side of the channels.
type Sender struct {
	secure Secure
	cancel context.CancelFunc
	work   sync.WaitGroup

	sent   chan struct{} // closed when QEMU has closed the memory channel
	memory *tls.Conn     // set before sent is closed
	broken chan error    // receives once if the memory channel fails instead
}

// NewSender returns a sender without connections. The caller must close it.
func NewSender(secure Secure) *Sender {
	return &Sender{secure: secure, cancel: func() {}, sent: make(chan struct{}), broken: make(chan error, 1)}
}

// Source connects a socket of QEMU to a channel of the target.
type Source struct {
	// From is the listener that QEMU connects to.
	From net.Listener
	// To is the address of the target's channel.
	To string
}

// Start carries the data that QEMU sends until Close is called. It must be called only once.
func (s *Sender) Start(channels map[Channel]Source) {
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	for channel, source := range channels {
		s.work.Go(func() { s.accept(ctx, channel, source) })
	}
}

func (s *Sender) accept(ctx context.Context, channel Channel, source Source) {
	defer closeWith(ctx, source.From)()
	for {
		qemu, err := source.From.Accept()
		if err != nil {
			return
		}
		if channel == Disk { // each disk has its own connection
			s.work.Go(func() {
				_ = s.carry(ctx, channel, source.To, qemu)
				_ = qemu.Close()
			})
			continue
		}
		err = s.carry(ctx, channel, source.To, qemu)
		_ = qemu.Close()
		if err != nil {
			s.broken <- err
		}
		return
	}
}

// carry copies data from QEMU to the target. For disks it also copies in the other direction.
func (s *Sender) carry(ctx context.Context, channel Channel, address string, qemu net.Conn) error {
	defer closeWith(ctx, qemu)()
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	// Close the connection without a close_notify, which would be a commit.
	abort := context.AfterFunc(ctx, func() { _ = raw.Close() })
	out := &gathering{Conn: raw}
	conn, err := s.secure(ctx, out, channel)
	if err != nil {
		abort()
		return err
	}
	if channel == Memory {
		return s.carryMemory(conn, out, qemu)
	}
	defer func() { _ = raw.Close() }()
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(qemu, conn)
		closeWrite(qemu)
	}()
	if err = out.send(conn, qemu); err == nil {
		err = conn.CloseWrite()
		<-back
	}
	return err
}

// carryMemory leaves the connection open, because only Commit may close it properly.
func (s *Sender) carryMemory(conn *tls.Conn, out *gathering, qemu net.Conn) error {
	if err := out.send(conn, qemu); err != nil {
		_ = conn.NetConn().Close()
		return err
	}
	s.memory = conn
	close(s.sent)
	return nil
}

// Sent waits until everything that QEMU has written was sent. It returns ErrNotSent if that fails.
func (s *Sender) Sent(ctx context.Context) error {
	select {
	case <-s.sent:
		return nil
	case err := <-s.broken:
		return fmt.Errorf("%w: %w", ErrNotSent, err)
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrNotSent, context.Cause(ctx))
	}
}

// Commit waits until everything that QEMU has written was sent. It then signals the target that it may switch
// over, and waits for the target's confirmation. If Commit returns ErrNotSent, the signal was not sent. After any
// other error, and after the context is canceled, it may have been sent.
func (s *Sender) Commit(ctx context.Context) error {
	if err := s.Sent(ctx); err != nil {
		return err
	}
	defer closeWith(ctx, s.memory.NetConn())()
	if err := s.memory.CloseWrite(); err != nil {
		return fmt.Errorf("committing: %w", err)
	}
	if _, err := io.Copy(io.Discard, s.memory); err != nil { // the target closes its side, too
		return fmt.Errorf("waiting for the target to confirm the commit: %w", err)
	}
	return nil
}

// Close cuts the channels that are not committed and waits until they are closed.
func (s *Sender) Close() {
	s.cancel()
	s.work.Wait()
}
