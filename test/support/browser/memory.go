package browser

import "fmt"

// Memory is what a page uses.
type Memory struct {
	// Heap is the size of the live objects of scripts in bytes.
	Heap int64 `json:"usedSize"`
	// Nodes and Listeners are the numbers of live nodes of documents, also of removed ones that scripts refer to, and of
	// event listeners.
	Nodes     int64 `json:"nodes"`
	Listeners int64 `json:"jsEventListeners"`
}

// String implements fmt.Stringer.
func (m Memory) String() string {
	return fmt.Sprintf("heap of %.1f MiB, %d nodes, %d event listeners", float64(m.Heap)/(1<<20), m.Nodes, m.Listeners)
}

// Memory returns what the page uses after a garbage collection.
func (p *Page) Memory() Memory {
	p.t.Helper()
	var memory Memory
	p.call("HeapProfiler.collectGarbage", nil, nil)
	p.call("Runtime.getHeapUsage", nil, &memory)
	p.call("Memory.getDOMCounters", nil, &memory)
	return memory
}
