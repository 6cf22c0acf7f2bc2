// Package child starts child processes that the kernel ends when this process dies.
package child

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// Process is a child process. It is safe for concurrent use.
type Process struct {
	command *exec.Cmd
	ended   chan struct{}
}

// Start starts the command. The kernel sends deathSignal to the child when this process
// dies; 0 means no signal. The child is the leader of a new session, so that a terminal's
// Ctrl-C does not reach it. It sets SysProcAttr of the command.
func Start(command *exec.Cmd, deathSignal syscall.Signal) (*Process, error) {
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: deathSignal}
	p := &Process{command: command, ended: make(chan struct{})}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run starts the child and waits for its end. The kernel sends the death signal when the
// thread that forked ends, so the thread has to live as long as the child.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.command.Start()
	started <- err
	if err == nil {
		_ = p.command.Wait() // the status is in ProcessState
		close(p.ended)
	}
}

// PID returns the process ID. Once Ended is closed it may be that of another process.
func (p *Process) PID() int { return p.command.Process.Pid }

// Signal sends a signal. Errors: os.ErrProcessDone if the child has ended.
func (p *Process) Signal(signal os.Signal) error { return p.command.Process.Signal(signal) }

// Ended is closed when the child has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Status returns how the child ended. It must not be called before Ended is closed.
func (p *Process) Status() syscall.WaitStatus {
	return p.command.ProcessState.Sys().(syscall.WaitStatus)
}

// String describes how the child ended, such as "exit status 1" or "signal: killed". It must
// not be called before Ended is closed.
func (p *Process) String() string { return p.command.ProcessState.String() }
