package controlplane

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

// child is a running process as its supervisor sees it.
type child interface {
	// Signal sends a signal; none is sent to a process that has ended.
	Signal(os.Signal) error
	// Ended is closed when the process has ended.
	Ended() <-chan struct{}
	// Status says how it ended, for people. It must not be called before.
	Status() string
}

// process is a child of this process.
type process struct {
	command *exec.Cmd
	ended   chan struct{}
	err     error // set before ended is closed
}

// startProcess starts the command. The kernel sends the child deathSignal when
// this process dies, or nothing if it is 0.
func startProcess(command *exec.Cmd, deathSignal syscall.Signal) (*process, error) {
	// A group of its own keeps a terminal's Ctrl-C away from the child: the
	// order of stopping is ours.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: deathSignal}
	p := &process{command: command, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The parent whose death counts is the thread that forked, so this
		// thread has to live as long as the child.
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

func (p *process) Signal(signal os.Signal) error { return p.command.Process.Signal(signal) }
func (p *process) Ended() <-chan struct{}        { return p.ended }
func (p *process) PID() int                      { return p.command.Process.Pid }

func (p *process) Status() string {
	if p.err == nil {
		return "exit status 0"
	}
	return p.err.Error()
}

// program is how one component is run: its command, its log file and its pid file.
type program struct {
	path        string
	args        []string
	dir         string
	logPath     string
	pidPath     string
	deathSignal syscall.Signal
}

// launch starts the program once. Its output is appended to its log file.
func (p program) launch() (child, error) {
	log, err := os.OpenFile(p.logPath, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own descriptor
	command := exec.Command(p.path, p.args...)
	command.Dir = p.dir
	command.Stdout, command.Stderr = log, log
	started, err := startProcess(command, p.deathSignal)
	if err != nil {
		return nil, err
	}
	if err := writeIdentity(p.pidPath, started.PID()); err != nil {
		started.Signal(syscall.SIGKILL) // it ends or has ended
		<-started.Ended()
		return nil, fmt.Errorf("writing down the process number: %w", err)
	}
	return started, nil
}

// rotate keeps the log of the last time as NAME.log.1.
func (p program) rotate() error {
	err := os.Rename(p.logPath, p.logPath+".1")
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

// lastLines returns the end of the log file, for messages about an unexpected end.
func (p program) lastLines() string {
	const lines, size = 5, 4096
	file, err := os.Open(p.logPath)
	if err != nil {
		return ""
	}
	defer file.Close()
	if _, err := file.Seek(-size, io.SeekEnd); err != nil {
		file.Seek(0, io.SeekStart) // shorter than that
	}
	content, err := io.ReadAll(file)
	if err != nil {
		return ""
	}
	all := strings.Split(string(bytes.TrimSpace(content)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
