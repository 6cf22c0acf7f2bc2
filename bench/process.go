package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// process is the manager that is measured: the process group of a shell.
type process struct {
	command *exec.Cmd
	log     string
	port    int
	// ended is closed when the shell has ended.
	ended chan struct{}
	err   error
}

// startManager runs the command of the options.
func startManager(o managerOptions, dir, kubeconfig, namespace string) (*process, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	line := strings.NewReplacer(
		"{millwright}", o.millwright, "{kubeconfig}", kubeconfig, "{namespace}", namespace,
		"{qps}", strconv.Itoa(o.qps), "{burst}", strconv.Itoa(o.burst), "{port}", strconv.Itoa(port),
	).Replace(o.command)
	p := &process{
		command: exec.Command("sh", "-c", line), log: filepath.Join(dir, "manager.log"), port: port,
		ended: make(chan struct{}),
	}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the process has its own descriptor
	p.command.Env, p.command.Stdout, p.command.Stderr = o.environment, out, out
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting the manager: %w", err)
	}
	return p, nil
}

func (p *process) run(started chan<- error) {
	// The process dies with the thread that started it, so the thread must live as long.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.command.Start()
	started <- err
	if err == nil {
		p.err = p.command.Wait()
		close(p.ended)
	}
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close() // nobody connected
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// group returns the process group's ID.
func (p *process) group() int { return p.command.Process.Pid }

// alive returns a context that ends, with a cause, when the manager ends.
func (p *process) alive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-p.ended:
			cancel(fmt.Errorf("the manager has ended (%s); the end of its log:\n%s", p.command.ProcessState, p.lastLines()))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

func (p *process) lastLines() string {
	const lines = 10
	content, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// stopLimit is how long the manager may take to end after SIGTERM.
const stopLimit = 45 * time.Second

// stop ends all processes of the group, by SIGKILL if SIGTERM does not.
func (p *process) stop() error {
	_ = syscall.Kill(-p.group(), syscall.SIGTERM) // they may be gone
	late := time.NewTimer(stopLimit)
	defer late.Stop()
	var err error
	select {
	case <-p.ended:
	case <-late.C:
		err = errors.New("the manager did not end, and was killed")
	}
	// The shell may have left processes behind.
	_ = syscall.Kill(-p.group(), syscall.SIGKILL)
	<-p.ended
	return err
}

// usage is what processes have used of this machine.
type usage struct {
	cpu time.Duration
	// peak is the most memory that was resident, in bytes: the sum of each process' most.
	peak int64
}

// tick is the unit of CPU times in /proc: USER_HZ, which is 100 on all platforms of Go.
const tick = 10 * time.Millisecond

// usageOf adds up what the selected processes have used. Children that have ended count for
// those that waited for them.
func usageOf(selects func(procfs.ProcStat) bool) (usage, error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return usage{}, fmt.Errorf("listing processes: %w", err)
	}
	var sum usage
	for _, process := range processes {
		stat, err := process.Stat()
		if err != nil || !selects(stat) {
			continue // it has ended, or is another
		}
		sum.cpu += tick * time.Duration(int(stat.UTime)+int(stat.STime)+stat.CUTime+stat.CSTime)
		if status, err := process.NewStatus(); err == nil {
			sum.peak += int64(status.VmHWM)
		}
	}
	return sum, nil
}
