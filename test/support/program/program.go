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
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/output"
)

// asProgram is an environment variable. It makes a test binary run as the program.
const asProgram = "MILLWRIGHT_TEST_AS_PROGRAM"

// Environment is the variable with which a script runs the test binary as the program.
const Environment = asProgram + "=1"

// Main runs the program and exits if the environment requests that; otherwise it does nothing. A hypervisor also runs
// as the program, because its environment contains only its own variables.
func Main() {
	if os.Getenv(asProgram) != "" || os.Getenv(vmpb.EnvSpec) != "" {
		os.Exit(cli.Main(cli.Program{Version: "test", Name: os.Args[0], Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr}))
	}
}

// Command returns the command of the program. The program is killed when the test exits.
func Command(ctx context.Context, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, os.Args[0], args...)
	command.Env = append(os.Environ(), Environment)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return command
}

// Run runs the program until it exits, and returns its output and exit status.
func Run(t *testing.T, args ...string) (text string, status int) {
	t.Helper()
	command := Command(t.Context(), args...)
	out, err := command.CombinedOutput()
	if command.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), command.ProcessState.ExitCode()
}

// Process is a running program.
type Process struct {
	// Output is the output of the process.
	Output Output
	t      *testing.T
	cmd    *exec.Cmd
	done   chan struct{}
	err    error
}

// Start starts the program. The caller stops it.
func Start(t *testing.T, args ...string) *Process {
	t.Helper()
	return StartOther(t, Command(context.Background(), args...))
}

// StartOther starts another program. The caller stops it.
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

// PID returns the ID of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has exited.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode returns the exit status of a process that has exited, or -1 if a signal terminated it.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Kill kills the process, and waits until it has exited.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have exited already
	<-p.done
}

// stopLimit is the maximum time between SIGTERM and the exit of the process.
const stopLimit = 2 * time.Minute

// Stop stops the process with SIGTERM. The test fails if that takes too long, or if the exit status is not 0.
func (p *Process) Stop() {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have exited already
	if err := p.Wait(); err != nil {
		p.t.Errorf("%s did not end in order: %v", p.cmd, err)
	}
}

// Wait waits until the process has exited, and returns an error unless the exit status is 0. If that takes too
// long, Wait kills the process and fails the test.
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

// Output collects the output of a process.
type Output = output.Buffer

// Running is a process of this host.
type Running struct {
	PID int
	// Args is its command line.
	Args string
}

// Processes returns the processes of the "millwright up" of a directory whose command line contains the given
// arguments.
func Processes(t *testing.T, dir, texts string) []Running {
	t.Helper()
	processes, err := procfs.AllProcs()
	if err != nil {
		t.Fatal(err)
	}
	var found []Running
	for _, process := range processes {
		args, _ := process.CmdLine() // a process that has exited has neither
		environment, _ := process.Environ()
		line := strings.Join(args, " ")
		own := strings.Contains(line, dir) || strings.Contains(strings.Join(environment, "\n"), vmpb.EnvRoot+"="+dir)
		if own && strings.Contains(line, texts) {
			found = append(found, Running{process.PID, line})
		}
	}
	return found
}

// consoleTime is how long a console is read. Reading starts with earlier output.
const consoleTime = 10 * time.Second

// LogConsoles logs the latest console output of all guests of the "millwright up" of a directory, to find out why
// a guest does not join.
func LogConsoles(t *testing.T, dir string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), consoleTime) // the test's own context is already canceled
	defer cancel()
	vms := &vmv1alpha1.VirtualMachineList{}
	c, err := (&kubeconfig.Flags{Dir: dir}).Client()
	if err == nil {
		err = c.List(ctx, vms)
	}
	if err != nil {
		t.Logf("the guests' consoles: %v", err)
	}
	for _, vm := range vms.Items {
		t.Logf("the console of VM %s:\n%s", vm.Name, console(dir, vm).Tail(20))
	}
}

// console returns the output of a VM's console, or that of the failed command.
func console(dir string, vm vmv1alpha1.VirtualMachine) *Output {
	ctx, cancel := context.WithTimeout(context.Background(), consoleTime)
	defer cancel()
	output := &Output{}
	command := Command(ctx, "vm", "console", vm.Name, "--namespace", vm.Namespace, "--dir", dir)
	command.Stdout, command.Stderr = output, output
	_ = command.Run() // it does not exit by itself
	return output
}
