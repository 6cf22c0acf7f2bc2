package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"github.com/millwright-dev/millwright/internal/child"
)

// process is the measured manager: a shell whose process ID also belongs to its process group.
type process struct {
	*child.Process
	log  string
	port int
}

// start starts the manager.
func (w *setup) start() (err error) {
	w.manager, err = startManager(w.options.manager, w.dir, strings.NewReplacer(
		"{kubeconfig}", w.kubeconfig, "{target-kubeconfig}", w.cp.Kubeconfig(), "{namespace}", namespace, "{sim}", w.simDirectory(), "{health-timeout}", w.load.healthTimeout.String(),
	))
	return err
}

// stop stops the manager.
func (w *setup) stop() error {
	stopping := w.manager
	w.manager = nil // its process ID may be reused
	return stopping.stop()
}

// startManager runs the command of the options, in which it replaces the other placeholders, too. It appends the
// manager's output to a log in dir.
func startManager(o managerOptions, dir string, others *strings.Replacer) (*process, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	line := strings.NewReplacer(
		"{millwright}", o.millwright, "{qps}", strconv.Itoa(o.qps), "{burst}", strconv.Itoa(o.burst), "{port}", strconv.Itoa(port),
	).Replace(others.Replace(o.command))
	out, err := os.OpenFile(filepath.Join(dir, "manager.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the process has its own descriptor
	command := exec.Command("sh", "-c", line)
	command.Env, command.Stdout, command.Stderr = o.environment, out, out
	started, err := child.Start(command, syscall.SIGKILL)
	if err != nil {
		return nil, fmt.Errorf("cannot start the manager: %w", err)
	}
	return &process{Process: started, log: out.Name(), port: port}, nil
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close() // no client has connected
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// alive returns a context that is canceled, with a cause, when the manager exits.
func (p *process) alive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-p.Ended():
			cancel(fmt.Errorf("the manager exited (%s); the last lines of its log:\n%s", p, p.lastLines()))
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

// stopLimit is the time that the manager may take to exit after SIGTERM.
const stopLimit = 45 * time.Second

// stop terminates all processes of the group with SIGTERM, and with SIGKILL if necessary.
func (p *process) stop() error {
	_ = syscall.Kill(-p.PID(), syscall.SIGTERM) // they may have exited
	var err error
	select {
	case <-p.Ended():
	case <-time.After(stopLimit):
		err = errors.New("the manager did not exit after SIGTERM and was killed")
	}
	// The shell may have left processes behind.
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL)
	<-p.Ended()
	return err
}

// usage is the resource usage of processes.
type usage struct {
	cpu time.Duration
	// peak is the peak resident memory in bytes: the sum of the peaks of all processes. resident is the current one.
	peak, resident int64
}

// tick is the unit of CPU times in /proc: USER_HZ, which is 100 on all platforms of Go.
const tick = 10 * time.Millisecond

// usageOf adds up the usage of the selected processes. The usage of exited children counts for the processes that
// waited for them.
func usageOf(selects func(procfs.ProcStat) bool) (usage, error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return usage{}, fmt.Errorf("cannot list processes: %w", err)
	}
	var sum usage
	for _, process := range processes {
		stat, err := process.Stat()
		if err != nil || !selects(stat) {
			continue // it has exited, or is another process
		}
		sum.cpu += tick * time.Duration(int(stat.UTime)+int(stat.STime)+stat.CUTime+stat.CSTime)
		if status, err := process.NewStatus(); err == nil {
			sum.peak += int64(status.VmHWM)
			sum.resident += int64(status.VmRSS)
		}
	}
	return sum, nil
}

// profileSeconds is the length of a CPU profile. A phase has several; pprof adds them up: go tool pprof
// DIR/scale-up-cpu-*.pb.gz.
const profileSeconds = 5

// beginProfiles takes CPU profiles of the manager until end is called, which takes a heap profile. It takes none in a
// phase that starts the manager, which does not serve them yet.
func (w *setup) beginProfiles(ctx context.Context, p phase) (end func() error) {
	dir := w.options.manager.profiles
	if dir == "" || p.starts {
		return func() error { return nil }
	}
	stop, result := make(chan struct{}), make(chan error, 1)
	take := func(name, page string) error {
		return fetch(ctx, fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/%s", w.manager.port, page), filepath.Join(dir, p.name+"-"+name+".pb.gz"))
	}
	go func() {
		err := os.MkdirAll(dir, 0o755)
		for i := 1; err == nil; i++ {
			err = take(fmt.Sprintf("cpu-%d", i), fmt.Sprintf("profile?seconds=%d", w.profileSeconds))
			select {
			case <-stop:
				result <- err
				return
			default:
			}
		}
		result <- err
	}()
	return func() error {
		close(stop)
		return errors.Join(<-result, take("heap", "heap?gc=1"))
	}
}

// fetch downloads a page to a file.
func fetch(ctx context.Context, url, path string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("cannot take a profile: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("cannot take a profile: %s returned %s", url, response.Status)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, response.Body)
	return errors.Join(err, file.Close())
}
