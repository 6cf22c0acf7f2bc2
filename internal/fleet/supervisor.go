package fleet

import (
	"context"
	"errors"
	"maps"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/millwright-dev/millwright/internal/manager"
)

// States of a namespace, in addition to those of its manager.
const (
	// stateWaiting means that the manager will start soon. Starts are limited, because a thousand namespaces may appear
	// together.
	stateWaiting manager.State = "waiting"
	// stateRefused means that the objects of the namespace are wrong.
	stateRefused manager.State = "refused"
	// stateFailed means that the manager failed, and will be restarted after a while.
	stateFailed manager.State = "failed"
	// stateStopping means that the manager stops and then releases its leases.
	stateStopping manager.State = "stopping"
)

// Starts of managers, per second and together.
const (
	startsPerSecond = 20
	startsBurst     = 20
)

// Pauses after failures. The first is doubled with each failure until a manager has run for the last.
const (
	firstPause = time.Second
	lastPause  = 5 * time.Minute
)

// supervisor runs a manager for each member, each independently of the others. At most one manager of a namespace runs
// at a time.
type supervisor struct {
	// run runs the manager of a member until the context is canceled or it fails.
	run func(ctx context.Context, of member, progress func(manager.State)) error
	// report is called for each problem and failure. It must not block.
	report func(of member, problem *problem)

	ctx     context.Context
	pace    *rate.Limiter
	running sync.WaitGroup
	mu      sync.Mutex
	workers map[string]*worker
}

// newSupervisor returns a supervisor whose managers stop when ctx is canceled.
func newSupervisor(ctx context.Context) *supervisor {
	return &supervisor{ctx: ctx, pace: rate.NewLimiter(startsPerSecond, startsBurst), workers: map[string]*worker{}}
}

// worker runs the manager of one namespace.
type worker struct {
	*supervisor
	// changed has an element if desired changed. The other fields are protected by the lock of the supervisor.
	changed chan struct{}
	desired *member // nil if the namespace must not be served
	state   manager.State
	stop    context.CancelFunc // stops the running manager
}

// set sets the members that must be served. Managers of other namespaces are stopped, and those of changed ones are
// restarted. It does not wait for them.
func (s *supervisor) set(desired map[string]member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, w := range s.workers {
		if now, ok := desired[name]; ok {
			w.change(&now)
		} else {
			w.change(nil)
		}
	}
	for name, now := range desired {
		if s.workers[name] != nil || s.ctx.Err() != nil {
			continue
		}
		w := &worker{supervisor: s, changed: make(chan struct{}, 1), desired: &now, stop: func() {}}
		s.workers[name] = w
		s.running.Go(func() { w.work(name) })
	}
}

// change sets the desired member. The caller holds the lock.
func (w *worker) change(to *member) {
	if w.desired != nil && to != nil && w.desired.key == to.key {
		w.desired = to // the namespace may have other labels
		return
	}
	if w.desired == nil && to == nil {
		return
	}
	w.desired = to
	w.stop()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// states returns the state of each namespace.
func (s *supervisor) states() map[string]manager.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	states := map[string]manager.State{}
	for name, w := range s.workers {
		states[name] = w.state
	}
	return states
}

// wait waits until all managers have stopped, which the context of the supervisor causes, or ctx is done. It returns the
// namespaces whose managers still run.
func (s *supervisor) wait(ctx context.Context) []string {
	stopped := make(chan struct{})
	go func() { s.running.Wait(); close(stopped) }()
	select {
	case <-stopped:
		return nil
	case <-ctx.Done():
		var left []string
		for name := range maps.Keys(s.states()) {
			left = append(left, name)
		}
		return left
	}
}

// work runs the manager of a namespace until the namespace must not be served.
func (w *worker) work(name string) {
	pause := firstPause
	for {
		select { // what changed before is read now
		case <-w.changed:
		default:
		}
		of, ok := w.next(name)
		if !ok {
			return
		}
		if of.problem != nil {
			w.set(stateRefused)
			w.report(of, of.problem)
			pause = firstPause
			w.sleep(0)
			continue
		}
		began := time.Now()
		problem := w.serve(of)
		if problem == nil {
			pause = firstPause
			continue
		}
		if time.Since(began) > lastPause {
			pause = firstPause
		}
		w.set(stateFailed)
		w.report(of, problem)
		w.sleep(pause)
		pause = min(2*pause, lastPause)
	}
}

// next returns the desired member. If there is none, the worker is removed, and must return.
func (w *worker) next(name string) (member, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.desired == nil || w.ctx.Err() != nil {
		delete(w.workers, name)
		return member{}, false
	}
	return *w.desired, true
}

// set sets the state.
func (w *worker) set(state manager.State) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = state
}

// sleep waits for a change, but no longer than the pause unless it is zero.
func (w *worker) sleep(pause time.Duration) {
	var elapsed <-chan time.Time
	if pause > 0 {
		elapsed = time.After(pause)
	}
	select {
	case <-w.changed:
	case <-elapsed:
	case <-w.ctx.Done():
	}
}

// serve runs the manager of a member. It returns nil if the manager was stopped because of a change.
func (w *worker) serve(of member) *problem {
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	w.mu.Lock()
	if w.desired == nil || w.desired.key != of.key {
		w.mu.Unlock()
		return nil
	}
	w.state = stateWaiting
	w.stop = func() { w.state = stateStopping; cancel() } // its callers hold the lock
	w.mu.Unlock()
	if w.pace.Wait(ctx) != nil {
		return nil
	}
	err := w.guarded(ctx, of)
	if ctx.Err() != nil {
		return nil
	}
	return problemOf(err)
}

// guarded runs the manager and returns an error if it panics.
func (w *worker) guarded(ctx context.Context, of member) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &manager.PanicError{Value: value, Stack: debug.Stack()}
		}
	}()
	return w.run(ctx, of, func(state manager.State) {
		if ctx.Err() == nil {
			w.set(state)
		}
	})
}

var errStopped = errors.New("the manager stopped without an error")

// problemOf returns the problem for the error of a manager.
func problemOf(err error) *problem {
	if err == nil {
		err = errStopped
	}
	found, known := errors.AsType[*problem](err)
	switch _, panicked := errors.AsType[*manager.PanicError](err); {
	case known:
		return found
	case panicked:
		found = problemf(ReasonPanicked, "the manager of this namespace stopped because of a bug and is restarted: %v", err)
	default:
		found = problemf(ReasonFailed, "the manager of this namespace stopped and is restarted: %v", err)
	}
	found.cause = err
	return found
}
