// Package outage counts timeouts that start over when an API server was unavailable or the clock was set.
package outage

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
)

// Target is the part of target.Cluster that a Monitor uses. Its client must read unstructured objects from the
// API server and not from a cache.
type Target interface {
	Client() client.Client
	Ready() bool
	ReadySince() time.Time
}

// Options configure a Monitor. All but Target and Steady are required.
type Options struct {
	// Control is a client of the control cluster. It must read unstructured objects from the API server and not
	// from a cache.
	Control client.Client
	// Namespace is the namespace of the Machines.
	Namespace string
	// Target is nil if nodes do not join a target cluster.
	Target Target
	Clock  clock.PassiveClock
	// Steady measures elapsed time even if Clock is set. It defaults to Clock, whose times have a monotonic
	// reading unless it is a fake.
	Steady clock.PassiveClock
	// Period is the time between two requests to API servers that respond.
	Period time.Duration
	// Timeout is how long a server must be unresponsive to count as unavailable.
	Timeout time.Duration
}

// Monitor checks whether the API servers respond when a pass counts a timeout, at most once per period for all
// Machines. While a server is unavailable, the state of nodes is unknown, and when it is back, kubelets may not
// have reported yet. For this reason, timeouts do not expire during an outage and start over afterwards. They
// also start over when the wall clock of this host is set, because their beginnings are measured by other
// clocks.
type Monitor struct {
	opts  Options
	begun time.Time

	mu      sync.Mutex
	servers []server
	clock   setting
	last    time.Time // the last check; zero before the first one
	asking  bool      // a check is in progress without the lock
}

// server is one API server.
type server struct {
	ask func(ctx context.Context) error
	// failing is since when the server has been unresponsive. It is zero if it responds.
	failing time.Time
	// back is when the server responded again after an outage. It is zero if there was none.
	back time.Time
}

// ResponseTimeout is how long an API server may take to respond. A server that does not respond is checked
// failingPeriods times within the outage timeout.
const (
	ResponseTimeout = 5 * time.Second
	failingPeriods  = 5
)

// asker returns a function that requests an object from an API server. The object need not exist.
func asker(c client.Client, kind schema.GroupVersionKind, key client.ObjectKey) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, ResponseTimeout)
		defer cancel()
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(kind)
		return client.IgnoreNotFound(c.Get(ctx, key, object))
	}
}

// ProbeName is the name of the objects that are requested. They do not exist.
const ProbeName = "millwright-nobody"

// New creates the Monitor of a process. No timeout starts before the Monitor's creation.
func New(opts Options) *Monitor {
	m := &Monitor{opts: opts, begun: opts.Clock.Now(), clock: newSetting(opts.Clock, opts.Steady)}
	m.servers = append(m.servers, server{ask: asker(opts.Control, v1alpha1.SchemeGroupVersion.WithKind("Machine"), client.ObjectKey{Namespace: opts.Namespace, Name: ProbeName})})
	if opts.Target != nil {
		m.servers = append(m.servers, server{ask: asker(opts.Target.Client(), corev1.SchemeGroupVersion.WithKind("Node"), client.ObjectKey{Name: ProbeName})})
	}
	return m
}

// state is the knowledge of a Monitor.
type state struct {
	// responding reports that all API servers respond.
	responding bool
	// now is the time of the observation.
	now time.Time
	// back is when the last server came back or the clock was set. It is zero if neither happened.
	back time.Time
	// again is the time until the next observation is due while a timeout is counted.
	again time.Duration
}

// retryDelay is the time until a pass observes again if another pass was waiting for responses.
const retryDelay = time.Second

// observe checks the servers if the last check is older than the given age, or if it is due anyway. Only the
// pass that starts a check waits for it. Meanwhile, the servers count as unresponsive for other passes.
func (m *Monitor) observe(ctx context.Context, age time.Duration) state {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.last.IsZero() || m.opts.Clock.Since(m.last) >= min(age, m.interval())
	if old && !m.asking {
		m.ask(ctx)
		old = false
	}
	made := state{now: m.opts.Clock.Now(), responding: !m.last.IsZero(), again: m.interval()}
	m.clock.look(ctx, made.now, m.opts.Timeout)
	made.back = m.clock.set
	for _, s := range m.servers {
		made.responding = made.responding && s.failing.IsZero()
		if s.back.After(made.back) {
			made.back = s.back
		}
	}
	if made.responding && old {
		made.responding, made.again = false, retryDelay
	}
	return made
}

