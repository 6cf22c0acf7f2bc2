package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/millwright-dev/millwright/internal/local/folder"
	"github.com/millwright-dev/millwright/internal/local/proc"
)

// lockFD is the number under which a process inherits the lock. It is high, so that a
// program that hands files to its own children from number 3 on does not replace it there.
const lockFD = 100

// Command is what is started.
type Command struct {
	// Path is the executable.
	Path string
	// Args are its arguments, without the name of the program.
	Args []string
	// Env is its whole environment, as NAME=value.
	Env []string
	// Log is the file to which its output is appended. It is created if need be.
	Log string
}

// Exit is how a process ended.
type Exit struct {
	// Known is false if the process was not a child of this one, so that its exit status
	// cannot be read.
	Known bool
	// Code is the exit status; 128 and the signal's number if a signal ended it. It is
	// 0 unless Known.
	Code int
	// Signal is what ended the process, 0 if it exited.
	Signal syscall.Signal
	// Time is when its end was noticed.
	Time time.Time
}

// Process is a started process with its descendants. Its methods may be called
// from any goroutine.
type Process struct {
	dir     string
	record  record
	process *os.Process // nil if it had ended when it was found
	killed  atomic.Bool

	ended chan struct{}
	exit  Exit // set before ended is closed, as is err
	err   error
}

// Start starts a process in the folder, which must exist; it becomes the working folder.
// It must not be called twice for a folder: see Open. An error means that no process
// runs, but one that may have run must not be started again: then Open does not answer
// ErrNeverStarted.
//
// The process is the leader of a new session. It lives on when this process ends.
func Start(dir string, c Command, now time.Time) (*Process, error) {
	lock, err := folder.Lock(lockPath(dir))
	if err != nil {
		return nil, err
	}
	defer lock.Close() // the process has it then
	p := &Process{dir: dir, record: record{Began: now}, ended: make(chan struct{})}
	if err := p.record.write(dir); err != nil {
		return nil, fmt.Errorf("recording the start: %w", err)
	}
	command, err := p.spawn(c, lock)
	if err != nil {
		// Nothing ran: the next attempt is a first one.
		return nil, errors.Join(err, os.Remove(recordPath(dir)))
	}
	if err := p.begin(command); err != nil {
		return nil, err
	}
	return p, nil
}

// spawn makes the process.
func (p *Process) spawn(c Command, lock *os.File) (*exec.Cmd, error) {
	output, err := os.OpenFile(c.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer output.Close() // the process has its own descriptor
	command := exec.Command(c.Path, c.Args...)
	command.Dir, command.Env = p.dir, c.Env
	command.Stdout, command.Stderr = output, output
	command.ExtraFiles = make([]*os.File, lockFD-3+1) // the others are closed
	command.ExtraFiles[lockFD-3] = lock
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.Path, err)
	}
	return command, nil
}

// begin records the number of the new process, and waits for its end in the background.
func (p *Process) begin(command *exec.Cmd) error {
	p.process, p.record.PID = command.Process, command.Process.Pid
	err := p.record.write(p.dir)
	go func() {
		_ = command.Wait() // what it tells is in ProcessState too
		status := command.ProcessState.Sys().(syscall.WaitStatus)
		exit := Exit{Known: true, Code: status.ExitStatus()}
		if status.Signaled() {
			exit.Signal = status.Signal()
			exit.Code = 128 + int(exit.Signal)
		}
		p.finish(exit)
	}()
	if err != nil {
		p.Kill()
		<-p.ended
		return fmt.Errorf("recording the process ID: %w", err)
	}
	return nil
}

// Open finds what was started in the folder by this process or an earlier one. Without
// an error there was a process, which may have ended. It must be called once only, and
// not after Start.
//
// Errors: ErrNeverStarted, or what kept it from finding out.
func Open(dir string) (*Process, error) {
	r, err := readRecord(dir)
	if err != nil {
		return nil, err
	}
	p := &Process{dir: dir, record: r, ended: make(chan struct{})}
	members, err := settledMembers(dir)
	if err != nil {
		return nil, err
	}
	if len(members) == 0 {
		close(p.ended)
		return p, nil
	}
	if p.process, err = p.adopt(members); err != nil {
		return nil, err
	}
	go p.watch()
	return p, nil
}

// adopt returns a handle of the process that was started, nil if only descendants of it
// live.
func (p *Process) adopt(members []int) (*os.Process, error) {
	for _, pid := range members {
		stat, err := proc.Stat(pid)
		if errors.Is(err, proc.ErrNotFound) || err == nil && stat.Session != pid {
			continue
		}
		if err != nil {
			return nil, err
		}
		process, err := openMember(p.dir, pid)
		if errors.Is(err, proc.ErrNotFound) {
			continue
		}
		if err != nil || p.record.PID == pid {
			return process, err
		}
		p.record.PID = pid // a crash was before it could be recorded
		return process, p.record.write(p.dir)
	}
	return nil, nil
}

// watch waits for the end of a process that is not a child of ours.
func (p *Process) watch() {
	if p.process != nil {
		p.err = proc.AwaitEnd(context.Background(), p.process)
	}
	p.finish(Exit{})
}

// finish ends what the process left behind, and closes ended.
func (p *Process) finish(exit Exit) {
	p.err = errors.Join(p.err, killAll(p.dir))
	exit.Time = time.Now()
	p.exit = exit
	close(p.ended)
}

// PID is the number of the process, 0 if it was lost in a crash. Once Ended is closed
// it may be another process's.
func (p *Process) PID() int { return p.record.PID }

// Began is when the process was started.
func (p *Process) Began() time.Time { return p.record.Began }

// Ended is closed when the process and its descendants have ended. Descendants that
// outlive the process itself are killed.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Exit says how the process ended. It must not be called before Ended is closed. The
// error means that a descendant of the process may still run.
func (p *Process) Exit() (Exit, error) { return p.exit, p.err }

// Killed reports whether Kill was called.
func (p *Process) Killed() bool { return p.killed.Load() }

// Terminate asks the process to end (SIGTERM). Its descendants get no signal.
func (p *Process) Terminate() { p.signal(syscall.SIGTERM) }

// Kill kills the process and its descendants.
func (p *Process) Kill() {
	p.killed.Store(true)
	p.signal(syscall.SIGKILL)
}

func (p *Process) signal(signal syscall.Signal) {
	if p.process != nil {
		p.process.Signal(signal) // fails only if it has ended
	}
}
