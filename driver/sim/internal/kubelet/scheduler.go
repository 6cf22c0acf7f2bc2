package kubelet

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"
)

// job is a piece of work with a time.
type job struct {
	// key identifies the job. At most one job of a key waits.
	key string
	at  time.Time
	run func(context.Context)
}

// scheduler runs jobs at their time. There may be many: a job that waits has no goroutine
// and no timer of its own.
type scheduler struct {
	clock clock.Clock
	// wake receives when the first job may have changed.
	wake chan struct{}

	mu   sync.Mutex
	heap jobHeap
	keys map[string]struct{}
}

func newScheduler(c clock.Clock) *scheduler {
	return &scheduler{clock: c, wake: make(chan struct{}, 1), keys: map[string]struct{}{}}
}

// add plans a job, unless one of that key waits already.
func (s *scheduler) add(j job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, waits := s.keys[j.key]; waits {
		return
	}
	s.keys[j.key] = struct{}{}
	heap.Push(&s.heap, j)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// clear drops all jobs.
func (s *scheduler) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heap = nil
	clear(s.keys)
}

// next takes the first job if it is due. Otherwise it returns the time until then,
// or a negative number if no job waits.
func (s *scheduler) next() (job, time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.heap) == 0 {
		return job{}, -1, false
	}
	if wait := s.heap[0].at.Sub(s.clock.Now()); wait > 0 {
		return job{}, wait, false
	}
	j := heap.Pop(&s.heap).(job)
	delete(s.keys, j.key)
	return j, 0, true
}

// run runs jobs, at most limit at a time, until ctx ends and all have returned.
func (s *scheduler) run(ctx context.Context, limit int) {
	var group errgroup.Group
	group.SetLimit(limit)
	for ctx.Err() == nil {
		j, wait, due := s.next()
		if due {
			group.Go(func() error {
				j.run(ctx)
				return nil
			})
			continue
		}
		s.sleep(ctx, wait)
	}
	// Jobs return no errors; they log them.
	_ = group.Wait()
}

// sleep returns after wait, for ever if negative, or when there is a new job or ctx
// ends.
func (s *scheduler) sleep(ctx context.Context, wait time.Duration) {
	var elapsed <-chan time.Time
	if wait >= 0 {
		timer := s.clock.NewTimer(wait)
		defer timer.Stop()
		elapsed = timer.C()
	}
	select {
	case <-elapsed:
	case <-s.wake:
	case <-ctx.Done():
	}
}

// jobHeap is a container/heap of jobs, the earliest first.
type jobHeap []job

func (h jobHeap) Len() int           { return len(h) }
func (h jobHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h jobHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *jobHeap) Push(x any) { *h = append(*h, x.(job)) }

// Pop implements heap.Interface.
func (h *jobHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = job{}
	*h = old[:len(old)-1]
	return last
}
