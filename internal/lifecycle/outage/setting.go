package outage

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
)

// setting detects that a wall clock was set or that its host was suspended. In both cases, the wall clock and a
// steady clock measure different elapsed times.
type setting struct {
	steady clock.PassiveClock
	// began is the start time on both clocks. ahead is how far the wall clock has been set since.
	began struct{ wall, steady time.Time }
	ahead time.Duration
	// set is when a change was last detected. It is zero if there was none.
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

// look compares the clocks. Differences below the tolerance are not recorded, so that they can add up.
func (s *setting) look(ctx context.Context, now time.Time, tolerance time.Duration) {
	// Round(0) drops the monotonic reading, which would hide that the clock was set.
	ahead := now.Round(0).Sub(s.began.wall) - s.steady.Since(s.began.steady)
	by := ahead - s.ahead
	if by.Abs() < tolerance {
		return
	}
	s.ahead, s.set = ahead, now
	logr.FromContextOrDiscard(ctx).Info("the clock of this host was set; timeouts start over", "by", by.Round(time.Second))
}
