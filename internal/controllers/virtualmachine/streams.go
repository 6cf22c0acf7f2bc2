package virtualmachine

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// streams are the run leases that are open.
type streams struct {
	mu sync.Mutex
	of map[types.NamespacedName]map[*stream]struct{}
}

// stream is one of them.
type stream struct {
	pod string
	// woken has something in it when the answer may have changed.
	woken chan struct{}
}

func newStreams() *streams {
	return &streams{of: map[types.NamespacedName]map[*stream]struct{}{}}
}

// add opens a stream. It must be removed.
func (s *streams) add(vm types.NamespacedName, pod string) *stream {
	added := &stream{pod: pod, woken: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[vm] == nil {
		s.of[vm] = map[*stream]struct{}{}
	}
	s.of[vm][added] = struct{}{}
	return added
}

func (s *streams) remove(vm types.NamespacedName, gone *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of[vm], gone)
	if len(s.of[vm]) == 0 {
		delete(s.of, vm)
	}
}

// wake has all streams of a VM look again.
func (s *streams) wake(vm types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for one := range s.of[vm] {
		select {
		case one.woken <- struct{}{}:
		default: // it has yet to look anyway
		}
	}
}

// open reports whether the hypervisor in a Pod has a stream.
func (s *streams) open(vm types.NamespacedName, pod string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for one := range s.of[vm] {
		if one.pod == pod {
			return true
		}
	}
	return false
}
