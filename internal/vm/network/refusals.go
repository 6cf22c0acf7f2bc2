package network

import (
	"log/slog"
	"maps"
	"sync"
	"time"
)

const (
	// logInterval is the minimum time between two log lines about the refused frames of a VM.
	logInterval = time.Minute
	// maxVMs is the maximum number of VMs for which refusals are counted.
	maxVMs = 4096
)

// Refusals counts dropped frames by VM and reason. Create it with NewRefusals. It is safe for concurrent use.
type Refusals struct {
	log *slog.Logger

	mu     sync.Mutex
	counts map[string]map[Refusal]uint64
	logged map[string]time.Time
}

// NewRefusals returns Refusals without any counts. They are logged at most once a minute for each VM.
func NewRefusals(log *slog.Logger) *Refusals {
	return &Refusals{log: log, counts: map[string]map[Refusal]uint64{}, logged: map[string]time.Time{}}
}

// Count counts a dropped frame of a VM. Frames of VMs beyond the first 4096 are not counted.
func (r *Refusals) Count(vm string, refusal Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := r.counts[vm]
	if counts == nil {
		if len(r.counts) >= maxVMs {
			return
		}
		counts = map[Refusal]uint64{}
		r.counts[vm] = counts
	}
	counts[refusal]++
	if last, ok := r.logged[vm]; ok && time.Since(last) < logInterval {
		return
	}
	r.logged[vm] = time.Now()
	r.log.Info("dropped frames of a guest", "vm", vm, "counts", maps.Clone(counts))
}

// All returns the number of dropped frames, by VM and reason.
func (r *Refusals) All() map[string]map[Refusal]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]map[Refusal]uint64{}
	for vm, counts := range r.counts {
		all[vm] = maps.Clone(counts)
	}
	return all
}
