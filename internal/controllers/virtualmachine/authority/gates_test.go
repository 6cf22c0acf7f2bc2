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

// slow is an API server that answers when it is told to.
type slow struct {
	client.Reader
	asked  map[string]*atomic.Int32
	answer chan struct{}
}

var errAway = errors.New("away")

func (s *slow) Get(ctx context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	s.asked[key.Name].Add(1)
	select {
	case <-s.answer:
		return errAway
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestManyCallsOfOneVM: a hypervisor that asks for its lease without end does not fill the queue to the API server, in
// which others wait for theirs.
func TestManyCallsOfOneVM(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slow{asked: map[string]*atomic.Int32{"bad": {}, "good": {}}, answer: make(chan struct{})}
		r := &Registry{APIReader: server, Clock: clock.RealClock{}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 100)
		ask := func(ctx context.Context, vm string, run uint64) {
			_, err := r.Lease(ctx, &vmpb.HypervisorID{Namespace: "pool", VmName: vm, PodName: vm + "-1", RunId: run}, true)
			ended <- err
		}
		const many = 32
		for i := range many {
			go ask(ctx, "bad", uint64(i))
		}
		synctest.Wait()
		go ask(t.Context(), "good", 1)
		synctest.Wait()
		if bad, good := server.asked["bad"].Load(), server.asked["good"].Load(); bad != 1 || good != 1 {
			t.Errorf("the API server was asked %d and %d times at once, want 1 and 1", bad, good)
		}
		server.answer <- struct{}{} // to one of both: the next call takes its place, if it is the bad one's
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case server.answer <- struct{}{}: // the good one's, unless it was the first
		default:
		}
		synctest.Wait()
		if len(ended) != many+1 || len(r.gates.open) != 0 {
			t.Errorf("%d of %d calls have ended, %d gates are kept", len(ended), many+1, len(r.gates.open))
		}
		for range many + 1 {
			if err := <-ended; !errors.Is(err, errAway) && !errors.Is(err, context.Canceled) {
				t.Error(fmt.Errorf("a call ended with %w", err))
			}
		}
	})
}
