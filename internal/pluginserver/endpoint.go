package pluginserver

import (
	"context"
	"crypto/sha256"
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

// Endpoint is an address where drivers connect. Create one with Socket, TLS or Loopback. [Server.Serve] closes
// it.
type Endpoint struct {
	listener    net.Listener
	credentials credentials.TransportCredentials
}

// maxAnonymous limits the connections of an endpoint whose clients have no certificate, and those in the handshake.
const maxAnonymous = 256

// maxPerPeer limits the connections with one certificate. A driver has one, but may connect again before the server has
// noticed that the last connection is gone.
const maxPerPeer = 16

// bounded returns an endpoint with limits.
func bounded(listener net.Listener, inner credentials.TransportCredentials) *Endpoint {
	name := func(info credentials.TLSInfo) any { return sha256.Sum256(info.State.VerifiedChains[0][0].Raw) }
	peers := connlimit.NewCounter(maxKinds*maxPerPeer, maxPerPeer)
	return &Endpoint{connlimit.Listen(listener, maxAnonymous), connlimit.PeerCredentials(inner, peers, name)}
}

// String returns the address for logs.
func (e *Endpoint) String() string {
	return e.listener.Addr().Network() + "://" + e.listener.Addr().String()
}

// Close closes an endpoint that is not served.
func (e *Endpoint) Close() error { return e.listener.Close() }

// Socket returns an endpoint at a Unix socket with mode 0600, which only processes of the same user and of root
// can use. It replaces a socket that another process has left behind. It does not replace a socket with a
// listening process, or any other file.
func Socket(path string) (*Endpoint, error) {
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// The file of a socket gets the mode that the socket has when it is bound.
	private := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		var failure error
		err := socket.Control(func(fd uintptr) { failure = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, failure)
	}}
	listener, err := private.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	return bounded(listener, insecure.NewCredentials()), nil
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
		return fmt.Errorf("%s exists and is not a socket", path)
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("another process is listening at %s", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// TLS returns an endpoint at a TCP address for clients with a certificate of the authority. The certificate's
// common name or one of its DNS names must be the kind of driver.
func TLS(address string, files plugin.Files) (*Endpoint, error) {
	config, err := files.Server()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	return bounded(listener, credentials.NewTLS(config)), nil
}

// ErrNotLoopback is returned by Loopback for addresses that are not loopback addresses.
var ErrNotLoopback = errors.New("only loopback addresses, such as 127.0.0.1:5000, are allowed without TLS")

// CheckLoopback returns an error, such as ErrNotLoopback, if Loopback would refuse an address.
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

// Loopback returns an endpoint at a loopback TCP address, without TLS. Every process on the host can register
// and gets the Secrets of its kind.
func Loopback(address string) (*Endpoint, error) {
	if err := CheckLoopback(address); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	return bounded(listener, insecure.NewCredentials()), nil
}
