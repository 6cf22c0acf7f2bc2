package virtualmachine

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// told is what was last said of each VM in an event. A pass that reads the cache before our
// own write has come back finds the same news again.
type told struct {
	mu   sync.Mutex
	last map[types.NamespacedName]telling
}

// telling is an event about a VM: of which Pod, if any, and in which words.
type telling struct {
	pod             types.UID
	reason, message string
}

func newTold() *told { return &told{last: map[types.NamespacedName]telling{}} }

// isNews reports whether this was not the last that was said, and keeps it.
func (t *told) isNews(vm types.NamespacedName, what telling) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last[vm] == what {
		return false
	}
	t.last[vm] = what
	return true
}

func (t *told) forget(vm types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.last, vm)
}
