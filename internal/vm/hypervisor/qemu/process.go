// Package qemu runs one virtual machine with QEMU.
//
// [Start] runs the machine of a [Config] as a child process. The guest is stopped until [Process.Cont] is called.
// QEMU inherits three sockets: QMP, the serial console and the guest agent's port. No other process can connect to
// them, and they are not subject to the limit on the length of socket paths.
//
// The package does not decide whether a machine may run. QEMU's lock protects a disk against a second machine: see
// [ErrDiskLocked].
package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/child"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/console"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qmp"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/tail"
	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
)

const (
	// DefaultProgram is looked up in PATH if no other program is set.
	DefaultProgram = "qemu-system-" + Architecture

	// Architecture is the processor architecture of every guest, independent of the host. MachineType belongs to it.
	Architecture = "x86_64"

	// stderrLimit is the maximum number of bytes of QEMU's standard error that are kept.
	stderrLimit = 8 << 10

	// endLimit is how long QEMU may take to exit after it has closed the guest's network.
	endLimit = 10 * time.Second
)

// Process is a running QEMU with its machine. It is safe for concurrent use.
type Process struct {
	name      string
	child     *child.Process
	stderr    *tail.Writer
	killed    atomic.Bool
	monitor   *qmp.Client
	console   *console.Console
	agent     net.Conn
	direct    *dialer.Direct // nil without a network
	directory *os.File       // the directory with the sockets of a migration, or nil
	disks     []string       // the nodes that the guest can write to
	screen    chan struct{}  // holds a value during a screenshot; nil without a display
	announces bool           // whether Cont announces the guest
	emulated  bool           // whether QEMU translates the guest's instructions
	held      atomic.Bool    // whether Send has stopped the guest for the copy

	events observer
	done   chan struct{}
	exit   Exit // written before done is closed
}

// Start runs QEMU with the guest stopped before its first instruction. The disks are locked from then on. The
// program is a path, or a name in PATH; the default is DefaultProgram. The context applies only to Start itself.
// The kernel kills QEMU when this process terminates.
//
// Errors: ErrNotInstalled, *StartError with QEMU's own message, ErrDiskLocked, or the context's cause. After an
// error, no process is running.
func Start(ctx context.Context, program string, config Config) (*Process, error) {
	if program == "" {
		program = DefaultProgram
	}
	sockets, err := openChannels()
	if err != nil {
		return nil, err
	}
	interfaces, err := openInterfaces(config.Interfaces)
	if err != nil {
		sockets.close()
		return nil, err
	}
	p := &Process{
		name: config.Name, stderr: &tail.Writer{Limit: stderrLimit}, events: newObserver(), done: make(chan struct{}),
		disks: []string{rootNode}, announces: len(config.Interfaces) > 0,
		emulated: config.Processor.Accelerator == TCG,
	}
	if config.Display {
		p.screen = make(chan struct{}, 1)
	}
	for _, disk := range config.Disks.Data {
		p.disks = append(p.disks, dataNode(disk.Serial))
	}
	if err = p.openDirectory(config.Sockets); err == nil {
		err = p.spawn(exec.Command(program, arguments(config)...), p.inheritance(sockets, interfaces, config.Disks.Locks))
	}
	if err != nil {
		p.closeDirectory()
		interfaces.close()
		sockets.close()
		return nil, err
	}
	sockets.closeTheirs()
	interfaces.pass(config.Interfaces)
	p.monitor, err = qmp.New(ctx, sockets.ours[monitorFD-firstFD], p.events.observe)
	if err != nil {
		defer p.closeDirectory()
		defer interfaces.close()
		defer sockets.close()
		return nil, p.failedStart(ctx, err)
	}
	p.console = console.New(sockets.ours[consoleFD-firstFD])
	p.agent = sockets.ours[agentFD-firstFD]
	filtered := make(chan struct{})
	go p.filter(p.attach(config.Network, sockets), sockets, filtered)
	go p.awaitEnd(filtered, interfaces)
	return p, nil
}

// spawn starts the process. It inherits the files, starting at descriptor 3.
func (p *Process) spawn(command *exec.Cmd, files []*os.File) error {
	command.Stderr = p.stderr
	command.ExtraFiles = files
	// The environment of this process may contain secrets.
	command.Env = []string{"LC_ALL=C"}
	// Another process may keep standard error open.
	command.WaitDelay = time.Second
	started, err := child.Start(command, syscall.SIGKILL)
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrNotInstalled, err)
	}
	if err != nil {
		return fmt.Errorf("starting %s: %w", command.Path, err)
	}
	p.child = started
	return nil
}

// failedStart makes sure that no process is running. If QEMU exited by itself, the error contains its message.
func (p *Process) failedStart(ctx context.Context, reason error) error {
	if errors.Is(reason, qmp.ErrDisconnected) {
		// QEMU closes the connection when it exits.
		select {
		case <-p.child.Ended():
			return &StartError{Exit: p.explainExit()}
		case <-ctx.Done():
		}
	}
	p.kill()
	<-p.child.Ended()
	return fmt.Errorf("starting QEMU: %w", reason)
}

