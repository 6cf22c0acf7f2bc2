package machine

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machine/passevents"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/reconcile/events"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// scope is what the steps of one pass share.
type scope struct {
	// machine is the pass's copy. Its metadata and spec are those of the API server; its status
	// is written at the end.
	machine *v1alpha1.Machine
	// stored is the Machine as the API server has it. It may be the cache's.
	stored *v1alpha1.Machine
	// node is the Machine's node; nil if there is none. Set by awaitNode and findNode.
	node *corev1.Node
	// nodeOfOther reports that the Machine names a node that is not its own. Set by awaitNode.
	nodeOfOther bool
	// class is nil if it is missing, or if the node may not have its capacity. Set by
	// setCapacity.
	class  *v1alpha1.MachineClass
	now    time.Time
	memory *memory
	// events are sent once the status is written.
	events passevents.List
	// within is when another pass is due at the latest; zero if there is no such time.
	within time.Duration
	// ownedByOther is a message if the VM that the driver finds for a Machine that names none
	// is another object's. Set by identifyInstance and identifyNode.
	ownedByOther string
	// force is why the drain is forced. Set by findNode and drain.
	force drain.Force
	// drainSince is when the drain began, or began anew. Set by findNode.
	drainSince time.Time
}

// memory is kept between the passes over a Machine. Losing it costs an event that is sent twice, or
// a write that is tried too early.
type memory struct {
	// released is the UID of the Machine whose finalizer was removed, until the cache shows it.
	released types.UID
	// registering is the name of a new node that is not written to until its kubelet has
	// registered, and registeringSince when it was first seen.
	registering      string
	registeringSince time.Time
	// draining reports that the last pass waited for a drain.
	draining bool
	// sent are the events that are sent only when they change.
	sent events.Said
	// refused are the writes to the node that the API server refused, by the reason of the event.
	refused map[string]refusal
}

func newScope(cached *v1alpha1.Machine, memory *memory, now time.Time) *scope {
	return &scope{machine: cached.DeepCopy(), stored: cached, memory: memory, now: now, events: passevents.List{Sent: &memory.sent}}
}

func (s *scope) wakeWithin(d time.Duration) {
	s.within = flow.Sooner(s.within, d)
}

func (s *scope) key() types.NamespacedName { return client.ObjectKeyFromObject(s.machine) }

// Reasons of the events on Machines and their nodes.
const (
	reasonJoined       = "Joined"
	reasonUnhealthy    = "Unhealthy"
	reasonFailedCreate = "FailedCreate"
	reasonFailedDelete = "FailedDelete"
	reasonFailedJoin   = "FailedJoin"
	reasonDeleting     = "DeletingVM"
	reasonDeleted      = "Deleted"
	reasonNodeDeleted  = "NodeDeleted"
	reasonTerminating  = "MachineTerminating"
	reasonFailedHealth = "FailedHealth"
	reasonDelayed      = "ReplacementDelayed"
	reasonForcedDrain  = "ForcedDrain"
	reasonFailedDrain  = "FailedDrain"
	reasonDrained      = "Drained"
	reasonOtherVM      = "NodeOfOtherVM"
	reasonOtherMachine = "NodeOfOtherMachine"
	reasonStrangeNode  = "NodeOfOthers"

	reasonFellBack     = "FellBack"
	reasonUnfitClass   = "UnfitClass"
	reasonCapacityBack = "CapacityBack"

	reasonInvalidTemplate = "InvalidNodeTemplate"
	reasonTemplateRefused = "NodeTemplateRefused"
	reasonCapacityRefused = "VirtualCapacityRefused"
)
