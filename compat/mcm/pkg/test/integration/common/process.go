package common

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// logs is the directory for logs. The default is relative to a provider's test/integration/controller.
var logs = cmp.Or(os.Getenv("CONTROLLERS_TEST_LOGS"), filepath.Join(root, ".ci", "controllers-test", "logs"))

// process is a controller that the suite started.
type process struct {
	log     string
	made    bool
	command *exec.Cmd
	ended   chan error
	// gone is closed when all processes that the command started have exited.
	gone chan struct{}
}

// start starts a command.
func start(log string, line command) (*process, error) {
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return nil, err
	}
	out, err := os.Create(filepath.Join(logs, log))
	if err != nil {
		return nil, err
	}
	defer out.Close() // the process has its own descriptor
	p := &process{log: out.Name(), made: line.made, command: exec.Command("sh", "-c", "exec "+line.line), ended: make(chan error, 1), gone: make(chan struct{})}
	p.command.Stdout, p.command.Stderr = out, out
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt of the tests does not reach it
	held, holds, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer holds.Close() // the processes have their own descriptors
	p.command.ExtraFiles = []*os.File{holds}
	if err := p.command.Start(); err != nil {
		return nil, errors.Join(err, held.Close())
	}
	go func() {
		defer held.Close()
		_, _ = held.Read([]byte{0}) // no process writes, so this returns when all have exited
		close(p.gone)
	}()
	go func() { p.ended <- p.command.Wait() }()
	return p, nil
}

// runs returns an error if the process has exited.
func (p *process) runs() error {
	select {
	case err := <-p.ended:
		p.ended <- err
		return fmt.Errorf("a controller exited (%v); see %s", err, p.log)
	default:
		return nil
	}
}

// grace is the time that a controller may take to shut down.
const grace = 30 * time.Second

// stop terminates the process and all processes that it has started. It returns an error if it had to kill them.
func (p *process) stop(grace time.Duration) error {
	group := -p.command.Process.Pid
	defer func() { _ = syscall.Kill(group, syscall.SIGKILL) }()
	pid := p.command.Process.Pid
	if p.made {
		pid = group // neither make nor "go run" forwards signals
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-p.ended:
		if p.made {
			return p.awaitAll(timer.C)
		}
		if err != nil {
			return fmt.Errorf("a controller exited with an error (%w); see %s", err, p.log)
		}
		return nil
	case <-timer.C:
		_ = syscall.Kill(group, syscall.SIGKILL)
		<-p.ended
		return p.killed()
	}
}

// awaitAll waits for the processes that make has started.
func (p *process) awaitAll(tooLate <-chan time.Time) error {
	select {
	case <-p.gone:
		return nil
	case <-tooLate:
		return p.killed()
	}
}

func (p *process) killed() error {
	return fmt.Errorf("a controller did not exit in time after SIGTERM and was killed; see %s", p.log)
}
