package expectations

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// soonest is how long an object waits after its first failure in a row. It doubles with each
	// of them.
	soonest = 5 * time.Millisecond
	// latest is where that ends. Nothing tells when an outage, a quota or a webhook's refusal is
	// over, so for as long nobody may notice.
	latest = time.Minute
)

// RateLimiter says when an object whose pass has failed is looked at again. Without it, the wait
// would grow to a quarter of an hour.
func RateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](soonest, latest)
}
