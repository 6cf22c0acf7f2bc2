package manager

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// gcPercentSmall is GOGC for a small heap. Most of what a manager allocates is soon unused, so
	// to collect more often than by default costs little time and saves memory.
	gcPercentSmall = 40
	// gcPercentLarge is GOGC for a large heap: Go's default. With gcPercentSmall, a third of the
	// CPU time of a rolling update of 5,000 machines was garbage collection.
	gcPercentLarge = 100
	// largeHeap is the live heap from which it counts as large, in bytes. With 500 machines it is a
	// quarter of that, with 5,000 machines and 15,000 pods three times as much.
	largeHeap = 48 << 20
	// heapPeriod is the time between two checks of the size of the heap.
	heapPeriod = 10 * time.Second
)

// collectGarbage adapts GOGC to the size of the heap until the context ends, unless the environment
// sets it.
func collectGarbage(ctx context.Context, period time.Duration) {
	if _, given := os.LookupEnv("GOGC"); given {
		return
	}
	was := gcPercentSmall
	debug.SetGCPercent(was)
	go wait.UntilWithContext(ctx, func(context.Context) {
		percent := gcPercentSmall
		if liveHeap() >= largeHeap {
			percent = gcPercentLarge
		}
		if percent != was {
			debug.SetGCPercent(percent)
			was = percent
		}
	}, period)
}

// liveHeap returns the live heap after the last garbage collection, in bytes.
func liveHeap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
