// Package outage counts timeouts that stand still while an API server does not answer.
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

// Target is the cluster that nodes join, as target.Cluster is one.
type Target interface {
	// Client reads unstructured objects from the API server.
	Client() client.Client
	// Ready reports whether the target has answered yet.
	Ready() bool
	// ReadySince is when the cache was first complete; zero if it is not yet.
	ReadySince() time.Time
}

// Options configure a Monitor. All but Target are required.
type Options struct {
	// Control is the client of the control cluster; it reads unstructured objects from the API
	// server.
	Control client.Client
	// Namespace is that of the Machines.
	Namespace string
	// Target is nil if nodes join nowhere.
	Target Target
	Clock  clock.PassiveClock
	// Period is how often API servers are asked that answer.
	Period time.Duration
	// Timeout is how long one must have failed to answer to have been away.
	Timeout time.Duration
}

// Monitor notices when an API server does not answer. While one is away nobody can tell how
// nodes are, and what a kubelet would have said is not known when it is back: so timeouts stand
// still and then begin anew.
//
// It asks only when a pass counts a timeout, and no more often than every period, for all
// Machines together. So a fleet at rest costs nothing, and a restart forgets nothing that
// matters: no timeout counts from before it.
type Monitor struct {
	opts Options
	// begun is when the Monitor was made.
	begun time.Time

	mu      sync.Mutex
	servers []server
	last    time.Time // of the last answers; zero before the first ones
	asking  bool
}

// server is one API server.
type server struct {
	ask func(ctx context.Context) error
	// failing is since when it does not answer; zero if it does.
	failing time.Time
	// back is when it answered again after it had been away; zero if it never was.
	back time.Time
}

// Patience is how long an API server may take to answer. failingPeriods is how many times
// within the timeout one is asked that does not.
const (
	Patience       = 5 * time.Second
	failingPeriods = 5
)

// asker asks an API server for an object that need not exist. The client must not read
// unstructured objects from a cache.
func asker(c client.Client, kind schema.GroupVersionKind, key client.ObjectKey) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, Patience)
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
	m := &Monitor{opts: opts, begun: opts.Clock.Now()}
	m.servers = append(m.servers, server{ask: asker(opts.Control, v1alpha1.SchemeGroupVersion.WithKind("Machine"), client.ObjectKey{Namespace: opts.Namespace, Name: Nobody})})
	if opts.Target != nil {
		m.servers = append(m.servers, server{ask: asker(opts.Target.Client(), corev1.SchemeGroupVersion.WithKind("Node"), client.ObjectKey{Name: Nobody})})
	}
	return m
}

// Report is what a Monitor knows.
type Report struct {
	// Answering reports that all API servers answer.
	Answering bool
	// Back is when the last one came back; zero if none was away.
	Back time.Time
	// Again is when to look again at the latest while a timeout is counted.
	Again time.Duration
}

// Observe reports, and asks the API servers before if it is time to.
func (m *Monitor) Observe(ctx context.Context) Report { return m.report(ctx, m.opts.Period) }

// Confirm is Observe for a pass that is about to act on what it sees: the answers are no older
// than API servers may take to give them.
func (m *Monitor) Confirm(ctx context.Context) Report { return m.report(ctx, Patience) }

// unanswered is when a pass looks again that came while others waited for answers.
const unanswered = time.Second

// report asks if the last answers are older than the given age, or if it is time to. Only
// the pass that asks waits for the answers; to the others nothing is well meanwhile.
func (m *Monitor) report(ctx context.Context, age time.Duration) Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.last.IsZero() || m.opts.Clock.Since(m.last) >= min(age, m.interval())
	if old && !m.asking {
		m.ask(ctx)
		old = false
	}
	made := Report{Answering: !m.last.IsZero(), Again: m.interval()}
	for _, s := range m.servers {
		made.Answering = made.Answering && s.failing.IsZero()
		if s.back.After(made.Back) {
			made.Back = s.back
		}
	}
	if made.Answering && old {
		made.Answering, made.Again = false, unanswered
	}
	return made
}

// ask asks all servers. The lock is held, and given up meanwhile.
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

// interval is the time until servers are asked again. The lock is held.
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
	// Left is never positive once the time is over.
	Left time.Duration
	// Wait is when to look again at the latest.
	Wait time.Duration
}

// Over reports whether the time is over.
func (d Countdown) Over() bool { return d.Left <= 0 }

// Countdown counts a timeout from its beginning: time in which no manager worked, or an API
// server was away, does not count.
func (m *Monitor) Countdown(ctx context.Context, begin time.Time, timeout timeouts.Timeout) Countdown {
	counted := m.count(m.Observe(ctx), begin, timeout)
	if counted.Over() {
		return m.count(m.Confirm(ctx), begin, timeout)
	}
	return counted
}

func (m *Monitor) count(seen Report, begin time.Time, timeout timeouts.Timeout) Countdown {
	target := m.opts.Target
	if !seen.Answering || target != nil && !target.Ready() {
		return Countdown{Left: max(timeout.Duration, time.Second), Wait: max(min(timeout.Duration, seen.Again), time.Second)}
	}
	var ready time.Time
	if target != nil {
		ready = target.ReadySince()
	}
	left := timeout.Ends(begin, m.begun, seen.Back, ready).Sub(m.opts.Clock.Now())
	return Countdown{Left: left, Wait: max(min(left, seen.Again), 0)}
}
