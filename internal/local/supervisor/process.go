package supervisor

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

// process is a running process of a child.
type process interface {
	// Signal sends a signal; none is sent to a process that has ended.
	Signal(os.Signal) error
	// Ended is closed when the process has ended.
	Ended() <-chan struct{}
	// Status says how it ended, for people. It must not be called before.
	Status() string
}

// osProcess is a child process of this one.
type osProcess struct {
	command *exec.Cmd
	ended   chan struct{}
	err     error // set before ended is closed
}

// startProcess starts the command. The kernel sends the process deathSignal when this
// process dies, or nothing if it is 0.
func startProcess(command *exec.Cmd, deathSignal syscall.Signal) (*osProcess, error) {
	// A group of its own keeps a terminal's Ctrl-C away from the process: the order of
	// stopping is ours.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: deathSignal}
	p := &osProcess{command: command, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The parent whose death counts is the thread that forked, so this thread has
		// to live as long as the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := command.Start()
		started <- err
		if err == nil {
			p.err = command.Wait()
			close(p.ended)
		}
	}()
	return p, <-started
}

func (p *osProcess) Signal(signal os.Signal) error { return p.command.Process.Signal(signal) }
func (p *osProcess) Ended() <-chan struct{}        { return p.ended }

func (p *osProcess) Status() string {
	if p.err == nil {
		return "exit status 0"
	}
	return p.err.Error()
}

// launch starts the program once.
func (p *Program) launch() (process, error) {
	log, err := os.OpenFile(p.LogFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own descriptor
	command := exec.Command(p.Path, p.Args...)
	command.Dir = p.Dir
	command.Stdout, command.Stderr = log, log
	started, err := startProcess(command, p.DeathSignal)
	if err != nil {
		return nil, err
	}
	if err := writeIdentity(p.PIDFile, command.Process.Pid); err != nil {
		started.Signal(syscall.SIGKILL) // fails only if it has ended
		<-started.Ended()
		return nil, fmt.Errorf("recording the process ID: %w", err)
	}
	return started, nil
}

// lastLines returns the end of the log file, for messages about an unexpected end.
func (p *Program) lastLines() string {
	const lines, size = 5, 4096
	file, err := os.Open(p.LogFile)
	if err != nil {
		return ""
	}
	defer file.Close()
	if _, err := file.Seek(-size, io.SeekEnd); err != nil {
		file.Seek(0, io.SeekStart) // it is shorter than that
	}
	content, err := io.ReadAll(file)
	if err != nil {
		return ""
	}
	all := strings.Split(string(bytes.TrimSpace(content)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
