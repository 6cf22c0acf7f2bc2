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

// The sockets of a migration. The machine that sends its state connects to them, and the one that receives it listens
// on them.
const (
	MemorySocket Socket = "migration-memory"
	DiskSocket   Socket = "migration-disk"
)

// openFolder opens the directory with the sockets, if there is one.
func (p *Process) openFolder(path string) error {
	if path == "" {
		return nil
	}
	folder, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("opening the directory of QEMU's sockets: %w", err)
	}
	p.folder = folder
	return nil
}

func (p *Process) closeFolder() {
	if p.folder != nil {
		_ = p.folder.Close()
	}
}

// inheritance returns the files that QEMU inherits, from firstFD on: the ones that it uses, and then the locks.
func (p *Process) inheritance(sockets *channels, locks []*os.File) []*os.File {
	files := sockets.theirs[:inherited:inherited]
	if p.folder != nil {
		files = append(files, p.folder)
	}
	return append(files, locks...)
}

// path returns the path of a socket in QEMU's process. The address of a unix socket is limited to 107 bytes, and the
// directory's path may be longer.
func (s Socket) path() string { return fmt.Sprintf("/proc/self/fd/%d/%s", folderFD, s) }

// path returns the path of a socket in this process.
func (p *Process) path(s Socket) (string, error) {
	if p.folder == nil {
		return "", errors.New("this machine has no sockets for a migration")
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", p.folder.Fd(), s), nil
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
	// The path refers to another file after the machine has terminated.
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	return listener, nil
}
