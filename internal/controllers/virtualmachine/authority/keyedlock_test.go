package authority

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// slowReader is an API server that responds to one read for each value in respond.
type slowReader struct {
	client.Reader
	reads   map[string]*atomic.Int32
	respond chan struct{}
}

var errUnreachable = errors.New("unreachable")

func (s *slowReader) Get(ctx context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	s.reads[key.Name].Add(1)
	select {
	case <-s.respond:
		return errUnreachable
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestRegistry_CallsOfOneVMAreSerialized checks that a hypervisor that requests its lease all the time does not fill the queue to the
// API server, in which the requests of others wait.
func TestRegistry_CallsOfOneVMAreSerialized(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slowReader{reads: map[string]*atomic.Int32{"bad": {}, "good": {}}, respond: make(chan struct{})}
		r := &Registry{APIReader: server, Clock: clock.RealClock{}}
		ctx, cancel := context.WithCancel(t.Context())
		results := make(chan error, 100)
		lease := func(ctx context.Context, vm string, run uint64) {
			_, err := r.Lease(ctx, &vmpb.HypervisorID{Namespace: "pool", VmName: vm, PodName: vm + "-1", RunId: run}, true)
			results <- err
		}
		const many = 32
		for i := range many {
			go lease(ctx, "bad", uint64(i))
		}
		synctest.Wait()
		go lease(t.Context(), "good", 1)
		synctest.Wait()
		if bad, good := server.reads["bad"].Load(), server.reads["good"].Load(); bad != 1 || good != 1 {
			t.Errorf("the API server has %d and %d concurrent reads, want 1 and 1", bad, good)
		}
		server.respond <- struct{}{} // to either of them; if it is a read of "bad", the next one follows
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case server.respond <- struct{}{}: // to the read of "good", unless that got the first response
		default:
		}
		synctest.Wait()
		if len(results) != many+1 || len(r.locks.held) != 0 {
			t.Errorf("%d of %d calls have returned, %d locks are held", len(results), many+1, len(r.locks.held))
		}
		for range many + 1 {
			if err := <-results; !errors.Is(err, errUnreachable) && !errors.Is(err, context.Canceled) {
				t.Error(fmt.Errorf("a call failed with %w", err))
			}
		}
	})
}
