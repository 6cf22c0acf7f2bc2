package diskserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/child"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qmp"
	"github.com/millwright-dev/millwright/internal/vm/storage"
)

const (
	// DefaultProgram is looked up in PATH if no other program is set.
	DefaultProgram = "qemu-storage-daemon"

	// stderrLimit is the maximum number of bytes of a daemon's standard error that are kept.
	stderrLimit = 8 << 10

	// startLimit is how long a daemon may take to start serving the disks.
	startLimit = 30 * time.Second
)

// The file descriptors that a daemon inherits, numbered as in its process. The locks of the disks follow.
const (
	monitorFD = iota + 3
	listenerFD
)

// daemon is a process that serves the disks for one token. Once it has terminated, nothing that was sent to it
// changes a disk, because the kernel terminates a process only after all of its system calls have returned.
type daemon struct {
	token storage.Token
	// kill kills the process without waiting.
	kill func()
	// ended is closed when the process has terminated.
	ended  chan struct{}
	stderr *output
	// socket is the path of the daemon's socket in this process.
	socket string
	ready  chan struct{} // closed when it serves the disks
}

// startDaemon starts a daemon. It does not wait until the daemon is ready.
func (s *Server) startDaemon(token storage.Token) (*daemon, error) {
	d := &daemon{
		token: token, stderr: &output{}, ready: make(chan struct{}), ended: make(chan struct{}),
		// Use a descriptor, because the directory's path may be longer than the maximum length of a socket path.
		socket: fmt.Sprintf("/proc/self/fd/%d/disks-%d", s.directory.Fd(), token),
	}
	var process *child.Process
	monitor, inherited, err := d.open()
	if err == nil {
		process, err = d.spawn(s.config.Program, s.config.Disks, append(slices.Clip(inherited), s.lockFiles()...))
	}
	for _, file := range inherited {
		_ = file.Close()
	}
	if err != nil {
		if monitor != nil {
			_ = monitor.Close()
		}
		return nil, err
	}
	d.kill = func() { _ = process.Signal(syscall.SIGKILL) } // fails only if the process has already terminated
	go d.negotiate(monitor)
	go d.watch(process, s.log)
	return d, nil
}

// open opens the sockets to the daemon.
func (d *daemon) open() (monitor net.Conn, inherited []*os.File, err error) {
	monitor, theirs, err := socketPair()
	if err != nil {
		return nil, nil, fmt.Errorf("opening a socket for the storage daemon: %w", err)
	}
	inherited = []*os.File{theirs}
	_ = os.Remove(d.socket) // left by an earlier process
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: d.socket})
	if err != nil {
		return monitor, inherited, fmt.Errorf("listening for the storage daemon: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	file, err := listener.File()
	if err = errors.Join(err, listener.Close()); err != nil {
		return monitor, inherited, fmt.Errorf("listening for the storage daemon: %w", err)
	}
	return monitor, append(inherited, file), nil
}

func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	theirs, ours := os.NewFile(uintptr(fds[1]), "the daemon's end"), os.NewFile(uintptr(fds[0]), "our end")
	conn, err := net.FileConn(ours) // duplicates the descriptor
	_ = ours.Close()
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return conn, theirs, nil
}

func (d *daemon) spawn(program string, disks []Disk, files []*os.File) (*child.Process, error) {
	command := exec.Command(program, arguments(disks)...)
	command.ExtraFiles = files
	command.Stderr = d.stderr
	command.Env = []string{"LC_ALL=C"}
	command.WaitDelay = time.Second
	started, err := child.Start(command, syscall.SIGKILL)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", program, err)
	}
	return started, nil
}

// arguments returns the daemon's command line. Its exports have the names of the disks.
func arguments(disks []Disk) []string {
	args := []string{"--chardev", fmt.Sprintf("socket,id=qmp,fd=%d", monitorFD), "--monitor", "chardev=qmp"}
	for i, d := range disks {
		node := fmt.Sprintf("disk%d", i)
		args = append(args, "--blockdev", object{
			// The format is set explicitly and never detected; see package qemu.
			"driver": "raw", "node-name": node, "discard": "unmap",
			// Writes of threads are complete once the process has terminated. Threads are the default, but the
			// default may change.
			"file": object{"driver": "file", "filename": d.Path, "aio": "threads", "locking": "on", "discard": "unmap"},
		}.json())
	}
	args = append(args, "--nbd-server", fmt.Sprintf("addr.type=fd,addr.str=%d", listenerFD))
	for i, d := range disks {
		node := fmt.Sprintf("disk%d", i)
		args = append(args, "--export", object{
			"type": "nbd", "id": node, "node-name": node, "name": d.Name, "writable": true,
		}.json())
	}
	return args
}

type object map[string]any

func (o object) json() string {
	text, err := json.Marshal(o)
	if err != nil { // impossible for maps of strings, numbers, booleans and maps
		panic(err)
	}
	return string(text)
}

// negotiate closes ready when the daemon accepts QMP commands, which it does once it has processed its command
// line. It keeps the monitor open until the daemon terminates. It kills a daemon that is not ready in time; the
// next call of Open then starts another one.
func (d *daemon) negotiate(conn net.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if _, err := qmp.New(ctx, conn, func(qmp.Event) {}); err != nil {
		d.kill()
		return
	}
	close(d.ready)
}

// watch waits until the process has terminated.
func (d *daemon) watch(process *child.Process, log *slog.Logger) {
	<-process.Ended()
	_ = os.Remove(d.socket) // the server still has its directory open
	close(d.ended)
	log.Info("the storage daemon has terminated", "token", d.token, "stderr", d.stderr.String())
}

// dial connects to the daemon.
func (d *daemon) dial(ctx context.Context) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", d.socket)
}

// awaitReady waits until the daemon serves the disks.
func (d *daemon) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	select {
	case <-d.ready:
		return nil
	case <-d.ended:
		return fmt.Errorf("the storage daemon has terminated: %s", d.stderr)
	case <-ctx.Done():
		return fmt.Errorf("waiting for the storage daemon: %w", context.Cause(ctx))
	}
}

func (d *daemon) alive() bool {
	select {
	case <-d.ended:
		return false
	default:
		return true
	}
}

// output keeps the beginning of what is written to it. It is safe for concurrent use.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p[:min(len(p), stderrLimit-o.text.Len())])
	return len(p), nil
}

// String returns the kept output on one line.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(strings.Fields(o.text.String()), " ")
}
