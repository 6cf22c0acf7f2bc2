package expectations_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

// TestTheWaitGrowsToAMinute: for each object on its own, and from the start when it went well.
func TestTheWaitGrowsToAMinute(t *testing.T) {
	limiter := expectations.RateLimiter()
	failing := reconcile.Request{NamespacedName: types.NamespacedName{Name: "failing"}}
	other := reconcile.Request{NamespacedName: types.NamespacedName{Name: "other"}}
	const first = 5 * time.Millisecond
	var last time.Duration
	for failure := range 30 {
		last = limiter.When(failing)
		if want := min(first<<failure, time.Minute); last != want {
			t.Fatalf("after %d failures it waits %s, want %s", failure+1, last, want)
		}
	}
	if got := limiter.When(other); got != first {
		t.Errorf("another one waits %s, want %s", got, first)
	}
	limiter.Forget(failing)
	if got := limiter.When(failing); got != first {
		t.Errorf("after a good pass it waits %s, want %s", got, first)
	}
}
