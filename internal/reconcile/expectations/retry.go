package expectations

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// soonest is the delay after the first failure in a row. It doubles with each of them.
	soonest = 5 * time.Millisecond
	// latest is the longest delay. No event says that an outage, a quota or a webhook's refusal is
	// over.
	latest = time.Minute
)

// RateLimiter returns when an object is reconciled again after a failure. With controller-runtime's
// default, the delay would grow to a quarter of an hour.
func RateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](soonest, latest)
}
