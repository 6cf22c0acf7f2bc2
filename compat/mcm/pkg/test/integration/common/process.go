package common

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
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

// stop ends the process.
func (p *process) stop() error {
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if err := <-p.ended; err != nil {
		return fmt.Errorf("a controller did not end in order (%w), see %s", err, p.log)
	}
	return nil
}
