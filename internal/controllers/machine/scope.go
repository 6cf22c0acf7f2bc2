package machine

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/outage"
	"github.com/millwright-dev/millwright/internal/reconcile/events"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// scope is the state of one pass over a Machine. The steps of the pass share it.
type scope struct {
	client client.Client
	// written are the writes to all Machines.
	written *expectations.Writes
	// outages counts timeouts, which restart after an outage.
	outages *outage.Monitor
	memory  *memory
	now     time.Time

	// machine is the pass's copy. Its metadata and spec are those of the API server; its status
	// is written at the end.
	machine *v1alpha1.Machine
	// stored is the Machine as the API server has it. It may be the cache's, and must not be changed.
	stored *v1alpha1.Machine
	// events are sent once the status is written.
	events eventList
	// requeueAfter is when another pass is due at the latest; zero if there is no such time.
	requeueAfter time.Duration

	// node is the Machine's node; nil if there is none. Set by AwaitNode and FindNode.
	node *corev1.Node
	// nodeOfOther reports that the Machine names a node that is not its own. Set by AwaitNode.
	nodeOfOther bool
	// class is nil if it is missing, or if the node may not have its capacity. Set by SetCapacity.
	class *v1alpha1.MachineClass
	// ownedByOther is a message if another object owns the VM that the driver finds for a Machine that
	// does not name one. Set by IdentifyInstance and IdentifyNode.
	ownedByOther string
	// force is why the drain is forced. Set by FindNode and Drain.
	force drain.Force
	// drainSince is when the drain began or restarted. Set by FindNode.
	drainSince time.Time
}

// memory is kept between the passes over a Machine. Losing it costs an event that is sent twice, or
// a write that is retried too early.
type memory struct {
	// released is the UID of the Machine whose finalizer was removed, until the cache shows it.
	released types.UID
	// registering is the name of a new node that is not written to until its kubelet has
	// registered, and registeringSince when it was first seen.
	registering      string
	registeringSince time.Time
	// draining reports that the last pass waited for a drain.
	draining bool
	// sent are the messages of events that are sent again only after they changed.
	sent events.Said
	// refused are the writes to the node that the API server refused, by the reason of the event.
	refused map[string]refusal
}

// newScope returns the scope of a pass over a Machine from the cache, once the first pass has begun.
func (c *Controller) newScope(cached *v1alpha1.Machine, memory *memory) *scope {
	return &scope{
		client: c.Client, written: &c.written, outages: c.outages, memory: memory, now: c.Clock.Now(),
		machine: cached.DeepCopy(), stored: cached, events: eventList{sent: &memory.sent},
	}
}

func (s *scope) key() types.NamespacedName { return client.ObjectKeyFromObject(s.machine) }

// requeueWithin requests another pass after d at the latest. Zero requests none.
func (s *scope) requeueWithin(d time.Duration) {
	s.requeueAfter = flow.Sooner(s.requeueAfter, d)
}

// patch stores a change of the Machine's metadata and spec, if there is one.
func (s *scope) patch(ctx context.Context, change func(*v1alpha1.Machine)) error {
	changed := s.stored.DeepCopy()
	change(changed)
	if equality.Semantic.DeepEqual(s.stored, changed) {
		return nil
	}
	if err := s.written.Patch(ctx, s.client, changed, s.stored); err != nil {
		return fmt.Errorf("patching machine %s: %w", s.machine.Name, err)
	}
	s.machine.ObjectMeta, s.machine.Spec = *changed.ObjectMeta.DeepCopy(), *changed.Spec.DeepCopy()
	s.stored = changed
	return nil
}
