package sim_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/millwright-dev/millwright/driver/sim"
)

// heapPerVM is the maximum memory of a VM with its journal entries. Then 10,000 VMs use at most 80 MiB.
const heapPerVM = 8 << 10

// TestCloud_HoldsTenThousandVMs: one process holds 10,000 VMs, and logs how much memory they use.
func TestCloud_HoldsTenThousandVMs(t *testing.T) {
	const count = 10_000
	w := newTestDriver(t, sim.Config{}, object{"tags": object{"kubernetes.io/cluster/c": "1"}, "nodeLabels": object{"pool": "p"}})
	before := heap()
	for i := range count {
		w.mustCreate(fmt.Sprintf("m-%05d", i))
	}
	used := heap() - before
	if listed := len(w.list()); listed != count {
		t.Errorf("got %d listed VMs", listed)
	}
	t.Logf("%d bytes for each of %d VMs", used/count, count)
	if used > count*heapPerVM {
		t.Errorf("a VM uses %d bytes, want at most %d", used/count, heapPerVM)
	}
	for i := 0; i < count; i += 100 {
		w.mustRemove(fmt.Sprintf("m-%05d", i), "")
	}
	if left := len(w.vms()); left != count-count/100 {
		t.Errorf("%d VMs still exist", left)
	}
}

// heap returns the bytes in use.
func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
