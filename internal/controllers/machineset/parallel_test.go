package machineset

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/scale"
)

// slowWrites delays each write of a Machine by a second, and counts concurrent writes.
type slowWrites struct {
	client.Client
	mu         sync.Mutex
	now        int
	inParallel map[string]int
}

func (c *slowWrites) slow(verb string, object client.Object) {
	if _, ok := object.(*v1alpha1.Machine); !ok {
		return
	}
	c.mu.Lock()
	c.now++
	c.inParallel[verb] = max(c.inParallel[verb], c.now)
	c.mu.Unlock()
	time.Sleep(time.Second) // synctest time: passes after all possible writes have started
	c.mu.Lock()
	c.now--
	c.mu.Unlock()
}

func (c *slowWrites) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	c.slow("create", object)
	return c.Client.Create(ctx, object, opts...)
}

func (c *slowWrites) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	c.slow("delete", object)
	return c.Client.Delete(ctx, object, opts...)
}

func (c *slowWrites) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	c.slow("patch", object)
	return c.Client.Patch(ctx, object, patch, opts...)
}

// TestMachineSet_ConcurrentWritesAreLimited checks that the number of concurrent writes reaches the limit and does not exceed it.
func TestMachineSet_ConcurrentWritesAreLimited(t *testing.T) {
	const many = 3 * parallel
	configured := func(m *v1alpha1.Machine) { m.Spec.MachineConfiguration = drainFor(time.Hour) }
	for verb, test := range map[string]struct {
		replicas int32
		machines []*v1alpha1.Machine
	}{
		"create": {many, nil},
		"delete": {0, machines(many)},
		"patch":  {many, machines(many, configured)},
	} {
		t.Run(verb, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(newSet(test.replicas))
				for _, m := range test.machines {
					must(s.live.Create(t.Context(), m))
				}
				s.catchUp()
				c := s.newController()
				slow := &slowWrites{Client: c.Client, inParallel: map[string]int{}}
				c.Client = slow
				pass(t, c)
				if got := slow.inParallel[verb]; got != parallel {
					t.Errorf("%d concurrent writes, want %d", got, parallel)
				}
				if s.count(verb+" Machine ") != many && verb != "create" || len(s.all()) != many {
					t.Errorf("%d of %d writes were done", s.count(verb+" Machine "), many)
				}
			})
		})
	}
}

// TestMachineSet_UpdatesBurstPerPass checks that a pass updates at most a burst of Machines.
func TestMachineSet_UpdatesBurstPerPass(t *testing.T) {
	set := newSet(250)
	for reason, test := range map[string]struct{ old, want int }{
		"more than a burst": {250, scale.Burst},
		"a burst":           {scale.Burst, scale.Burst},
		"fewer":             {7, 7},
	} {
		t.Run(reason, func(t *testing.T) {
			var owned []*v1alpha1.Machine
			for i := range 250 {
				owned = append(owned, machine(fmt.Sprintf("m%03d", i), func(m *v1alpha1.Machine) {
					if i >= 250-test.old {
						m.Spec.MachineConfiguration = drainFor(time.Hour)
					}
				}))
			}
			if got := len(updates(set, owned)); got != test.want {
				t.Errorf("%d machines were updated, want %d", got, test.want)
			}
		})
	}
}
