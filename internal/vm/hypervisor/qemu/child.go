package qemu

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stderrLimit is how much of QEMU's complaints is kept, in bytes.
const stderrLimit = 8 << 10

// child is QEMU as a process of the operating system.
type child struct {
	command *exec.Cmd
	stderr  lockedTail
	killed  atomic.Bool
	// reaped is closed when the process is gone and its status is known.
	reaped chan struct{}
}

// spawn starts a process that inherits the files from descriptor 3 on.
func spawn(program string, args []string, files []*os.File) (*child, error) {
	c := &child{command: exec.Command(program, args...), reaped: make(chan struct{})}
	c.stderr.limit = stderrLimit
	c.command.Stderr = &c.stderr
	c.command.ExtraFiles = files
	// QEMU needs no variable of ours, and some may hold secrets that are no
	// business of the process that faces the guest.
	c.command.Env = []string{"LC_ALL=C"}
	// Should anything hold on to the standard error, it shall not hold us up.
	c.command.WaitDelay = time.Second
	c.command.SysProcAttr = &syscall.SysProcAttr{
		// A guest without its hypervisor process would run with nobody to stop it.
		Pdeathsig: syscall.SIGKILL,
		// Ctrl-C in a terminal is for us; we end the guest in an orderly way.
		Setpgid: true,
	}
	started := make(chan error)
	go c.run(started)
	if err := <-started; err != nil {
		return nil, startFailure(program, err)
	}
	return c, nil
}

func startFailure(program string, err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrNotInstalled, err)
	}
	return fmt.Errorf("starting %s: %w", program, err)
}

// run starts the process and stays until its end. The kernel sends the parent-death
// signal when the *thread* that forked ends, so this goroutine keeps its thread for
// as long as the child lives.
func (c *child) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := c.command.Start()
	started <- err
	if err != nil {
		return
	}
	_ = c.command.Wait() // what it tells is in ProcessState too
	close(c.reaped)
}

// kill ends the process at once, if it still runs.
func (c *child) kill() {
	c.killed.Store(true)
	_ = c.command.Process.Kill() // the only error is that it has ended already
}

// exit is valid once the process was reaped.
func (c *child) exit(shutdown string) Exit {
	status := c.command.ProcessState.Sys().(syscall.WaitStatus)
	exit := Exit{
		Reason: explain(status, c.killed.Load(), shutdown),
		Code:   status.ExitStatus(),
		Stderr: unexpected(c.stderr.String()),
	}
	if status.Signaled() {
		exit.Signal = status.Signal()
	}
	return exit
}

// lockedTail is a tail that exec's goroutine writes and others read.
type lockedTail struct {
	mu sync.Mutex
	tail
}

// Write implements io.Writer.
func (t *lockedTail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.write(p)
	return len(p), nil
}

// String is what was kept.
func (t *lockedTail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.bytes())
}

// channels are the sockets that connect us with QEMU: ours, and QEMU's ends.
type channels struct {
	ours   [inherited]net.Conn
	theirs [inherited]*os.File
}

// openChannels makes all sockets or none.
func openChannels() (*channels, error) {
	c := &channels{}
	for i := range inherited {
		var err error
		if c.ours[i], c.theirs[i], err = socketPair(); err != nil {
			c.close()
			return nil, fmt.Errorf("making a socket for QEMU: %w", err)
		}
	}
	return c, nil
}

func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	theirs := os.NewFile(uintptr(fds[1]), "QEMU's end")
	ours := os.NewFile(uintptr(fds[0]), "our end")
	conn, err := net.FileConn(ours) // works on a copy
	_ = ours.Close()
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return conn, theirs, nil
}

// closeTheirs must happen once QEMU has its ends: only then does its end show on
// ours.
func (c *channels) closeTheirs() {
	for _, file := range c.theirs {
		if file != nil {
			_ = file.Close()
		}
	}
}

func (c *channels) close() {
	c.closeTheirs()
	for _, conn := range c.ours {
		if conn != nil {
			_ = conn.Close()
		}
	}
}
