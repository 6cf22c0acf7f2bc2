// Package process starts processes that may outlive their parent, and finds them again.
//
// A process has a record, NAME.json, and next to it a lock, NAME.lock. The lock is taken before the process is
// started, and the process inherits it: the kernel holds the lock as long as the process or one of its
// descendants runs. After any crash, a later parent therefore knows
//
//   - that no process was started, if there is no record;
//   - that all have exited, if the lock is free;
//   - which ones run, namely those that have the lock open.
//
// The record is written before the process exists, without its PID, and again after that:
// a crash or a full disk can lose the PID, but not the fact that there may be a process.
package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/millwright-dev/millwright/internal/child"
	"github.com/millwright-dev/millwright/internal/local/directory"
	"github.com/millwright-dev/millwright/internal/local/proc"
)

// lockFD is the descriptor of the inherited lock. It is high, so that a program that passes files to its own
// children from descriptor 3 on does not replace it.
const lockFD = 100

// Command configures a process.
type Command struct {
	// Path of the executable.
	Path string
	// Args are its arguments, without the name of the program.
	Args []string
	// Dir is its working directory.
	Dir string
	// Env is its environment, as NAME=value. If nil, that of this process is used.
	Env []string
	// Log is the file to which its output is appended. It is created if need be.
	Log string
	// DeathSignal is sent by the kernel when this process exits. If zero, no signal is sent.
	DeathSignal syscall.Signal
}

// Exit is how a process ended.
type Exit struct {
	// Known is false if the process was not a child of this one, so that its exit status
	// cannot be read.
	Known bool
	// Code is the exit status, or 128 and the signal's number. 0 unless Known.
	Code int
	// Signal is what ended the process; 0 if it exited.
	Signal syscall.Signal
	// Time is when its end was noticed.
	Time time.Time
}

// String describes the end, such as "exit status 1" or "signal: killed".
func (e Exit) String() string {
	if e.Signal != 0 {
		return "signal: " + e.Signal.String()
	}
	return fmt.Sprintf("exit status %d", e.Code)
}

// Process is a started process with its descendants. It is safe for concurrent use.
type Process struct {
	file    string // of the record
	record  record
	process interface{ Signal(os.Signal) error } // nil if it had ended when it was found
	killed  atomic.Bool

	ended chan struct{}
	exit  Exit // set before ended is closed, as is err
	err   error
}

// Start starts a process with a record at the path file, which must have the suffix .json. After an error no
// process runs, but one may have run, unless Open returns ErrNeverStarted. It returns directory.ErrLocked if the
// last process has not exited.
//
// The process is the leader of a new session.
func Start(file string, c Command, now time.Time) (*Process, error) {
	lock, err := directory.LockWithRetry(lockPath(file))
	if err != nil {
		return nil, err
	}
	defer lock.Close() // the process has it then
	p := &Process{file: file, record: record{Began: now}, ended: make(chan struct{})}
	if err := p.record.write(file); err != nil {
		return nil, fmt.Errorf("recording the start: %w", err)
	}
	started, err := spawn(c, lock)
	if err != nil {
		return nil, errors.Join(err, os.Remove(file)) // nothing ran
	}
	p.begin(started)
	return p, nil
}

func spawn(c Command, lock *os.File) (*child.Process, error) {
	output, err := os.OpenFile(c.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer output.Close() // the process has its own descriptor
	command := exec.Command(c.Path, c.Args...)
	command.Dir, command.Env = c.Dir, c.Env
	command.Stdout, command.Stderr = output, output
	command.ExtraFiles = make([]*os.File, lockFD-3+1) // the others are closed
	command.ExtraFiles[lockFD-3] = lock
	started, err := child.Start(command, c.DeathSignal)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.Path, err)
	}
	return started, nil
}

// begin records the PID of the new process, and waits for its exit in the background.
func (p *Process) begin(started *child.Process) {
	p.process, p.record.PID = started, started.PID()
	_ = p.record.write(p.file) // the process can be found without its PID, too
	go func() {
		<-started.Ended()
		status := started.Status()
		exit := Exit{Known: true, Code: status.ExitStatus()}
		if status.Signaled() {
			exit.Signal = status.Signal()
			exit.Code = 128 + int(exit.Signal)
		}
		p.finish(exit)
	}()
}

// Open finds the process that was started with this record. If it returns no error, there was a process, which
// may have exited. It must be called only once, and not after Start.
//
// It returns ErrNeverStarted, and errors of reading files and /proc.
func Open(file string) (*Process, error) {
	r, err := readRecord(file)
	if err != nil {
		return nil, err
	}
	p := &Process{file: file, record: r, ended: make(chan struct{})}
	members, err := settledMembers(file)
	if err != nil {
		return nil, err
	}
	if len(members) == 0 {
		close(p.ended)
		return p, nil
	}
	leader, err := p.adopt(members)
	if err != nil {
		return nil, err
	}
	if leader != nil {
		p.process = leader
	}
	go func() {
		if leader != nil {
			p.err = proc.AwaitEnd(leader)
		}
		p.finish(Exit{})
	}()
	return p, nil
}

// adopt returns a handle of the process that was started, or nil if only descendants of it run.
func (p *Process) adopt(members []int) (*os.Process, error) {
	for _, pid := range members {
		stat, err := proc.Stat(pid)
		if errors.Is(err, proc.ErrNotFound) || err == nil && stat.Session != pid {
			continue
		}
		if err != nil {
			return nil, err
		}
		process, err := openMember(p.file, pid)
		if errors.Is(err, proc.ErrNotFound) {
			continue
		}
		if err != nil || p.record.PID == pid {
			return process, err
		}
		p.record.PID = pid // it could not be recorded
		_ = p.record.write(p.file)
		return process, nil
	}
	return nil, nil
}

// finish terminates the remaining descendants, and closes ended.
func (p *Process) finish(exit Exit) {
	p.err = errors.Join(p.err, killAll(p.file))
	exit.Time = time.Now()
	p.exit = exit
	close(p.ended)
}

// PID returns the process ID, or 0 if it was lost in a crash. Once Ended is closed, it may belong to another
// process.
func (p *Process) PID() int { return p.record.PID }

// Began returns when the process was started.
func (p *Process) Began() time.Time { return p.record.Began }

// Ended is closed when the process and its descendants have exited. Descendants that outlive the process are
// killed.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Exit returns how the process exited. It must not be called before Ended is closed. After an error, a
// descendant of the process may still run.
func (p *Process) Exit() (Exit, error) { return p.exit, p.err }

// Killed reports whether Kill was called.
func (p *Process) Killed() bool { return p.killed.Load() }

// Terminate sends SIGTERM to the process, but not to its descendants.
func (p *Process) Terminate() { p.signal(syscall.SIGTERM) }

// Kill kills the process and its descendants.
func (p *Process) Kill() {
	p.killed.Store(true)
	p.signal(syscall.SIGKILL)
}

func (p *Process) signal(signal syscall.Signal) {
	if p.process != nil {
		_ = p.process.Signal(signal) // fails only if the process has exited
	}
}
