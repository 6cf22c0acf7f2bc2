// Package unixsocket opens Unix sockets that only the user of this process may access, at paths of any length.
package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listen listens on a socket with mode 0600. It replaces the socket of an earlier process, so no other user may have
// access to the directory. The file of the socket remains after Close.
func Listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("removing an old socket: %w", err)
	}
	var listener net.Listener
	err := atShortPath(path, func(short string) error {
		// The file has the mode that the socket has when it is bound.
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
	// By the time of Close, the short path refers to a different file.
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	return listener, nil
}

// Dial connects to a socket. If there is none, the error is an fs.ErrNotExist.
func Dial(ctx context.Context, path string) (conn net.Conn, err error) {
	err = atShortPath(path, func(short string) error {
		conn, err = new(net.Dialer).DialContext(ctx, "unix", short)
		return err
	})
	return conn, err
}

// atShortPath calls a function with a short path of the same file, because the address of a socket is limited to 107
// bytes. The path is valid only during the call. Other systems than Linux have no short path.
func atShortPath(path string, do func(short string) error) error {
	if runtime.GOOS != "linux" {
		return do(path)
	}
	directory, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { _ = directory.Close() }() // it was only read
	return do(fmt.Sprintf("/proc/self/fd/%d/%s", directory.Fd(), filepath.Base(path)))
}
