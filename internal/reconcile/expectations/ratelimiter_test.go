package expectations_test

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

// TestRateLimiter_WaitGrowsToOneMinute checks that the wait grows per object and starts over after a success.
func TestRateLimiter_WaitGrowsToOneMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := expectations.RateLimiter()
		failing, other := request("failing"), request("other")
		const first = 5 * time.Millisecond
		want := first
		for failure := range 30 {
			wait := limiter.When(failing)
			if wait != want {
				t.Fatalf("after %d failures, the wait is %s, want %s", failure+1, wait, want)
			}
			time.Sleep(wait)
			want = min(first<<failure, time.Minute)
		}
		if got := limiter.When(other); got != first {
			t.Errorf("the wait of another object is %s, want %s", got, first)
		}
		limiter.Forget(failing)
		if got := limiter.When(failing); got != first {
			t.Errorf("after a success, the wait is %s, want %s", got, first)
		}
	})
}

// TestRateLimiter_EventsDoNotExtendWait checks that an object that fails on each of many events waits no longer than
// it has been failing.
func TestRateLimiter_EventsDoNotExtendWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := expectations.RateLimiter()
		object := request("busy")
		const outage, events = 2 * time.Second, 100
		for range events {
			limiter.When(object)
			time.Sleep(outage / events)
		}
		if wait := limiter.When(object); wait > outage {
			t.Errorf("after an outage of %s, the wait is %s", outage, wait)
		}
		limiter.Forget(object)
		time.Sleep(time.Hour)
		limiter.When(object)
		if wait := limiter.When(object); wait > time.Second {
			t.Errorf("an hour after a success, the wait after the second failure is %s", wait)
		}
	})
}

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}
