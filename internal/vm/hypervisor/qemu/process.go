package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qmp"
)

// DefaultProgram is looked for in PATH where no other program is named.
const DefaultProgram = "qemu-system-x86_64"

// shutdownQueue is how many events may wait for the one that looks for SHUTDOWN,
// which always reads.
const shutdownQueue = 64

// RunState is QEMU's name for what the machine does at the moment.
type RunState string

// The states that a machine without a migration can be in. QEMU has more.
const (
	// Prelaunch is before the first Cont.
	Prelaunch RunState = "prelaunch"
	// Running is what it says.
	Running RunState = "running"
	// Paused is after Stop.
	Paused RunState = "paused"
)

// Process is a running QEMU with its machine. Its methods may be called from any
// goroutine.
type Process struct {
	child   *child
	monitor *qmp.Client
	console *Console
	agent   net.Conn

	done chan struct{}
	// exit is written before done is closed, and read after.
	exit Exit
}

// Start runs QEMU with the guest stopped before its first instruction; the disks are
// locked from then on. The program is a path or a name to look for in PATH; "" stands
// for DefaultProgram. The context bounds Start only.
//
// Errors: *FieldError for a configuration that makes no sense, ErrNotInstalled,
// *StartError with QEMU's own words, ErrDiskLocked, or the context's cause. After an
// error no process is left.
//
// QEMU does not outlive this process: the kernel kills it should we be killed.
func Start(ctx context.Context, program string, config Config) (*Process, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if program == "" {
		program = DefaultProgram
	}
	sockets, err := openChannels()
	if err != nil {
		return nil, err
	}
	started, err := spawn(program, arguments(config), sockets.theirs[:])
	if err != nil {
		sockets.close()
		return nil, err
	}
	sockets.closeTheirs()
	return meet(ctx, started, sockets)
}

// meet waits until QEMU can be talked to.
func meet(ctx context.Context, started *child, sockets *channels) (*Process, error) {
	monitor, err := qmp.New(ctx, sockets.ours[monitorFD-firstFD])
	if err != nil {
		defer sockets.close()
		return nil, failedStart(ctx, started, err)
	}
	p := &Process{
		child:   started,
		monitor: monitor,
		console: NewConsole(sockets.ours[consoleFD-firstFD]),
		agent:   sockets.ours[agentFD-firstFD],
		done:    make(chan struct{}),
	}
	go p.watch(monitor.Subscribe(shutdownQueue))
	return p, nil
}

// failedStart leaves no process behind, and returns what QEMU said if it ended by
// itself.
func failedStart(ctx context.Context, started *child, reason error) error {
	if errors.Is(reason, qmp.ErrDisconnected) {
		// It closes the connection by ending, so it is about to be reaped.
		select {
		case <-started.reaped:
			return &StartError{Exit: started.exit("")}
		case <-ctx.Done():
		}
	}
	started.kill()
	<-started.reaped
	return fmt.Errorf("starting QEMU: %w", reason)
}

// watch waits for the end of the process and of all that came from it.
func (p *Process) watch(events *qmp.Subscription) {
	shutdown := shutdownReason(events)
	<-p.child.reaped
	<-p.console.done
	_ = p.agent.Close() // the other end is gone
	p.exit = p.child.exit(shutdown)
	close(p.done)
}

// PID is the process ID of QEMU. Once Done is closed it may be another process's.
func (p *Process) PID() int { return p.child.command.Process.Pid }

// Done is closed when the process is gone and reaped: no instruction of the guest and
// no write to its disks comes after that. The console's last output is there.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit says how the process ended. It is the zero value until Done is closed.
func (p *Process) Exit() Exit {
	select {
	case <-p.done:
		return p.exit
	default:
		return Exit{}
	}
}

// Console is the guest's serial port.
func (p *Process) Console() *Console { return p.console }

// Agent is the host's end of the guest agent's port; see AgentPort. There is one, so
// it needs one owner. It ends with the process.
func (p *Process) Agent() net.Conn { return p.agent }

// Events starts a queue of at most size events from now on; see qmp.Client.Subscribe.
func (p *Process) Events(size int) *qmp.Subscription { return p.monitor.Subscribe(size) }

// Monitor is the connection for commands that Process has no method for.
func (p *Process) Monitor() *qmp.Client { return p.monitor }

// Cont lets the guest run: at first, or on after Stop. It is ErrDiskLocked if QEMU
// had given up the disk's lock and did not get it again.
func (p *Process) Cont(ctx context.Context) error {
	err := p.monitor.Execute(ctx, "cont", nil, nil)
	var refusal *qmp.Error
	if errors.As(err, &refusal) && tellsOfLock(refusal.Description) {
		return fmt.Errorf("%w: %w", ErrDiskLocked, err)
	}
	return err
}

// Stop holds the guest between two instructions. When it returns, the guest's writes
// have reached the disk.
func (p *Process) Stop(ctx context.Context) error {
	return p.monitor.Execute(ctx, "stop", nil, nil)
}

// Reset resets the machine: the guest boots again, with the same process, console and
// disks. A guest that is stopped stays so.
func (p *Process) Reset(ctx context.Context) error {
	return p.monitor.Execute(ctx, "system_reset", nil, nil)
}

// Powerdown presses the power button. What comes of it is up to the guest; one that
// obeys ends the process with GuestShutdown.
func (p *Process) Powerdown(ctx context.Context) error {
	return p.monitor.Execute(ctx, "system_powerdown", nil, nil)
}

// State asks what the machine does.
func (p *Process) State(ctx context.Context) (RunState, error) {
	var answer struct {
		Status RunState `json:"status"`
	}
	err := p.monitor.Execute(ctx, "query-status", nil, &answer)
	return answer.Status, err
}

// Quit asks QEMU to end without asking the guest, and waits for the process to be
// gone. Nil means that it is; after an error it may end later or never, and Kill is
// left. A process that has ended before is no error.
func (p *Process) Quit(ctx context.Context) error {
	err := p.monitor.Execute(ctx, "quit", nil, nil)
	if err != nil && !errors.Is(err, qmp.ErrDisconnected) {
		return err
	}
	return p.wait(ctx)
}

// Kill ends QEMU by SIGKILL and waits for the process to be gone. Nil means that it
// is. A process that has ended before is no error.
func (p *Process) Kill(ctx context.Context) error {
	p.child.kill()
	return p.wait(ctx)
}

func (p *Process) wait(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the end of QEMU: %w", context.Cause(ctx))
	}
}
