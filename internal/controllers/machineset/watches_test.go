package machineset

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// delays is a queue that records delays.
type delays struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	seen []time.Duration
}

func (d *delays) AddAfter(_ reconcile.Request, after time.Duration) { d.seen = append(d.seen, after) }

// TestWatches_DelayGrowsWithMachines checks that the delay grows with the size of a set, so that the cost per
// Machine does not.
func TestWatches_DelayGrowsWithMachines(t *testing.T) {
	for _, test := range []struct {
		machines int
		want     time.Duration
	}{
		{0, 100 * time.Millisecond}, {500, 100 * time.Millisecond}, {599, 100 * time.Millisecond}, {600, 200 * time.Millisecond}, {1700, 500 * time.Millisecond},
	} {
		s := newServer(newSet(int32(test.machines), heldBy(v1alpha1.FinalizerMCM)))
		for _, m := range machines(test.machines) {
			s.shown[m.Name] = m // only the cache needs them
		}
		c := s.newController()
		after := func() time.Duration {
			queue := &delays{}
			c.machineEvents().Create(testContext, event.TypedCreateEvent[client.Object]{Object: machine("new")}, queue)
			if len(queue.seen) != 1 {
				t.Fatalf("one event causes %d passes", len(queue.seen))
			}
			return queue.seen[0]
		}
		if got := after(); got != settleTime {
			t.Errorf("delay %s before the first pass", got)
		}
		pass(t, c)
		if got := after(); got != test.want {
			t.Errorf("%d machines: delay %s, want %s", test.machines, got, test.want)
		}
		gone := s.set()
		gone.Finalizers = nil
		must(s.live.Update(testContext, gone))
		must(s.live.Delete(testContext, gone))
		pass(t, c)
		if got := after(); got != settleTime {
			t.Errorf("delay %s for a new set with the name of a set of %d machines", got, test.machines)
		}
	}
}

// TestWatches_ResyncTriggersNoPass checks that an unchanged Machine enqueues no set.
func TestWatches_ResyncTriggersNoPass(t *testing.T) {
	version := func(v string) *v1alpha1.Machine {
		return machine("a", func(m *v1alpha1.Machine) { m.ResourceVersion = v })
	}
	events := newServer().newController().machineEvents()
	for is, want := range map[string]bool{"1": false, "2": true} {
		queue := &delays{}
		events.Update(testContext, event.TypedUpdateEvent[client.Object]{ObjectOld: version("1"), ObjectNew: version(is)}, queue)
		if got := len(queue.seen) > 0; got != want {
			t.Errorf("version %s after 1: enqueued = %t", is, got)
		}
	}
}

// TestPredicates_MessageChangeIsIgnored checks that a new message of an existing condition causes no pass. The controller
// writes such messages after each failure, and would retry immediately and endlessly.
func TestPredicates_MessageChangeIsIgnored(t *testing.T) {
	failing := func(set *v1alpha1.MachineSet) {
		set.ResourceVersion = "7"
		set.Status.LastOperation.LastUpdateTime = metav1.NewTime(noon)
		set.Status.Conditions = []v1alpha1.MachineSetCondition{*isTrue(v1alpha1.MachineSetReplicaFailure, "FailedCreate", "connection to port 7000 reset", noon)}
	}
	for reason, test := range map[string]struct {
		change func(*v1alpha1.MachineSet)
		want   bool
	}{
		"another message of the same failure": {func(set *v1alpha1.MachineSet) {
			set.ResourceVersion, set.Status.Conditions[0].Message = "8", "connection to port 7001 reset"
			set.Status.LastOperation.LastUpdateTime = metav1.NewTime(noon.Add(time.Minute))
		}, false},
		"another failure": {func(set *v1alpha1.MachineSet) {
			set.ResourceVersion, set.Status.Conditions[0].Reason = "8", "FailedDelete"
		}, true},
		"no failure any longer":     {func(set *v1alpha1.MachineSet) { set.ResourceVersion, set.Status.Conditions = "8", nil }, true},
		"a number in the status":    {func(set *v1alpha1.MachineSet) { set.ResourceVersion, set.Status.Replicas = "8", 1 }, true},
		"its spec":                  {func(set *v1alpha1.MachineSet) { set.ResourceVersion, set.Spec.Replicas = "8", 1 }, true},
		"an annotation":             {func(set *v1alpha1.MachineSet) { set.ResourceVersion, set.Annotations = "8", map[string]string{"a": ""} }, true},
		"a resync without a change": {func(*v1alpha1.MachineSet) {}, true},
	} {
		t.Run(reason, func(t *testing.T) {
			was, is := newSet(3, failing), newSet(3, failing, test.change)
			kept := is.DeepCopy()
			if got := relevantChange().Update(event.UpdateEvent{ObjectOld: was, ObjectNew: is}); got != test.want {
				t.Errorf("enqueued = %t", got)
			}
			if diff := cmp.Diff(kept, is); diff != "" {
				t.Errorf("the cached object was changed:\n%s", diff)
			}
		})
	}
	if !relevantChange().Create(event.CreateEvent{Object: newSet(1)}) || !relevantChange().Delete(event.DeleteEvent{Object: newSet(1)}) {
		t.Error("creations and deletions must pass")
	}
}
