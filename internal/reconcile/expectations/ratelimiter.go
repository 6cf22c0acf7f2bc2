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

// RateLimiter returns a rate limiter for failed reconciles. The delay starts at 5ms and doubles with each
// consecutive failure, up to a minute. The default of controller-runtime allows delays of more than a quarter
// of an hour, and no event signals the end of an outage, a quota or a webhook's refusal.
//
// A delay is never longer than the failures have lasted. Otherwise, because each event causes another attempt,
// many events during a short outage would make the object wait for a minute after it.
func RateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return &rateLimiter{
		TypedRateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](leastDelay, mostDelay),
		since:            map[reconcile.Request]time.Time{},
	}
}

// rateLimiter limits the delays of another rate limiter.
type rateLimiter struct {
	workqueue.TypedRateLimiter[reconcile.Request]

	mu sync.Mutex
	// since is when the first of the consecutive failures happened.
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
