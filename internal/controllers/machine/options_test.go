package machine

import (
	"testing"
	"time"
)

// TestNew_NegativeLimitsMeanZero checks that negative values mean zero. Flags of zero are passed as negative
// values, since zero selects the default.
func TestNew_NegativeLimitsMeanZero(t *testing.T) {
	for name, tc := range map[string]struct {
		given time.Duration
		none  bool
	}{"negative": {-1, true}, "zero": {0, false}} {
		c := New(Options{
			CreationTimeout: tc.given, PreserveTimeout: tc.given, InPlaceUpdateTimeout: tc.given,
			Health: Health{Timeout: tc.given}, Drain: Drain{Timeout: tc.given, MaxEvictRetries: int32(tc.given)},
		})
		for what, limit := range map[string]time.Duration{
			"creation": c.CreationTimeout, "preservation": c.PreserveTimeout, "update": c.InPlaceUpdateTimeout,
			"health": c.Health.Timeout, "drain": c.Drain.Timeout, "evictions": time.Duration(c.Drain.MaxEvictRetries),
		} {
			if limit < 0 || limit == 0 != tc.none {
				t.Errorf("%s: %s = %v", name, what, limit)
			}
		}
	}
}
