// Package outage counts timeouts that begin anew when an API server was away, or a clock was set.
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

// Target is the part of target.Cluster that a Monitor uses. Its client must not read unstructured
// objects from a cache.
type Target interface {
	Client() client.Client
	Ready() bool
	ReadySince() time.Time
}

// Options configure a Monitor. All but Target and Steady are required.
type Options struct {
	// Control is a client of the control cluster, which must not read unstructured objects from
	// a cache.
	Control client.Client
	// Namespace of the Machines.
	Namespace string
	// Target is nil if no nodes join.
	Target Target
	Clock  clock.PassiveClock
	// Steady measures time that passes, whatever Clock is set to meanwhile. Nil is Clock, whose times
	// have a monotonic reading unless it is a fake.
	Steady clock.PassiveClock
	// Period is the time between two requests to API servers that answer.
	Period time.Duration
	// Timeout is how long a server must have failed to answer to have been away.
	Timeout time.Duration
}

// Monitor asks the API servers whether they answer, when a pass counts a timeout, and at most once
// in a period for all Machines. While a server is away the state of nodes is unknown, and kubelets
// may not have reported when it is back: timeouts do not end meanwhile, and then begin anew. They also do
// when the wall clock of this host was set, as begins are told by other clocks.
type Monitor struct {
	opts  Options
	begun time.Time

	mu      sync.Mutex
	servers []server
	clock   setting
	last    time.Time // of the last answers; zero before the first ones
	asking  bool      // while the lock is not held
}

// server is one API server.
type server struct {
	ask func(ctx context.Context) error
	// failing is since when it does not answer; zero if it does.
	failing time.Time
	// back is when it answered again after it had been away; zero if it never was.
	back time.Time
}

// AnswerTimeout is how long an API server may take to answer. One that does not is asked failingPeriods
// times within the timeout.
const (
	AnswerTimeout  = 5 * time.Second
	failingPeriods = 5
)

// asker asks an API server for an object that need not exist.
func asker(c client.Client, kind schema.GroupVersionKind, key client.ObjectKey) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, AnswerTimeout)
		defer cancel()
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(kind)
		return client.IgnoreNotFound(c.Get(ctx, key, object))
	}
}

// Nobody is the name of objects that do not exist.
const Nobody = "millwright-nobody"

// New makes the Monitor of a process. No timeout counts from before it.
func New(opts Options) *Monitor {
	m := &Monitor{opts: opts, begun: opts.Clock.Now(), clock: newSetting(opts.Clock, opts.Steady)}
	m.servers = append(m.servers, server{ask: asker(opts.Control, v1alpha1.SchemeGroupVersion.WithKind("Machine"), client.ObjectKey{Namespace: opts.Namespace, Name: Nobody})})
	if opts.Target != nil {
		m.servers = append(m.servers, server{ask: asker(opts.Target.Client(), corev1.SchemeGroupVersion.WithKind("Node"), client.ObjectKey{Name: Nobody})})
	}
	return m
}

// state is what a Monitor knows.
type state struct {
	// answering reports that all API servers answer.
	answering bool
	// now is when they were looked at.
	now time.Time
	// back is when the last one came back, or the clock was set; zero if neither happened.
	back time.Time
	// again is when to look again at the latest while a timeout is counted.
	again time.Duration
}

// unanswered is when a pass looks again during which another one waited for answers.
const unanswered = time.Second

// observe asks the servers if the last answers are older than the given age, or if it is time to.
// Only the pass that asks waits for the answers; for others the servers do not answer meanwhile.
func (m *Monitor) observe(ctx context.Context, age time.Duration) state {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.last.IsZero() || m.opts.Clock.Since(m.last) >= min(age, m.interval())
	if old && !m.asking {
		m.ask(ctx)
		old = false
	}
	made := state{now: m.opts.Clock.Now(), answering: !m.last.IsZero(), again: m.interval()}
	m.clock.look(ctx, made.now, m.opts.Timeout)
	made.back = m.clock.set
	for _, s := range m.servers {
		made.answering = made.answering && s.failing.IsZero()
		if s.back.After(made.back) {
			made.back = s.back
		}
	}
	if made.answering && old {
		made.answering, made.again = false, unanswered
	}
	return made
}

// Follow asks the servers as observe does if they were asked before. It is for passes that cannot count
// their timeouts yet: an outage meanwhile would not be seen.
func (m *Monitor) Follow(ctx context.Context) {
	m.mu.Lock()
	asked := !m.last.IsZero()
	m.mu.Unlock()
	if asked {
		m.observe(ctx, m.opts.Period)
	}
}

// ask asks all servers. It releases the lock meanwhile.
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
		return // the process ends; that is no answer
	}
	m.last = m.opts.Clock.Now()
	for i := range m.servers {
		m.servers[i].answered(m.last, failures[i], m.opts.Timeout)
	}
}

func (s *server) answered(now time.Time, failure error, timeout time.Duration) {
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

// interval is the time between two requests.
func (m *Monitor) interval() time.Duration {
	for _, s := range m.servers {
		if !s.failing.IsZero() {
			return min(m.opts.Period, max(m.opts.Timeout/failingPeriods, time.Second))
		}
	}
	return m.opts.Period
}

// Countdown is what is left of a timeout.
type Countdown struct {
	// Left is not positive once the time is over; Wait is when to look again at the latest.
	Left, Wait time.Duration
}

// Over reports whether the time is over.
func (d Countdown) Over() bool { return d.Left <= 0 }

// Countdown counts a timeout from its beginning, or from the last time when no manager worked or an
// API server was away, or this host's clock was set. That it is over is confirmed by answers no older than AnswerTimeout.
func (m *Monitor) Countdown(ctx context.Context, begin time.Time, timeout timeouts.Timeout) Countdown {
	counted := m.count(m.observe(ctx, m.opts.Period), begin, timeout)
	if counted.Over() {
		return m.count(m.observe(ctx, AnswerTimeout), begin, timeout)
	}
	return counted
}

// Seen is what a Monitor knows of the API servers.
type Seen struct {
	// Answering reports that all of them answer, and that the target's cache has been complete.
	Answering bool
	// Begun is when this process could begin to work.
	Begun time.Time
	// Back is when this process could work again after an outage, or a clock that was set, that it saw;
	// zero if it saw none.
	Back time.Time
	// Again is when to look again at the latest.
	Again time.Duration
}

// See looks at the API servers, by answers that are no older than the age.
func (m *Monitor) See(ctx context.Context, age time.Duration) Seen {
	known := m.observe(ctx, min(age, m.opts.Period))
	seen := Seen{Answering: known.answering, Begun: m.begun, Back: known.back, Again: known.again}
	if m.opts.Target == nil {
		return seen
	}
	seen.Answering = seen.Answering && m.opts.Target.Ready()
	if ready := m.opts.Target.ReadySince(); ready.After(seen.Begun) {
		seen.Begun = ready
		if ready.Sub(m.begun) >= m.opts.Timeout && ready.After(seen.Back) {
			seen.Back = ready // the target was away when the process began
		}
	}
	return seen
}

func (m *Monitor) count(seen state, begin time.Time, timeout timeouts.Timeout) Countdown {
	target := m.opts.Target
	if !seen.answering || target != nil && !target.Ready() {
		return Countdown{Left: max(timeout.Duration, time.Second), Wait: max(min(timeout.Duration, seen.again), time.Second)}
	}
	var ready time.Time
	if target != nil {
		ready = target.ReadySince()
	}
	left := timeout.Ends(begin, m.begun, seen.back, ready).Sub(seen.now)
	return Countdown{Left: left, Wait: max(min(left, seen.again), 0)}
}
