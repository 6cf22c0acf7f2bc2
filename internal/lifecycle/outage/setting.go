package outage

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
)

// setting notices that a wall clock was set, or that its host was suspended: more or less time has passed
// by it than by a clock that nobody sets.
type setting struct {
	steady clock.PassiveClock
	// began is the beginning on both clocks, and ahead how far the wall clock has been set since.
	began struct{ wall, steady time.Time }
	ahead time.Duration
	// set is when it was noticed last; zero if never.
	set time.Time
}

func newSetting(wall, steady clock.PassiveClock) setting {
	if steady == nil {
		steady = wall
	}
	s := setting{steady: steady}
	s.began.wall, s.began.steady = wall.Now().Round(0), steady.Now()
	return s
}

// look compares the clocks. A difference below the tolerance is left for later: it may add up.
func (s *setting) look(ctx context.Context, now time.Time, tolerance time.Duration) {
	// Round(0) drops the monotonic reading, which hides that the clock was set.
	ahead := now.Round(0).Sub(s.began.wall) - s.steady.Since(s.began.steady)
	by := ahead - s.ahead
	if by.Abs() < tolerance {
		return
	}
	s.ahead, s.set = ahead, now
	logr.FromContextOrDiscard(ctx).Info("the clock of this host was set: timeouts begin anew", "by", by.Round(time.Second))
}
