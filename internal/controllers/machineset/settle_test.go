package machineset

import (
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// delays is a queue that takes down after what time something is to be looked at.
type delays struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	seen []time.Duration
}

func (d *delays) AddAfter(_ reconcile.Request, after time.Duration) { d.seen = append(d.seen, after) }

// TestLargeSetsAreLookedAtMoreSeldom: in proportion to their size, so that the cost of a Machine
// does not grow with their number.
func TestLargeSetsAreLookedAtMoreSeldom(t *testing.T) {
	for _, test := range []struct {
		machines int
		want     time.Duration
	}{
		{0, 100 * time.Millisecond}, {500, 100 * time.Millisecond}, {599, 100 * time.Millisecond}, {600, 200 * time.Millisecond}, {1700, 500 * time.Millisecond},
	} {
		s := newServer(newSet(int32(test.machines), func(set *v1alpha1.MachineSet) { set.Finalizers = []string{v1alpha1.FinalizerMCM} }))
		for _, m := range machines(test.machines) {
			s.shown[m.Name] = m // only the cache needs to have them
		}
		c := s.newController()
		after := func() time.Duration {
			queue := &delays{}
			c.machineEvents().Create(testContext, event.TypedCreateEvent[client.Object]{Object: machine("new")}, queue)
			if len(queue.seen) != 1 {
				t.Fatalf("one event leads to %d looks", len(queue.seen))
			}
			return queue.seen[0]
		}
		if got := after(); got != settle {
			t.Errorf("before its first look, a set is looked at after %s", got)
		}
		pass(t, c)
		if got := after(); got != test.want {
			t.Errorf("%d machines: looked at after %s, want %s", test.machines, got, test.want)
		}
		gone := s.set()
		gone.Finalizers = nil
		must(s.live.Update(testContext, gone))
		must(s.live.Delete(testContext, gone))
		pass(t, c)
		if got := after(); got != settle {
			t.Errorf("one of the same name as a set of %d machines is looked at after %s", test.machines, got)
		}
	}
}

// TestAMachineThatIsListedAgainWakesNobody: only one that has changed does.
func TestAMachineThatIsListedAgainWakesNobody(t *testing.T) {
	version := func(v string) *v1alpha1.Machine {
		return machine("a", func(m *v1alpha1.Machine) { m.ResourceVersion = v })
	}
	events := newServer().newController().machineEvents()
	for is, want := range map[string]bool{"1": false, "2": true} {
		queue := &delays{}
		events.Update(testContext, event.TypedUpdateEvent[client.Object]{ObjectOld: version("1"), ObjectNew: version(is)}, queue)
		if got := len(queue.seen) > 0; got != want {
			t.Errorf("version 1 became %s: woken: %t", is, got)
		}
	}
}
