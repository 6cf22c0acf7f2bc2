package manager

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/onsi/gomega"
)

func currentGCPercent() int {
	sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(sample)
	return int(sample[0].Value.Uint64())
}

// TestGarbageCollector_RunsLessOftenOnLargeHeap also checks that a heap that has shrunk is collected as often as before.
func TestGarbageCollector_RunsLessOftenOnLargeHeap(t *testing.T) {
	t.Setenv("GOGC", "") // restores the value after the test
	if err := os.Unsetenv("GOGC"); err != nil {
		t.Fatal(err)
	}
	was := currentGCPercent()
	t.Cleanup(func() { debug.SetGCPercent(was) })
	collectGarbage(t.Context(), time.Millisecond)
	if percent := currentGCPercent(); percent != gcPercentSmall {
		t.Errorf("at the start: %d %%, want %d", percent, gcPercentSmall)
	}
	becomes := func(want int) {
		t.Helper()
		runtime.GC()
		gomega.NewWithT(t).Eventually(currentGCPercent).WithTimeout(5 * time.Minute).Should(gomega.Equal(want))
	}
	ballast := make([]byte, 2*largeHeap)
	becomes(gcPercentLarge)
	runtime.KeepAlive(ballast)
	becomes(gcPercentSmall)
}

// TestGarbageCollector_RespectsGOGC checks that GOGC in the environment takes precedence.
func TestGarbageCollector_RespectsGOGC(t *testing.T) {
	t.Setenv("GOGC", "77")
	was := debug.SetGCPercent(77)
	t.Cleanup(func() { debug.SetGCPercent(was) })
	collectGarbage(t.Context(), time.Millisecond)
	if percent := currentGCPercent(); percent != 77 {
		t.Errorf("%d %%, want 77", percent)
	}
}
