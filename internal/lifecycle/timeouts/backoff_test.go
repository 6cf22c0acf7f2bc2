package timeouts

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestPolicy_UsesFlags(t *testing.T) {
	cases := map[string]struct {
		reason string
		policy Policy
		method Method
		code   codes.Code
		want   wait.Backoff
	}{
		"exhausted, default": {"MCM's default", Policy{}, Create, codes.ResourceExhausted, Doubling(10*time.Minute, 10*time.Minute)},
		"exhausted, flag":    {"the flag applies", Policy{ResourceExhausted: time.Minute}, Create, codes.ResourceExhausted, Doubling(time.Minute, time.Minute)},
		"medium, default":    {"a sixth of 20m is more than 3m", Policy{}, Create, codes.Internal, Doubling(5*time.Second, 3*time.Minute)},
		"medium, short":      {"several attempts fit into the creation timeout", Policy{CreationTimeout: time.Minute}, Create, codes.Internal, Doubling(5*time.Second, 10*time.Second)},
		"medium, very short": {"never below the base", Policy{CreationTimeout: time.Second}, Create, codes.Internal, Doubling(5*time.Second, 5*time.Second)},
		"medium, deletion":   {"deletions have no creation timeout", Policy{CreationTimeout: time.Minute}, Delete, codes.Internal, Doubling(5*time.Second, 10*time.Minute)},
		"several VMs":        {"the driver may find the right one soon", Policy{}, Status, codes.OutOfRange, Doubling(time.Second, time.Minute)},
		"out of range":       {"a user has to change the class", Policy{}, Create, codes.OutOfRange, Doubling(3*time.Minute, 30*time.Minute)},
		"not a code":         {"other numbers count as Unknown", Policy{}, Create, codes.Code(99), Doubling(time.Second, time.Minute)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.policy.Backoff(tc.method, tc.code); got != tc.want {
				t.Errorf("%s: %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}

// TestBackoff_Grows checks that the waiting times start at the base, never decrease, at most double, and stay
// within the maximum, however often a call fails.
func TestBackoff_Grows(t *testing.T) {
	tier.Check(t, func(t *rapid.T) {
		base := time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "base"))
		most := base + time.Duration(rapid.Int64Range(0, int64(24*time.Hour)).Draw(t, "beyond"))
		after := func(failures int) (got time.Duration) {
			backoff := Doubling(base, most)
			for range failures {
				got = backoff.Step()
			}
			return got
		}
		if got := after(1); got != base {
			t.Fatalf("first wait %v, want %v", got, base)
		}
		n := rapid.IntRange(1, 10_000).Draw(t, "failures")
		now, next := after(n), after(n+1)
		if next < now || next > 2*now+1 || next > most {
			t.Fatalf("%v after %d failures, %v after the next", now, n, next)
		}
		if after(10_000) != most {
			t.Fatalf("the limit is %v, want %v", after(10_000), most)
		}
	})
}
