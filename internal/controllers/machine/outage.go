package machine

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
)

// A lookout notices when an API server does not answer. While one is away nobody can tell
// how nodes are, and what a kubelet would have said is not known when it is back: so
// timeouts stand still and then begin anew.
//
// It asks only when a pass counts a timeout, and no more often than every period, for all
// Machines together. So a fleet at rest costs nothing, and a restart forgets nothing that
// matters: no timeout counts from before it.
type lookout struct {
	clock clock.PassiveClock
	// period is how often API servers are asked that answer; timeout is how long one must
	// have failed to answer to have been away.
	period, timeout time.Duration

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

// patience is how long an API server may take to answer; failingPeriods is how many times
// within the timeout one is asked that does not.
const (
	patience       = 5 * time.Second
	failingPeriods = 5
)

// asker asks an API server for an object that need not exist. The client must not read
// unstructured objects from a cache.
func asker(c client.Client, kind schema.GroupVersionKind, key client.ObjectKey) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(kind)
		return client.IgnoreNotFound(c.Get(ctx, key, object))
	}
}

// nobody is the name of objects that do not exist.
const nobody = "millwright-nobody"

// newLookout makes the lookout of a process. The namespace is that of its Machines.
func (c *Controller) newLookout(namespace string) *lookout {
	l := &lookout{clock: c.Clock, period: c.Health.OutagePeriod, timeout: c.Health.OutageTimeout}
	l.servers = append(l.servers, server{ask: asker(c.Client, v1alpha1.SchemeGroupVersion.WithKind("Machine"), client.ObjectKey{Namespace: namespace, Name: nobody})})
	if c.Target != nil {
		l.servers = append(l.servers, server{ask: asker(c.Target.Client(), corev1.SchemeGroupVersion.WithKind("Node"), client.ObjectKey{Name: nobody})})
	}
	return l
}

// report is what a lookout knows.
type report struct {
	// well tells that all API servers answer.
	well bool
	// back is when the last one came back; zero if none was away.
	back time.Time
	// again is when to look again at the latest while a timeout is counted.
	again time.Duration
}

// look reports, and asks the API servers before if it is time to.
func (l *lookout) look(ctx context.Context) report { return l.report(ctx, l.period) }

// confirm is look for a pass that is about to act on what it sees: the answers are no older
// than API servers may take to give them.
func (l *lookout) confirm(ctx context.Context) report { return l.report(ctx, patience) }

// unanswered is when a pass looks again that came while others waited for answers.
const unanswered = time.Second

// report asks if the last answers are older than the given age, or if it is time to. Only
// the pass that asks waits for the answers; to the others nothing is well meanwhile.
func (l *lookout) report(ctx context.Context, age time.Duration) report {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.last.IsZero() || l.clock.Since(l.last) >= min(age, l.interval())
	if old && !l.asking {
		l.ask(ctx)
		old = false
	}
	made := report{well: !l.last.IsZero(), again: l.interval()}
	for _, s := range l.servers {
		made.well = made.well && s.failing.IsZero()
		made.back = later(made.back, s.back)
	}
	if made.well && old {
		made.well, made.again = false, unanswered
	}
	return made
}

// ask asks all servers. The lock is held, and given up meanwhile.
func (l *lookout) ask(ctx context.Context) {
	l.asking = true
	l.mu.Unlock()
	failures := make([]error, len(l.servers))
	for i, s := range l.servers {
		failures[i] = s.ask(ctx)
	}
	l.mu.Lock()
	l.asking = false
	if ctx.Err() != nil {
		return // the process ends; that is no answer
	}
	l.last = l.clock.Now()
	for i := range l.servers {
		l.servers[i].answered(l.last, failures[i], l.timeout)
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
func (l *lookout) interval() time.Duration {
	for _, s := range l.servers {
		if !s.failing.IsZero() {
			return min(l.period, max(l.timeout/failingPeriods, time.Second))
		}
	}
	return l.period
}
