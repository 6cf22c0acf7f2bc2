package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Socket is the name of a migration socket in Config.Sockets.
type Socket string

// The sockets of a migration. The machine that sends its state connects to them, and the machine that receives the
// state listens on them.
const (
	MemorySocket Socket = "migration-memory"
	DiskSocket   Socket = "migration-disk"
)

// openDirectory opens the directory with the sockets, if there is one.
func (p *Process) openDirectory(path string) error {
	if path == "" {
		return nil
	}
	directory, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("opening the directory of QEMU's sockets: %w", err)
	}
	p.directory = directory
	return nil
}

func (p *Process) closeDirectory() {
	if p.directory != nil {
		_ = p.directory.Close()
	}
}

// inheritance returns the files that QEMU inherits, starting at firstFD: the files that it uses, followed by the
// locks.
func (p *Process) inheritance(sockets *channels, interfaces *guestInterfaces, locks []*os.File) []*os.File {
	files := sockets.theirs[:inherited:inherited]
	if p.directory != nil {
		files = append(files, p.directory)
	}
	files = append(files, interfaces.theirs...)
	return append(files, locks...)
}

// path returns the path of a socket in QEMU's process. The address of a Unix socket is limited to 107 bytes, and
// the path of the directory may be longer.
func (s Socket) path() string { return fmt.Sprintf("/proc/self/fd/%d/%s", directoryFD, s) }

// path returns the path of a socket in this process.
func (p *Process) path(s Socket) (string, error) {
	if p.directory == nil {
		return "", errors.New("this machine has no sockets for a migration")
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", p.directory.Fd(), s), nil
}

// Dial connects to a socket that QEMU listens on.
func (p *Process) Dial(ctx context.Context, s Socket) (net.Conn, error) {
	path, err := p.path(s)
	if err != nil {
		return nil, err
	}
	return new(net.Dialer).DialContext(ctx, "unix", path)
}

// Listen listens on a socket to which QEMU connects. It replaces the socket of an earlier process.
func (p *Process) Listen(s Socket) (net.Listener, error) {
	path, err := p.path(s)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("removing an old socket: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listening for QEMU: %w", err)
	}
	// After the machine has terminated, the path refers to a different file.
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	return listener, nil
}
