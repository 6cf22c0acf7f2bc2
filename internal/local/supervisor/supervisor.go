// Package supervisor keeps child processes running.
//
// A [Child] is restarted whenever it exits, until [Child.Stop]. The kernel terminates it when this process
// exits. If it survives anyway, [EndOrphan] finds it by its record.
package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/millwright-dev/millwright/internal/local/process"
)

// Program configures a child.
type Program struct {
	// Name of the child in logs and errors.
	Name string
	// Path of the executable.
	Path string
	// Args are its arguments, without its name.
	Args []string
	// Dir is its working directory.
	Dir string
	// LogFile is the file to which its output is appended.
	LogFile string
	// Record is the file that records the running process for a later parent; see package process.
	Record string
	// DeathSignal is the signal that the kernel sends to the child when this process exits. Zero means none.
	DeathSignal syscall.Signal
	// Grace is how long the child may take to exit after SIGTERM before it is killed.
	Grace time.Duration
	// Probe returns nil when the running child is ready. If nil, the child is ready once it runs.
	Probe func(context.Context) error
	// Log is the logger for unexpected exits.
	Log logr.Logger
}

// running is a running process of a child: a *process.Process.
type running interface {
	Terminate()
	Kill()
	Ended() <-chan struct{}
	Exit() (process.Exit, error)
}

// Child runs a program until it is stopped. It is safe for concurrent use.
type Child struct {
	Program
	launch func() (running, error)

	mu  sync.Mutex
	run *run // nil while the child is stopped
}

// run is the time between Start and Stop.
type run struct {
	end  context.CancelFunc // terminates the process with SIGTERM, and does not restart it
	kill context.CancelFunc // cancels the grace period
	done chan struct{}      // closed when no process runs and none will be started

	// failed is closed when the first process has exited unexpectedly, or could not be started; failure is the
	// cause.
	failed  chan struct{}
	failure error

	process atomic.Pointer[running] // nil while none is running
}

// New returns a child that is not started yet. The log file of an earlier child is kept with the suffix .1.
func New(p Program) (*Child, error) {
	if err := os.Rename(p.LogFile, p.LogFile+".1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("rotating the log of %s: %w", p.Name, err)
	}
	c := &Child{Program: p, launch: p.launch}
	if c.Probe == nil {
		c.Probe = func(context.Context) error { _, err := c.process(); return err }
	}
	return c, nil
}

// Start starts the child, and restarts it whenever it exits. It does nothing if the child is already started.
func (c *Child) Start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run != nil {
		return
	}
	killed, kill := context.WithCancel(context.Background())
	active, end := context.WithCancel(killed)
	c.run = &run{end: end, kill: kill, done: make(chan struct{}), failed: make(chan struct{})}
	go c.supervise(active, killed, c.run)
}

