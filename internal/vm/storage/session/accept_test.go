package session

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// crowded is a listener of a process with too many open files. After some attempts, some files are closed.
type crowded struct {
	failures int
	conns    chan net.Conn
	closed   chan struct{}
	asked    int
}

func (c *crowded) Accept() (net.Conn, error) {
	c.asked++
	if c.failures > 0 {
		c.failures--
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	select {
	case conn := <-c.conns:
		return conn, nil
	case <-c.closed:
		return nil, net.ErrClosed
	}
}

func (c *crowded) Close() error   { close(c.closed); return nil }
func (c *crowded) Addr() net.Addr { return &net.UnixAddr{} }

// A process that temporarily cannot open files serves QEMU's connections afterwards. Otherwise the guest would
// stay stopped forever.
func TestAccept_ContinuesAfterTooManyFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		qemu, end := net.Pipe()
		from := &crowded{failures: 20, conns: make(chan net.Conn, 1), closed: make(chan struct{})}
		from.conns <- end
		ctx, cancel := context.WithCancel(t.Context())
		began, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			Carry(ctx, from, func(context.Context) (net.Conn, error) {
				close(began)
				return nil, errors.New("enough")
			}, func(error) {})
		}()
		select {
		case <-began:
		case <-ended:
			t.Error("connections are no longer served")
		}
		cancel()
		<-ended
		_ = qemu.Close()
	})
}

// There is a delay between attempts, which is canceled with the context.
func TestAccept_DelaysBetweenAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := &crowded{failures: 1 << 30, closed: make(chan struct{})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if conn, err := Accept(ctx, from); err == nil || conn != nil {
			t.Errorf("accepted %v, %v", conn, err)
		}
		if from.asked < 3600 || from.asked > 3700 {
			t.Errorf("%d attempts in an hour", from.asked)
		}
	})
}