// awaitEnd waits until the process has exited and all of its output was read.
func (p *Process) awaitEnd(filtered <-chan struct{}, interfaces *guestInterfaces) {
	<-p.monitor.Done()
	wake(p.events.changed)
	wake(p.events.moved)
	<-p.child.Ended()
	interfaces.close()
	<-p.console.Done()
	<-filtered
	_ = p.agent.Close() // the other side is closed
	p.closeDirectory()
	p.exit = p.explainExit()
	close(p.done)
}

func (p *Process) explainExit() Exit {
	status := p.child.Status()
	exit := Exit{
		Reason: explain(status, p.killed.Load(), p.events.shutdown),
		Code:   status.ExitStatus(),
		Stderr: unexpected(string(p.stderr.Bytes())),
	}
	if status.Signaled() {
		exit.Signal = status.Signal()
	}
	return exit
}

// PID returns the process ID of QEMU. Once Done is closed, another process may have the same ID.
func (p *Process) PID() int { return p.child.PID() }

// Done is closed when the process has exited. After that, the guest executes no instructions and writes nothing to
// its disks, and the console's output is complete.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit returns how the process exited. It is the zero value until Done is closed.
func (p *Process) Exit() Exit {
	select {
	case <-p.done:
		return p.exit
	default:
		return Exit{}
	}
}

// Console returns the guest's serial port.
func (p *Process) Console() *console.Console { return p.console }

// Agent returns the host's side of the guest agent's port; see AgentPort. There is only one connection. It is
// closed when the process exits.
func (p *Process) Agent() net.Conn { return p.agent }

// Monitor returns the QMP connection, for commands without a method of Process.
func (p *Process) Monitor() *qmp.Client { return p.monitor }

// Cont starts the guest, or continues it after Stop. It returns ErrDiskLocked if QEMU has released the lock of a
// disk and cannot acquire it again.
func (p *Process) Cont(ctx context.Context) error {
	p.held.Store(false)
	err := p.monitor.Execute(ctx, "cont", nil, nil)
	var refusal *qmp.Error
	if errors.As(err, &refusal) && lockError.MatchString(refusal.Description) {
		return fmt.Errorf("%w: %w", ErrDiskLocked, err)
	}
	if err == nil && p.announces {
		err = p.announce(ctx)
	}
	return err
}

// Stop stops the guest's CPUs. When it returns, the guest's writes have reached the disk.
func (p *Process) Stop(ctx context.Context) error {
	p.held.Store(false)
	return p.stop(ctx)
}

func (p *Process) stop(ctx context.Context) error { return p.monitor.Execute(ctx, "stop", nil, nil) }

// Reset resets the machine: the guest boots again with the same process, console and disks. A stopped guest stays
// stopped.
func (p *Process) Reset(ctx context.Context) error {
	return p.monitor.Execute(ctx, "system_reset", nil, nil)
}

// Powerdown presses the power button. If the guest shuts down, the process exits with GuestShutdown.
func (p *Process) Powerdown(ctx context.Context) error {
	return p.monitor.Execute(ctx, "system_powerdown", nil, nil)
}

// Quit makes QEMU exit without asking the guest, and waits until the process has exited. After an error, QEMU may
// still exit. If the process has already exited, Quit returns nil.
func (p *Process) Quit(ctx context.Context) error {
	err := p.monitor.Execute(ctx, "quit", nil, nil)
	if err != nil && !errors.Is(err, qmp.ErrDisconnected) {
		return err
	}
	return p.wait(ctx)
}

// Kill kills QEMU with SIGKILL and waits until the process has exited. If the process has already exited, Kill
// returns nil.
func (p *Process) Kill(ctx context.Context) error {
	p.kill()
	return p.wait(ctx)
}

func (p *Process) kill() {
	p.killed.Store(true)
	_ = p.child.Signal(syscall.SIGKILL) // fails only if QEMU has already exited
}

func (p *Process) wait(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for QEMU to exit: %w", context.Cause(ctx))
	}
}

// channels are the sockets between this process and QEMU.
type channels struct {
	ours   [inherited]net.Conn
	theirs [inherited]*os.File
}

// openChannels opens all sockets or none.
func openChannels() (*channels, error) {
	c := &channels{}
	for i := range inherited {
		var err error
		if c.ours[i], c.theirs[i], err = socketPair(unix.SOCK_STREAM); err != nil {
			c.close()
			return nil, fmt.Errorf("opening a socket for QEMU: %w", err)
		}
	}
	return c, nil
}

func socketPair(kind int) (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	theirs := os.NewFile(uintptr(fds[1]), "QEMU's end")
	ours := os.NewFile(uintptr(fds[0]), "our end")
	conn, err := net.FileConn(ours) // duplicates the descriptor
	_ = ours.Close()
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return conn, theirs, nil
}

// closeTheirs closes QEMU's side of the sockets in this process after QEMU has inherited them, so that the
// connections end when QEMU exits.
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
