package sim_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/millwright-dev/millwright/driver/sim"
)

// heapPerVM is what a VM may take of memory, with its entries of the journal: 10,000 then take no more
// than 80 MiB.
const heapPerVM = 8 << 10

// TestManyVMs: one process holds 10,000 VMs, and says how much memory they take.
func TestManyVMs(t *testing.T) {
	const count = 10_000
	w := newTestDriver(t, sim.Config{}, object{"tags": object{"kubernetes.io/cluster/c": "1"}, "nodeLabels": object{"pool": "p"}})
	before := heap()
	for i := range count {
		w.mustCreate(fmt.Sprintf("m-%05d", i))
	}
	used := heap() - before
	if listed := len(w.list()); listed != count {
		t.Errorf("%d VMs are listed", listed)
	}
	t.Logf("%d bytes for each of %d VMs", used/count, count)
	if used > count*heapPerVM {
		t.Errorf("a VM takes %d bytes, want at most %d", used/count, heapPerVM)
	}
	for i := 0; i < count; i += 100 {
		w.mustRemove(fmt.Sprintf("m-%05d", i), "")
	}
	if left := len(w.vms()); left != count-count/100 {
		t.Errorf("%d VMs are left", left)
	}
}

// heap returns the bytes in use.
func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
