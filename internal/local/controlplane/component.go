package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
)

// component keeps one child running for as long as it is wanted.
type component struct {
	name string
	// beside is whether it runs beside the control plane and is no part of it.
	beside bool
	// launch starts a child.
	launch func() (child, error)
	// probe returns nil when the running child does its work.
	probe func(context.Context) error
	// lastLines returns the end of the child's log.
	lastLines func() string
	// grace is how long the child may take to end in an orderly way.
	grace time.Duration
	log   logr.Logger

	mu  sync.Mutex
	run *run // nil while the component is not wanted
}

// run is one period in which a component is wanted.
type run struct {
	end  context.CancelFunc // the component is wanted no longer
	kill context.CancelFunc // and shall not be given any more time
	done chan struct{}      // closed when no child runs and none will be started

	// failed is closed when the first child has ended by itself, or could not be
	// started; failure then says how.
	failed  chan struct{}
	failure error

	mu    sync.Mutex
	child child // nil while none runs
}

// start begins to supervise the component; nothing happens if it is wanted already.
func (c *component) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run != nil {
		return
	}
	killed, kill := context.WithCancel(context.Background())
	wanted, end := context.WithCancel(killed)
	c.run = &run{end: end, kill: kill, done: make(chan struct{}), failed: make(chan struct{})}
	go c.supervise(wanted, killed, c.run)
}

// stop ends the child, orderly at first, at once when the context or the grace
// period has ended. It returns when the child is gone.
func (c *component) stop(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run == nil {
		return
	}
	c.run.end()
	select {
	case <-c.run.done:
	case <-ctx.Done():
	}
	c.run.kill()
	<-c.run.done
	c.run = nil
}

// current returns the present run, nil while the component is not wanted.
func (c *component) current() *run {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.run
}

// supervise starts the child again and again until the component is not wanted.
func (c *component) supervise(wanted, killed context.Context, r *run) {
	defer close(r.done)
	var wait backoff
	for wanted.Err() == nil {
		began := time.Now()
		err := c.runOnce(wanted, killed, r)
		if wanted.Err() != nil {
			return
		}
		delay := wait.after(time.Since(began))
		c.log.Info("child ended, starting it again", "component", c.name, "reason", err.Error(),
			"after", delay, "lastLines", c.lastLines())
		r.fail(fmt.Errorf("%s: %w; the end of its log:\n%s", c.name, err, c.lastLines()))
		select {
		case <-wanted.Done():
		case <-time.After(delay):
		}
	}
}

// runOnce runs one child to its end and says how it ended.
func (c *component) runOnce(wanted, killed context.Context, r *run) error {
	started, err := c.launch()
	if err != nil {
		return fmt.Errorf("starting it: %w", err)
	}
	r.set(started)
	defer r.set(nil)
	select {
	case <-started.Ended():
	case <-wanted.Done():
		c.end(started, killed)
	}
	return errors.New(started.Status())
}

func (c *component) end(running child, killed context.Context) {
	running.Signal(syscall.SIGTERM) // it has ended then
	patience := time.NewTimer(c.grace)
	defer patience.Stop()
	select {
	case <-running.Ended():
		return
	case <-killed.Done():
	case <-patience.C:
		c.log.Info("child does not end, killing it", "component", c.name, "after", c.grace)
	}
	running.Signal(syscall.SIGKILL) // it has ended then
	<-running.Ended()
}

func (r *run) set(running child) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.child = running
}

// fail tells those who wait for the first start that there is no point in it.
// Only the supervising goroutine calls it.
func (r *run) fail(err error) {
	if r.failure == nil {
		r.failure = err
		close(r.failed)
	}
}

// errNotRunning means that no child runs: it ended, or the component is stopped.
var errNotRunning = errors.New("is not running")

// killChild ends the running child at once, as a crash would; the supervisor
// starts another. It returns when the child is gone.
func (c *component) killChild() error {
	r := c.current()
	if r == nil {
		return fmt.Errorf("%s %w", c.name, errNotRunning)
	}
	r.mu.Lock()
	running := r.child
	r.mu.Unlock()
	if running == nil {
		return fmt.Errorf("%s %w", c.name, errNotRunning)
	}
	if err := running.Signal(os.Kill); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing %s: %w", c.name, err)
	}
	<-running.Ended()
	return nil
}

// readyInterval is the time between two probes of a child that is not ready yet.
// None of the children tells when it is, so they have to be asked.
const readyInterval = 50 * time.Millisecond

// awaitReady waits until the probe succeeds. With first set, the end of the run's
// first child is an error; otherwise the supervisor is trusted to start another.
func (c *component) awaitReady(ctx context.Context, first bool) error {
	r := c.current()
	if r == nil {
		return fmt.Errorf("%s %w", c.name, errNotRunning)
	}
	failed := r.failed
	if !first {
		failed = nil
	}
	began := time.Now()
	again := time.NewTicker(readyInterval)
	defer again.Stop()
	for {
		err := c.probe(ctx)
		if err == nil {
			c.log.V(1).Info("component is ready", "component", c.name, "after", time.Since(began).Round(time.Millisecond))
			return nil
		}
		select {
		case <-again.C:
		case <-r.done:
			return fmt.Errorf("%s %w", c.name, errNotRunning)
		case <-failed:
			return r.failure
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w (last answer: %w)", c.name, ctx.Err(), err)
		}
	}
}
