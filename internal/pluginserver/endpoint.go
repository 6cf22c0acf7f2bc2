package pluginserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millwright-dev/millwright/driver/plugin"
	"github.com/millwright-dev/millwright/internal/connlimit"
)

// Endpoint is where drivers connect. Make one with one of the functions; [Server.Serve] closes it.
type Endpoint struct {
	listener    net.Listener
	credentials credentials.TransportCredentials
}

// maxConnections is the maximum number of connections of an endpoint, including those in the handshake.
// maxPerAddress is that of one address, so that one that floods a port leaves it to others.
const maxConnections, maxPerAddress = 256, 64

// bounded returns an endpoint that closes connections over the limits immediately.
func bounded(listener net.Listener, perAddress int, credentials credentials.TransportCredentials) *Endpoint {
	return &Endpoint{listener: connlimit.Listen(listener, maxConnections, perAddress), credentials: credentials}
}

// String returns the address for logs.
func (e *Endpoint) String() string {
	return e.listener.Addr().Network() + "://" + e.listener.Addr().String()
}

// Close closes the endpoint, for one that is not served.
func (e *Endpoint) Close() error { return e.listener.Close() }

// Socket returns an endpoint at a unix socket of mode 0600: only processes of the same user, and root,
// may use it. A socket that another process has left there is replaced; one at which a process
// listens is not, and neither is any other file.
func Socket(path string) (*Endpoint, error) {
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// A socket's file gets the mode that the socket has when it is bound.
	private := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		var failure error
		err := socket.Control(func(fd uintptr) { failure = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, failure)
	}}
	listener, err := private.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	return bounded(listener, maxConnections, insecure.NewCredentials()), nil
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("%s exists, and is no socket", path)
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("another process listens at %s", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// TLS returns an endpoint at a TCP address, for clients with a certificate of the authority. Its common
// name or a DNS name of it is the kind of driver that it is for.
func TLS(address string, files plugin.Files) (*Endpoint, error) {
	config, err := files.Server()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	return bounded(listener, maxPerAddress, credentials.NewTLS(config)), nil
}

// ErrNotLoopback is returned by Loopback for other addresses.
var ErrNotLoopback = errors.New("only loopback addresses, such as 127.0.0.1:5000, are allowed without TLS")

// CheckLoopback returns an error, which may be ErrNotLoopback, if Loopback refuses an address.
func CheckLoopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return ErrNotLoopback
	}
	return nil
}

// Loopback returns an endpoint at a TCP address of the host itself, without TLS: every process of
// the host can register, and gets the Secrets of its kind.
func Loopback(address string) (*Endpoint, error) {
	if err := CheckLoopback(address); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	return bounded(listener, maxPerAddress, insecure.NewCredentials()), nil
}