// Stop stops the child, first with SIGTERM, and with SIGKILL when the context or the grace period expires. It
// returns when the child has exited.
func (c *Child) Stop(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run == nil {
		return nil
	}
	c.run.end()
	select {
	case <-c.run.done:
	case <-ctx.Done():
	}
	c.run.kill()
	<-c.run.done
	c.run = nil
	if err := os.Remove(c.Record); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Started reports whether the child is started and was not stopped since.
func (c *Child) Started() bool { return c.current() != nil }

// current returns the current run, or nil while the child is stopped.
func (c *Child) current() *run {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.run
}

// restartDelays are the delays before a restart.
var restartDelays = wait.Backoff{Duration: time.Second, Factor: 2, Steps: math.MaxInt, Cap: 30 * time.Second}

// longUptime is how long a child must run for the delays to start over.
const longUptime = time.Minute

// supervise restarts a process until Stop.
func (c *Child) supervise(active, killed context.Context, r *run) {
	defer close(r.done)
	delays := restartDelays
	for active.Err() == nil {
		began := time.Now()
		err := c.runOnce(active, killed, r)
		if active.Err() != nil {
			return
		}
		if time.Since(began) >= longUptime {
			delays = restartDelays
		}
		delay, lines := delays.Step(), c.lastLines()
		c.Log.Info("child exited, restarting it", "component", c.Name, "reason", err.Error(),
			"after", delay, "lastLines", lines)
		if r.failure == nil {
			r.failure = fmt.Errorf("%s: %w; the end of its log:\n%s", c.Name, err, lines)
			close(r.failed)
		}
		select {
		case <-active.Done():
		case <-time.After(delay):
		}
	}
}

// launch starts the program once.
func (p *Program) launch() (running, error) {
	started, err := process.Start(p.Record, process.Command{
		Path: p.Path, Args: p.Args, Dir: p.Dir, Log: p.LogFile, DeathSignal: p.DeathSignal,
	}, time.Now())
	if err != nil {
		return nil, err // not an interface that holds a nil pointer
	}
	return started, nil
}

// runOnce runs one process until it exits, and returns how it exited as an error.
func (c *Child) runOnce(active, killed context.Context, r *run) error {
	started, err := c.launch()
	if err != nil {
		return fmt.Errorf("starting it: %w", err)
	}
	r.process.Store(&started)
	defer r.process.Store(nil)
	select {
	case <-started.Ended():
	case <-active.Done():
		c.end(started, killed)
	}
	exit, err := started.Exit()
	if err != nil {
		return err
	}
	return errors.New(exit.String())
}

func (c *Child) end(started running, killed context.Context) {
	started.Terminate()
	grace := time.NewTimer(c.Grace)
	defer grace.Stop()
	select {
	case <-started.Ended():
		return
	case <-killed.Done():
	case <-grace.C:
		c.Log.Info("child does not exit, killing it", "component", c.Name, "after", c.Grace)
	}
	started.Kill()
	<-started.Ended()
}

// ErrNotRunning means that no process of the child is running.
var ErrNotRunning = errors.New("is not running")

// process returns the current process. It returns ErrNotRunning if there is none.
func (c *Child) process() (running, error) {
	if r := c.current(); r != nil {
		if started := r.process.Load(); started != nil {
			return *started, nil
		}
	}
	return nil, fmt.Errorf("%s %w", c.Name, ErrNotRunning)
}

// Kill kills the running process, to simulate a crash; it is restarted after a delay. Kill returns when the
// process has exited. It returns ErrNotRunning if there is none.
func (c *Child) Kill() error {
	started, err := c.process()
	if err != nil {
		return err
	}
	started.Kill()
	<-started.Ended()
	return nil
}

// readyInterval and maxReadyInterval limit the time between two probes of a child that is not ready yet. In
// between, it is probeShare times the duration of the last probe: where processors are scarce, the child needs
// them itself. It has a maximum because a probe may also have waited: kube-apiserver accepts connections one
// and a half seconds before it responds.
const (
	readyInterval    = 50 * time.Millisecond
	maxReadyInterval = 250 * time.Millisecond
	probeShare       = 4
)

// AwaitReady waits until the probe succeeds. If first is set, the exit of the first process since Start is an
// error; otherwise AwaitReady waits for the next process.
func (c *Child) AwaitReady(ctx context.Context, first bool) error {
	r := c.current()
	if r == nil {
		return fmt.Errorf("%s %w", c.Name, ErrNotRunning)
	}
	failed := r.failed
	if !first {
		failed = nil
	}
	began := time.Now()
	for {
		asked := time.Now()
		err := c.Probe(ctx)
		if err == nil {
			c.Log.V(1).Info("component is ready", "component", c.Name, "after", time.Since(began).Round(time.Millisecond))
			return nil
		}
		select {
		case <-time.After(min(max(readyInterval, probeShare*time.Since(asked)), maxReadyInterval)):
		case <-r.done:
			return fmt.Errorf("%s %w", c.Name, ErrNotRunning)
		case <-failed:
			return r.failure
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w (last probe: %w)", c.Name, ctx.Err(), err)
		}
	}
}

// EndOrphan terminates the process that an earlier parent started with the record, and removes the record. It
// reports whether there was one. The process is killed if it has not exited within the grace period after
// SIGTERM.
func EndOrphan(ctx context.Context, record string, grace time.Duration) (bool, error) {
	left, err := process.Open(record)
	if errors.Is(err, process.ErrNeverStarted) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	found := false
	select {
	case <-left.Ended():
	default:
		found = true
		if err := end(ctx, left, grace); err != nil {
			return true, fmt.Errorf("terminating process %d: %w", left.PID(), err)
		}
	}
	if err := os.Remove(record); !errors.Is(err, os.ErrNotExist) {
		return found, err
	}
	return found, nil
}

func end(ctx context.Context, left *process.Process, grace time.Duration) error {
	left.Terminate()
	late := time.After(grace)
	for {
		select {
		case <-left.Ended():
			_, err := left.Exit()
			return err
		case <-late:
			left.Kill()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// lastLines returns the end of the log file, for messages about an unexpected exit. For a panic, it returns
// what precedes the stacks.
func (p *Program) lastLines() string {
	const lines, size = 5, 16 << 10
	file, err := os.Open(p.LogFile)
	if err != nil {
		return ""
	}
	defer file.Close()
	if _, err := file.Seek(-size, io.SeekEnd); err != nil {
		_, _ = file.Seek(0, io.SeekStart) // the file is shorter
	}
	content, err := io.ReadAll(file)
	if err != nil {
		return ""
	}
	all := strings.Split(string(bytes.TrimSpace(content)), "\n")
	all = withoutStacks(all)
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// withoutStacks removes the stacks that the Go runtime prints after a panic.
func withoutStacks(lines []string) []string {
	if !strings.HasPrefix(lines[len(lines)-1], "\t") { // a file and line of the last stack
		return lines
	}
	for at, line := range slices.Backward(lines) {
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return lines[:at+1]
		}
	}
	return lines
}
