package machine

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/reconcile/events"
)

// scope is what the steps of one pass share.
type scope struct {
	// machine is the pass's own copy. Its metadata and spec are those of the API
	// server; its status is what the pass will write.
	machine *v1alpha1.Machine
	// stored is the Machine as the API server has it, status included. It is never changed:
	// it may be the cache's.
	stored *v1alpha1.Machine
	// node is the Machine's node; nil if there is none. Set by awaitNode.
	node *corev1.Node
	// nodeOfOther reports that the node which the Machine names is another Machine's. Set by
	// awaitNode.
	nodeOfOther bool
	// class is the Machine's; nil if it is missing, or if the node may not have its capacity.
	// Set by setCapacity.
	class *v1alpha1.MachineClass
	// now is one time for the whole pass.
	now time.Time
	// memory is what is remembered of the Machine from pass to pass.
	memory *memory
	// events are sent once the status is written.
	events []pendingEvent
	// within is when another pass is due at the latest, whatever else the pass waits for;
	// zero if there is no such time.
	within time.Duration
	// ownedByOther says whose the VM is that the driver finds for a Machine that names none, if
	// it is another object's. Set by identifyInstance and identifyNode.
	ownedByOther string
	// force says why the drain is forced; termination only.
	force drain.Force
}

// memory is what is remembered of a Machine from pass to pass. Losing it costs an event that is
// sent twice, or a write that is tried too early.
type memory struct {
	// released is the UID of the Machine whose finalizer was removed, until the cache shows it.
	released types.UID
	// registering is the name of a new node that is left alone until its kubelet is done, and
	// registeringSince when it was first seen.
	registering      string
	registeringSince time.Time
	// draining reports that the pass before waited for a drain.
	draining bool
	// told is what events said that are sent only when they change.
	told events.Said
	// refused is what the API server refused to have on the node, by the reason of the event.
	refused map[string]refusal
}

// newScope returns the scope of a pass over a Machine as the cache has it.
func newScope(cached *v1alpha1.Machine, memory *memory, now time.Time) *scope {
	return &scope{machine: cached.DeepCopy(), stored: cached, memory: memory, now: now}
}

// wakeWithin asks for another pass; zero asks for nothing.
func (s *scope) wakeWithin(d time.Duration) {
	if d > 0 && (s.within == 0 || d < s.within) {
		s.within = d
	}
}

func (s *scope) key() types.NamespacedName { return client.ObjectKeyFromObject(s.machine) }