// Follow checks the servers as observe does if they were checked before. It is for passes that cannot count
// their timeouts yet, because they would otherwise miss an outage.
func (m *Monitor) Follow(ctx context.Context) {
	m.mu.Lock()
	asked := !m.last.IsZero()
	m.mu.Unlock()
	if asked {
		m.observe(ctx, m.opts.Period)
	}
}

// ask checks all servers. It releases the lock during the check.
func (m *Monitor) ask(ctx context.Context) {
	m.asking = true
	m.mu.Unlock()
	failures := make([]error, len(m.servers))
	for i, s := range m.servers {
		failures[i] = s.ask(ctx)
	}
	m.mu.Lock()
	m.asking = false
	if ctx.Err() != nil {
		return // the process is terminating; the result is meaningless
	}
	m.last = m.opts.Clock.Now()
	for i := range m.servers {
		m.servers[i].record(m.last, failures[i], m.opts.Timeout)
	}
}

func (s *server) record(now time.Time, failure error, timeout time.Duration) {
	switch {
	case failure != nil && s.failing.IsZero():
		s.failing = now
	case failure == nil && !s.failing.IsZero():
		if now.Sub(s.failing) >= timeout {
			s.back = now
		}
		s.failing = time.Time{}
	}
}

// interval returns the time between two checks.
func (m *Monitor) interval() time.Duration {
	for _, s := range m.servers {
		if !s.failing.IsZero() {
			return min(m.opts.Period, max(m.opts.Timeout/failingPeriods, time.Second))
		}
	}
	return m.opts.Period
}

// Countdown is the remaining time of a timeout.
type Countdown struct {
	// Left is the remaining time, which is not positive once the timeout has expired. Wait is the time until the
	// next check is due.
	Left, Wait time.Duration
}

// Over reports whether the timeout has expired.
func (d Countdown) Over() bool { return d.Left <= 0 }

// Countdown counts a timeout from its beginning, or from the latest time when no manager was running, an API
// server was unavailable, or this host's clock was set. An expired timeout is confirmed by a check that is not
// older than ResponseTimeout.
func (m *Monitor) Countdown(ctx context.Context, begin time.Time, timeout timeouts.Timeout) Countdown {
	counted := m.count(m.observe(ctx, m.opts.Period), begin, timeout)
	if counted.Over() {
		return m.count(m.observe(ctx, ResponseTimeout), begin, timeout)
	}
	return counted
}

// Seen is the state of the API servers as a Monitor has seen it.
type Seen struct {
	// Responding reports that all of them respond and that the target's cache has synced.
	Responding bool
	// Begun is when this process became able to work.
	Begun time.Time
	// Back is when this process became able to work again after an outage, or after the clock was set. It is
	// zero if it saw neither.
	Back time.Time
	// Again is the time until the next observation is due.
	Again time.Duration
}

// See returns the state of the API servers. It checks them if the last check is older than age.
func (m *Monitor) See(ctx context.Context, age time.Duration) Seen {
	known := m.observe(ctx, min(age, m.opts.Period))
	seen := Seen{Responding: known.responding, Begun: m.begun, Back: known.back, Again: known.again}
	if m.opts.Target == nil {
		return seen
	}
	seen.Responding = seen.Responding && m.opts.Target.Ready()
	if ready := m.opts.Target.ReadySince(); ready.After(seen.Begun) {
		seen.Begun = ready
		if ready.Sub(m.begun) >= m.opts.Timeout && ready.After(seen.Back) {
			seen.Back = ready // the target was unavailable when the process started
		}
	}
	return seen
}

func (m *Monitor) count(seen state, begin time.Time, timeout timeouts.Timeout) Countdown {
	target := m.opts.Target
	if !seen.responding || target != nil && !target.Ready() {
		return Countdown{Left: max(timeout.Duration, time.Second), Wait: max(min(timeout.Duration, seen.again), time.Second)}
	}
	var ready time.Time
	if target != nil {
		ready = target.ReadySince()
	}
	left := timeout.Deadline(begin, m.begun, seen.back, ready).Sub(seen.now)
	return Countdown{Left: left, Wait: max(min(left, seen.again), 0)}
}
