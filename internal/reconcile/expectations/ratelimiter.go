package expectations

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// The delays after a failure.
const (
	leastDelay = 5 * time.Millisecond
	mostDelay  = time.Minute
)

// RateLimiter returns when an object is reconciled again after a failure: after 5ms, doubled with
// each failure in a row, up to a minute. With controller-runtime's default it would be up to a
// quarter of an hour, and no event says that an outage, a quota or a webhook's refusal is over.
//
// A delay is no longer than the failures have lasted: each event is another attempt, so that many of
// them in a short outage would make the object wait for a minute after it.
func RateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return &rateLimiter{
		TypedRateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](leastDelay, mostDelay),
		since:            map[reconcile.Request]time.Time{},
	}
}

// rateLimiter bounds the delays of another one.
type rateLimiter struct {
	workqueue.TypedRateLimiter[reconcile.Request]

	mu sync.Mutex
	// since is the first failure in a row.
	since map[reconcile.Request]time.Time
}

// When implements workqueue.TypedRateLimiter.
func (l *rateLimiter) When(object reconcile.Request) time.Duration {
	delay := l.TypedRateLimiter.When(object)
	l.mu.Lock()
	defer l.mu.Unlock()
	since, failing := l.since[object]
	if !failing {
		l.since[object] = time.Now()
		return delay
	}
	return min(delay, max(leastDelay, time.Since(since)))
}

// Forget implements workqueue.TypedRateLimiter.
func (l *rateLimiter) Forget(object reconcile.Request) {
	l.TypedRateLimiter.Forget(object)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.since, object)
}
