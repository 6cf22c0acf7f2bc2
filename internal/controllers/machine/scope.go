package machine

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/events"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
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

	reasonInvalidTemplate = "InvalidNodeTemplate"
	reasonTemplateRefused = "NodeTemplateRefused"
	reasonCapacityRefused = "VirtualCapacityRefused"
)

// longestEvent is how many bytes of a message are sent: a driver may fail with any.
const longestEvent = 1024

// cause is why an event is sent. Programs read it in the annotations of the event.
type cause struct{ name, method, code, step string }

func (c cause) annotations() map[string]string {
	annotations := map[string]string{}
	for key, value := range map[string]string{
		v1alpha1.EventAnnotationCause: c.name, v1alpha1.EventAnnotationMethod: c.method,
		v1alpha1.EventAnnotationCode: c.code, v1alpha1.EventAnnotationStep: c.step,
	} {
		if value != "" {
			annotations[key] = value
		}
	}
	return annotations
}

// driverCause is that of an event about a driver's failure.
func driverCause(failure *instance.Failure) cause {
	return cause{name: v1alpha1.CauseDriverFailed, method: string(failure.Method), code: failure.Code.String()}
}

// pendingEvent is one that is sent at the end of the pass.
type pendingEvent struct {
	kind, reason, message string
	cause                 cause
	// node is the one that it is about; nil if it is about the Machine.
	node *corev1.Node
	// topic is under which memory.told remembers the message; empty if it does not.
	topic string
}

func (s *scope) explain(kind, reason string, why cause, message string) {
	s.events = append(s.events, pendingEvent{kind: kind, reason: reason, cause: why, message: message})
}

// explainNode is explain for what concerns the node, if the pass knows one.
func (s *scope) explainNode(kind, reason string, why cause, message string) {
	if s.node != nil {
		s.events = append(s.events, pendingEvent{kind: kind, reason: reason, cause: why, message: message, node: s.node})
	}
}

// explainBoth is for what concerns the Machine and its node alike.
func (s *scope) explainBoth(kind, reason string, why cause, message string) {
	s.explain(kind, reason, why, message)
	s.explainNode(kind, reason, why, message)
}

// warnOnce warns of something unless it was what the last warning about the topic said.
func (s *scope) warnOnce(topic, reason, message string, node *corev1.Node) {
	if !s.memory.told.Is(topic, message) {
		s.events = append(s.events, pendingEvent{kind: corev1.EventTypeWarning, reason: reason, message: message, node: node, topic: topic})
	}
}

// sendEvents sends the events of a pass whose status is written.
func (c *Controller) sendEvents(s *scope) {
	for _, e := range s.events {
		message := messages.Shorten(e.message, longestEvent)
		switch {
		case e.node == nil:
			c.Events.AnnotatedEventf(s.machine, e.cause.annotations(), e.kind, e.reason, "%s", message)
		case c.NodeEvents != nil:
			c.NodeEvents.AnnotatedEventf(e.node, e.cause.annotations(), e.kind, e.reason, "%s", message)
		}
		if e.topic != "" {
			s.memory.told.Note(e.topic, e.message)
		}
	}
}
