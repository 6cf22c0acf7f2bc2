package join

import (
	"context"
	"math/rand/v2"
	"time"
)

// Pauses between tries double from the first to the longest, each less up to a quarter,
// so that guests that failed together do not come back together.
const (
	firstPause   = time.Second
	longestPause = 15 * time.Second
	jitter       = 4
)

type backoff struct{ pause time.Duration }

func (b *backoff) next() time.Duration {
	b.pause = min(max(2*b.pause, firstPause), longestPause)
	return b.pause - rand.N(b.pause/jitter)
}

// wait returns nil after the duration, or ctx's error when that ends first.
func wait(ctx context.Context, duration time.Duration) error {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
