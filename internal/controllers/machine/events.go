package machine

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Reasons of the events on Machines and their nodes.
const (
	reasonJoined       = "Joined"
	reasonUnhealthy    = "Unhealthy"
	reasonFailedCreate = "FailedCreate"
	reasonFailedDelete = "FailedDelete"
	reasonFailedJoin   = "FailedJoin"
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
