package session

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/vm/storage"
)

// beginLimit is the timeout for connecting and beginning a session.
const beginLimit = 10 * time.Second

// ackTimeout is how long the server may fail to acknowledge what QEMU sends before the connection is closed. QEMU
// then gets an error and reconnects when the guest is continued. The kernel's own limit is fifteen minutes.
const ackTimeout = 30 * time.Second

// Carrier is a hypervisor's side of its sessions. QEMU has one session for each connection. All fields are
// required.
type Carrier struct {
	// To is where the disks are served.
	To storage.Attachment
	// Token is the token of the hypervisor's lease.
	Token storage.Token
	// Connect authenticates a connection with the hypervisor or disk server in a Pod of this VM. It is
	// identity.Siblings.Connect.
	Connect func(ctx context.Context, raw net.Conn, pod, protocol string) (*tls.Conn, error)
	// Refused is called with the error of Begin when a session cannot be started. QEMU then gets an error and
	// reconnects when the guest is continued.
	Refused func(error)
}

// Begin starts a session. Errors: storage.ErrRevoked, which is permanent; storage.ErrNotOpen; or those of the
// connection.
func (c Carrier) Begin(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, beginLimit)
	defer cancel()
	dialer := net.Dialer{Control: limitSilence}
	raw, err := dialer.DialContext(ctx, "tcp", c.To.Address)
	if err != nil {
		return nil, err
	}
	conn, err := c.Connect(ctx, raw, c.To.Pod, Protocol)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := Ask(conn, c.Token); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// Carry calls the function Carry with this carrier.
func (c Carrier) Carry(ctx context.Context, from net.Listener) { Carry(ctx, from, c.Begin, c.Refused) }

// Carry serves QEMU's connections until the context is canceled. It then closes the listener and waits until all
// sessions have ended. It calls begin for each connection. If that fails, it calls refused with the error; QEMU
// reconnects when the guest is continued.
func Carry(ctx context.Context, from net.Listener, begin func(context.Context) (net.Conn, error), refused func(error)) {
	var sessions sync.WaitGroup
	defer sessions.Wait()
	defer context.AfterFunc(ctx, func() { _ = from.Close() })()
	for {
		qemu, err := Accept(ctx, from)
		if err != nil {
			return
		}
		sessions.Go(func() {
			conn, err := begin(ctx)
			if err != nil {
				_ = qemu.Close()
				refused(err)
				return
			}
			Join(ctx, qemu, conn)
		})
	}
}

func limitSilence(_, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(ackTimeout.Milliseconds()))
	})
	return errors.Join(err, failed)
}
