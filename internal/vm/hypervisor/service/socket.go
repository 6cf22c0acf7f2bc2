package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// ListenSocket listens on a unix socket with mode 0600. It replaces a socket that an earlier
// process left. The path may be of any length. The socket's file stays after Close.
func ListenSocket(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("removing an old socket: %w", err)
	}
	var listener net.Listener
	err := atShortPath(path, func(short string) error {
		// A socket's file gets the mode that the socket has when it is bound.
		private := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
			var failure error
			err := socket.Control(func(fd uintptr) { failure = unix.Fchmod(int(fd), 0o600) })
			return errors.Join(err, failure)
		}}
		var err error
		listener, err = private.Listen(context.Background(), "unix", short)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	// The short path means something else by the time of Close.
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	return listener, nil
}

// DialSocket returns a connection to OOBManagement and grpc.health.v1 on a unix socket. The
// path may be of any length. Errors: fs.ErrNotExist if there is no socket. It does not
// connect before the first call.
func DialSocket(path string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("looking for the socket: %w", err)
	}
	options = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the file's mode protects it
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var conn net.Conn
			err := atShortPath(path, func(short string) error {
				var err error
				conn, err = new(net.Dialer).DialContext(ctx, "unix", short)
				return err
			})
			return conn, err
		}),
	}, options...)
	return grpc.NewClient("passthrough:///hypervisor", options...)
}

// atShortPath calls a function with another path of the same file, since the address of a
// unix socket is limited to 107 bytes. It is valid during the call.
func atShortPath(path string, do func(short string) error) error {
	folder, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	return do(fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), filepath.Base(path)))
}
