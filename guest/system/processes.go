package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Processes starts programs, and waits for all children of process 1, including those whose parents have
// exited. Use NewProcesses, once.
type Processes struct {
	logf func(format string, arguments ...any)

	mu      sync.Mutex
	running map[int]chan syscall.WaitStatus
	started chan struct{}
}

// NewProcesses begins to wait for children. No other part of the program may start any.
func NewProcesses(logf func(format string, arguments ...any)) *Processes {
	p := &Processes{logf: logf, running: map[int]chan syscall.WaitStatus{}, started: make(chan struct{}, 1)}
	go p.reap()
	return p
}

func (p *Processes) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if errors.Is(err, syscall.ECHILD) {
			<-p.started
			continue
		}
		if err != nil {
			continue // EINTR
		}
		p.mu.Lock()
		if ended := p.running[pid]; ended != nil {
			ended <- status
			delete(p.running, pid)
		}
		p.mu.Unlock()
	}
}

// Program is a program to run.
type Program struct {
	// Args are its path and its arguments.
	Args []string
	// Env are variables in addition to PATH. It is optional.
	Env []string
	// Log is the file to which its output is appended.
	Log string
	// Enabled is a file without which Keep does not run the program. If empty, Keep always runs it.
	Enabled string
}

const path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Run runs a program until it exits. It returns an error if the program cannot be started, fails, or is killed
// because the context is done.
func (p *Processes) Run(ctx context.Context, program Program) error {
	pid, ended, err := p.start(program)
	if err != nil {
		return fmt.Errorf("starting %s: %w", program.Args[0], err)
	}
	select {
	case status := <-ended:
		if status.ExitStatus() != 0 {
			return fmt.Errorf("%s exited with %s: %s", program.Args[0], describe(status), lastLine(program.Log))
		}
		return nil
	case <-ctx.Done():
		_ = unix.Kill(pid, unix.SIGKILL) // it may have exited
		<-ended
		return ctx.Err()
	}
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "signal " + status.Signal().String()
	}
	return fmt.Sprintf("status %d", status.ExitStatus())
}

func (p *Processes) start(program Program) (int, <-chan syscall.WaitStatus, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = null.Close() }()
	log, err := os.OpenFile(program.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = log.Close() }()
	// The lock is held until the child is known, or reap would not find it.
	p.mu.Lock()
	defer p.mu.Unlock()
	pid, err := syscall.ForkExec(program.Args[0], program.Args, &syscall.ProcAttr{
		Dir: "/", Env: append([]string{path}, program.Env...), Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, nil, err
	}
	ended := make(chan syscall.WaitStatus, 1)
	p.running[pid] = ended
	select {
	case p.started <- struct{}{}:
	default:
	}
	return pid, ended, nil
}

// longestLine is how much of a log is read, in bytes.
const longestLine = 2 << 10

// lastLine returns the last line of a log, or "" if there is none.
func lastLine(log string) string {
	lines := strings.Split(strings.TrimSpace(end(log)), "\n")
	return lines[len(lines)-1]
}

// end returns the end of a log, or "" if there is none.
func end(log string) string {
	file, err := os.Open(log)
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	content, err := io.ReadAll(io.NewSectionReader(file, max(0, end-longestLine), longestLine))
	if err != nil {
		return ""
	}
	return string(content)
}

// Pauses before a service is restarted.
const (
	restartPause = time.Second
	longestPause = 30 * time.Second
	// steady is how long a service must run for the pauses to start over.
	steady = time.Minute
)

// Keep runs a service, and restarts it, until the context is done. A service that has exited and is not enabled
// was stopped: it runs again as soon as it is enabled.
func (p *Processes) Keep(ctx context.Context, service Program) {
	pause := restartPause
	for {
		if err := exists(ctx, service.Enabled); err != nil {
			return
		}
		began := time.Now()
		err := p.Run(ctx, service)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > steady || !service.enabled() {
			pause = restartPause
		}
		if !service.enabled() {
			continue
		}
		p.logf("services: starting %s again in %s: %v", service.Args[0], pause, err)
		_ = wait(ctx, pause)
		pause = min(2*pause, longestPause)
	}
}

// enabled reports whether the program must run.
func (p Program) enabled() bool {
	if p.Enabled == "" {
		return true
	}
	_, err := os.Stat(p.Enabled)
	return err == nil
}

// exists waits until all files exist, or returns the error of ctx if that is done earlier. An empty path always
// exists.
func exists(ctx context.Context, paths ...string) error {
	for _, path := range paths {
		for path != "" {
			if _, err := os.Stat(path); err == nil {
				break
			}
			if err := wait(ctx, pollInterval); err != nil {
				return err
			}
		}
	}
	return nil
}

// wait returns nil after the duration, or the error of ctx if that is done earlier.
func wait(ctx context.Context, duration time.Duration) error {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
