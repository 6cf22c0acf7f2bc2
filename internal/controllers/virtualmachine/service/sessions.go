package service

import (
	"sync"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// sessions are the open run leases and the last report of each VM's hypervisors. They
// are lost with the process: leases are opened again, and the status stays as it was
// until the next report.
type sessions struct {
	mu      sync.Mutex
	leases  map[types.NamespacedName]map[*lease]struct{}
	reports map[types.NamespacedName]*vmpb.ReportStateRequest
}

// lease is an open run lease.
type lease struct {
	pod string
	// recheck receives when the answer may have changed.
	recheck chan struct{}
}

func newSessions() *sessions {
	return &sessions{
		leases:  map[types.NamespacedName]map[*lease]struct{}{},
		reports: map[types.NamespacedName]*vmpb.ReportStateRequest{},
	}
}

// open adds a run lease. It must be closed.
func (s *sessions) open(vm types.NamespacedName, pod string) *lease {
	opened := &lease{pod: pod, recheck: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases[vm] == nil {
		s.leases[vm] = map[*lease]struct{}{}
	}
	s.leases[vm][opened] = struct{}{}
	return opened
}

func (s *sessions) close(vm types.NamespacedName, closed *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases[vm], closed)
	if len(s.leases[vm]) == 0 {
		delete(s.leases, vm)
	}
}

// isOpen reports whether the hypervisor in a Pod has a run lease open.
func (s *sessions) isOpen(vm types.NamespacedName, pod string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for open := range s.leases[vm] {
		if open.pod == pod {
			return true
		}
	}
	return false
}

// recheck evaluates the open run leases of a VM again.
func (s *sessions) recheck(vm types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for open := range s.leases[vm] {
		select {
		case open.recheck <- struct{}{}:
		default: // due already
		}
	}
}

// keepReport stores a report, and reports whether it differs from the last one.
func (s *sessions) keepReport(vm types.NamespacedName, report *vmpb.ReportStateRequest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if proto.Equal(s.reports[vm], report) {
		return false
	}
	s.reports[vm] = report
	return true
}

func (s *sessions) lastReport(vm types.NamespacedName) *vmpb.ReportStateRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reports[vm]
}

func (s *sessions) dropReport(vm types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reports, vm)
}
