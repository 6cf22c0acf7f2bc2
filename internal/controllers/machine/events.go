package machine

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/events"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

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
	reasonForeignNode  = "NodeOfOthers"

	reasonFellBack     = "FellBack"
	reasonUnfitClass   = "UnfitClass"
	reasonCapacityBack = "CapacityBack"

	reasonInvalidTemplate = "InvalidNodeTemplate"
	reasonTemplateRefused = "NodeTemplateRefused"
	reasonCapacityRefused = "VirtualCapacityRefused"
)

// cause is why an event is sent. Programs read it from the event's annotations.
type cause struct{ name, method, code, step string }

// driverCause returns the cause of an event about a failed driver call.
func driverCause(failure *instance.Failure) cause {
	why := cause{name: v1alpha1.CauseDriverFailed, method: string(failure.Method), code: failure.Code.String()}
	if failure.Elsewhere() {
		why.name = v1alpha1.CauseInstanceElsewhere
	}
	return why
}

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

// pendingEvent is an event that has not been sent yet.
type pendingEvent struct {
	kind, reason string
	cause        cause
	message      string
	// node is the node that the event is about; nil if it is about the Machine.
	node *corev1.Node
	// topic is the key of the message in eventList.sent. If empty, every pass sends the event.
	topic string
}

// eventList collects the events of one pass. They are sent after the status is stored.
type eventList struct {
	// sent contains, by topic, the messages that are sent again only after they changed.
	sent    *events.Last
	pending []pendingEvent
}

// add adds an event on the Machine.
func (l *eventList) add(kind, reason string, why cause, message string) {
	l.pending = append(l.pending, pendingEvent{kind: kind, reason: reason, cause: why, message: message})
}

// addToNode adds an event on a node, unless the node is nil.
func (l *eventList) addToNode(node *corev1.Node, kind, reason string, why cause, message string) {
	if node != nil {
		l.pending = append(l.pending, pendingEvent{kind: kind, reason: reason, cause: why, message: message, node: node})
	}
}

// addToBoth adds an event on the Machine and, unless the node is nil, one on the node.
func (l *eventList) addToBoth(node *corev1.Node, kind, reason string, why cause, message string) {
	l.add(kind, reason, why, message)
	l.addToNode(node, kind, reason, why, message)
}

// warnOnce adds a warning unless its message was the last one sent on the topic.
func (l *eventList) warnOnce(topic string, e pendingEvent) {
	if !l.sent.Is(topic, e.message) {
		e.kind, e.topic = corev1.EventTypeWarning, topic
		l.pending = append(l.pending, e)
	}
}

// warnOrForget is like warnOnce, but an event without a message clears the topic.
func (l *eventList) warnOrForget(topic string, e pendingEvent) {
	if e.message == "" {
		l.sent.Over(topic)
		return
	}
	l.warnOnce(topic, e)
}

// warnOncePer adds a warning unless the last one on its topic had the same key, even if the messages differ.
func (l *eventList) warnOncePer(topic, key string, e pendingEvent) {
	if l.sent.News(topic, key) {
		l.add(corev1.EventTypeWarning, e.reason, e.cause, e.message)
	}
}

// maxEventMessage is the maximum length of a message in bytes, since messages from drivers may be longer.
const maxEventMessage = 1024

// send sends the events. Events on nodes are sent with nodeRecorder, and are dropped if it is nil.
func (l *eventList) send(machine *v1alpha1.Machine, recorder, nodeRecorder record.EventRecorder) {
	for _, e := range l.pending {
		message := messages.Shorten(e.message, maxEventMessage)
		switch {
		case e.node == nil:
			recorder.AnnotatedEventf(machine, e.cause.annotations(), e.kind, e.reason, "%s", message)
		case nodeRecorder != nil:
			nodeRecorder.AnnotatedEventf(e.node, e.cause.annotations(), e.kind, e.reason, "%s", message)
		}
		if e.topic != "" {
			l.sent.Note(e.topic, e.message)
		}
	}
}
