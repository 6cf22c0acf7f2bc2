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

// process is the measured manager: a shell, whose process ID is that of its process group, too.
type process struct {
	*child.Process
	log  string
	port int
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
	out, err := os.Create(filepath.Join(dir, "manager.log"))
	if err != nil {
		return nil, err
	}
	defer out.Close() // the process has its own descriptor
	command := exec.Command("sh", "-c", line)
	command.Env, command.Stdout, command.Stderr = o.environment, out, out
	started, err := child.Start(command, syscall.SIGKILL)
	if err != nil {
		return nil, fmt.Errorf("starting the manager: %w", err)
	}
	return &process{Process: started, log: out.Name(), port: port}, nil
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close() // nobody connected
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// alive returns a context that ends, with a cause, when the manager ends.
func (p *process) alive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-p.Ended():
			cancel(fmt.Errorf("the manager has ended (%s); the end of its log:\n%s", p, p.lastLines()))
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
	_ = syscall.Kill(-p.PID(), syscall.SIGTERM) // they may be gone
	var err error
	select {
	case <-p.Ended():
	case <-time.After(stopLimit):
		err = errors.New("the manager did not end, and was killed")
	}
	// The shell may have left processes behind.
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL)
	<-p.Ended()
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

// profileSeconds is the length of a CPU profile. A phase has several; pprof adds them up:
// go tool pprof DIR/scale-up-cpu-*.pb.gz.
const profileSeconds = 5

// beginProfiles takes CPU profiles of the manager until end is called, which takes a heap profile.
func (w *setup) beginProfiles(ctx context.Context, phase string) (end func() error) {
	dir := w.options.manager.profiles
	if dir == "" {
		return func() error { return nil }
	}
	stop, result := make(chan struct{}), make(chan error, 1)
	take := func(name, page string) error {
		return fetch(ctx, fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/%s", w.manager.port, page), filepath.Join(dir, phase+"-"+name+".pb.gz"))
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

// fetch writes a page to a file.
func fetch(ctx context.Context, url, path string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("taking a profile: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("taking a profile: %s answers %s", url, answer.Status)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, answer.Body)
	return errors.Join(err, file.Close())
}
