// Package program runs millwright as a separate process in tests.
//
// The test binary itself is the program, so that tests start and kill the real program
// without a build:
//
//	func TestMain(m *testing.M) {
//		program.Main()
//		os.Exit(m.Run())
//	}
package program

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"github.com/millwright-dev/millwright/internal/cli"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// asProgram in its environment makes a test binary be the program.
const asProgram = "MILLWRIGHT_TEST_AS_PROGRAM"

// Environment is what a script sets for the test binary to be the program.
const Environment = asProgram + "=1"

// Main runs the program and exits, if this process is to be the program; otherwise it does
// nothing. A hypervisor is one, too: it has no environment but its own.
func Main() {
	if os.Getenv(asProgram) != "" || os.Getenv(vmpb.EnvSpec) != "" {
		os.Exit(cli.Main(cli.Program{Version: "test", Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr}))
	}
}

// Command is the program with arguments, not started yet. It dies with the test.
func Command(ctx context.Context, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, os.Args[0], args...)
	command.Env = append(os.Environ(), Environment)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return command
}

// Run runs the program to its end, and returns what it printed and its exit status.
func Run(t *testing.T, args ...string) (text string, status int) {
	t.Helper()
	command := Command(t.Context(), args...)
	out, err := command.CombinedOutput()
	if command.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), command.ProcessState.ExitCode()
}

// Process is a running millwright, or another program that tests run like it.
type Process struct {
	// Output collects what it prints.
	Output Output
	t      *testing.T
	cmd    *exec.Cmd
	done   chan struct{}
	err    error
}

// Start starts the program. Whoever starts it ends it.
func Start(t *testing.T, args ...string) *Process {
	t.Helper()
	return StartOther(t, Command(context.Background(), args...))
}

// StartOther starts another program in the same way. It should die with the test, too.
func StartOther(t *testing.T, command *exec.Cmd) *Process {
	t.Helper()
	p := &Process{t: t, done: make(chan struct{}), cmd: command}
	p.cmd.Stdout, p.cmd.Stderr = &p.Output, &p.Output
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p
}

// PID is the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode is its exit status, once it has ended; -1 if a signal ended it.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Kill ends the process at once, and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may be gone already
	<-p.done
}

// stopLimit is how long an orderly end may take.
const stopLimit = 2 * time.Minute

// Stop ends the process in order, by SIGTERM. That it does not end, or not well, fails the
// test.
func (p *Process) Stop() {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may be gone already
	if err := p.Wait(); err != nil {
		p.t.Errorf("%s did not end in order: %v", p.cmd, err)
	}
}

// Wait waits until the process has ended, and returns how: nil for status 0. A process
// that does not end is killed, and fails the test.
func (p *Process) Wait() error {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(stopLimit):
		p.t.Errorf("%s does not end", p.cmd)
		p.Kill()
	}
	return p.err
}

// Output collects what a process prints.
type Output struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buffer.Write(p)
}

// String is all of it so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buffer.String()
}

// Tail is the last lines of it.
func (o *Output) Tail(lines int) string {
	all := strings.Split(o.String(), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Running is a process of this machine.
type Running struct {
	PID int
	// Args is its command line.
	Args string
}

// Processes returns the processes that belong to the "millwright up" of a folder and whose
// command line contains the words.
func Processes(t *testing.T, dir, words string) []Running {
	t.Helper()
	processes, err := procfs.AllProcs()
	if err != nil {
		t.Fatal(err)
	}
	var found []Running
	for _, process := range processes {
		args, _ := process.CmdLine() // a process that ended has neither
		environment, _ := process.Environ()
		line := strings.Join(args, " ")
		own := strings.Contains(line, dir) || strings.Contains(strings.Join(environment, "\n"), vmpb.EnvRoot+"="+dir)
		if own && strings.Contains(line, words) {
			found = append(found, Running{process.PID, line})
		}
	}
	return found
}
