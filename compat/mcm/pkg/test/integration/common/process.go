package common

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// logs is where the processes log, seen from a provider's test/integration/controller.
var logs = filepath.Join("..", "..", "..", ".ci", "controllers-test", "logs")

// process is a controller that the suite started.
type process struct {
	log     string
	command *exec.Cmd
	ended   chan error
}

// start starts a command of the shell.
func start(log, command string) (*process, error) {
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return nil, err
	}
	out, err := os.Create(filepath.Join(logs, log))
	if err != nil {
		return nil, err
	}
	defer out.Close() // the process has its own
	p := &process{log: out.Name(), command: exec.Command("sh", "-c", "exec "+command), ended: make(chan error, 1)}
	p.command.Stdout, p.command.Stderr = out, out
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt of the tests is not one of it
	if err := p.command.Start(); err != nil {
		return nil, err
	}
	go func() { p.ended <- p.command.Wait() }()
	return p, nil
}

// runs returns an error if the process has ended.
func (p *process) runs() error {
	select {
	case err := <-p.ended:
		p.ended <- err
		return fmt.Errorf("a controller has ended (%v), see %s", err, p.log)
	default:
		return nil
	}
}

// grace is how long a controller may take to end in order.
const grace = 30 * time.Second

// stop ends the process, and all that it has started. One that does not end by itself is killed, and the
// error says so.
func (p *process) stop(grace time.Duration) error {
	group := -p.command.Process.Pid
	defer func() { _ = syscall.Kill(group, syscall.SIGKILL) }()
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-p.ended:
		if err != nil {
			return fmt.Errorf("a controller did not end in order (%w), see %s", err, p.log)
		}
		return nil
	case <-timer.C:
		_ = syscall.Kill(group, syscall.SIGKILL)
		<-p.ended
		return fmt.Errorf("a controller did not end within %s after SIGTERM, and was killed, see %s", grace, p.log)
	}
}
