package machine

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"
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
	// written tracks the writes to all Machines, to detect a stale cache.
	written *expectations.Writes
	// outages measures timeouts, which restart after an outage.
	outages *outage.Monitor
	memory  *memory
	now     time.Time

	// machine is the pass's copy of the Machine. Its metadata and spec match the API server's; its status is
	// written at the end of the pass.
	machine *v1alpha1.Machine
	// stored is the Machine as the API server has it. It may be the cache's object and must not be changed.
	stored *v1alpha1.Machine
	// events are sent once the status is written.
	events eventList
	// requeueAfter is the time until the next pass at the latest. If zero, only an event triggers it.
	requeueAfter time.Duration

	// node is the Machine's node; nil if there is none. Set by AwaitNode and FindNode.
	node *corev1.Node
	// nodeOfOther reports that the Machine names a node that is not its own. Set by AwaitNode.
	nodeOfOther bool
	// class is the Machine's class. It is nil if the class does not exist, or if the API server refused to set
	// its virtual capacity on the node. Set by SetCapacity.
	class *v1alpha1.MachineClass
	// ownedByOther names the other object that owns the VM, as a message. It is set if the Machine has no
	// provider ID and the driver finds another object's VM for it. Set by IdentifyInstance and IdentifyNode.
	ownedByOther string
	// force is the reason why the drain is forced, if it is. Set by FindNode and Drain.
	force drain.Force
	// drainSince is when the drain began or restarted. Set by FindNode.
	drainSince time.Time
}

// memory is kept between the passes over a Machine. If it is lost, an event may be sent twice, or a write may
// be retried too early.
type memory struct {
	// released is the UID of the Machine if its finalizer was removed. The cache may still contain it.
	released types.UID
	// registering is the name of a new node whose kubelet may still be registering it. The node is not
	// written to meanwhile. registeringSince is when the node was first seen.
	registering      string
	registeringSince time.Time
	// copies limits how often the conditions of the node are copied. It is nil before the first copy.
	copies *rate.Limiter
	// draining is true if the last pass waited for a drain.
	draining bool
	// sent contains the messages of events that are sent again only after the message changed.
	sent events.Last
	// refused contains the writes to the node that the API server refused, by the reason of the event.
	refused map[string]refusal
}

// newScope returns the scope of a pass over a Machine from the cache. Call begin before it.
func (c *Controller) newScope(cached *v1alpha1.Machine, memory *memory) *scope {
	return &scope{
		client: c.Client, written: &c.written, outages: c.outages, memory: memory, now: c.Clock.Now(),
		machine: cached.DeepCopy(), stored: cached, events: eventList{sent: &memory.sent},
	}
}

func (s *scope) key() types.NamespacedName { return client.ObjectKeyFromObject(s.machine) }

// requeueWithin requests another pass after d at the latest. If d is zero, it does nothing.
func (s *scope) requeueWithin(d time.Duration) {
	s.requeueAfter = flow.Sooner(s.requeueAfter, d)
}

// patch applies change to the Machine's metadata and spec, and writes them if they changed.
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
