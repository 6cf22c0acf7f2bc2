// Package child starts child processes that the kernel terminates when this process terminates.
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

// Start starts the command. When this process terminates, the kernel sends parentDeathSignal to the child; 0
// means no signal. Systems other than Linux send none. The child is the leader of a new session, so that Ctrl-C in
// a terminal does not reach it. Start sets SysProcAttr of the command.
func Start(command *exec.Cmd, parentDeathSignal syscall.Signal) (*Process, error) {
	command.SysProcAttr = attributes(parentDeathSignal)
	p := &Process{command: command, ended: make(chan struct{})}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run starts the child and waits for it to exit. The kernel sends the signal when the thread that forked exits,
// so the thread must live as long as the child.
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

// PID returns the process ID. Once Ended is closed, it may belong to another process.
func (p *Process) PID() int { return p.command.Process.Pid }

// Signal sends a signal. It returns os.ErrProcessDone if the child has exited.
func (p *Process) Signal(signal os.Signal) error { return p.command.Process.Signal(signal) }

// Ended is closed when the child has exited.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Status returns how the child exited. It must not be called before Ended is closed.
func (p *Process) Status() syscall.WaitStatus {
	return p.command.ProcessState.Sys().(syscall.WaitStatus)
}

// String describes how the child exited, such as "exit status 1" or "signal: killed". It must not be called
// before Ended is closed.
func (p *Process) String() string { return p.command.ProcessState.String() }
