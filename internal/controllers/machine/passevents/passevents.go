// Package passevents collects the events of one pass over a Machine, to be sent at its end.
package passevents

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/events"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Cause is why an event is sent, for programs that read its annotations.
type Cause struct{ Name, Method, Code, Step string }

// OfDriver is the cause of an event about a failed call of the driver.
func OfDriver(failure *instance.Failure) Cause {
	why := Cause{Name: v1alpha1.CauseDriverFailed, Method: string(failure.Method), Code: failure.Code.String()}
	if failure.Elsewhere() {
		why.Name = v1alpha1.CauseInstanceElsewhere
	}
	return why
}

func (c Cause) annotations() map[string]string {
	annotations := map[string]string{}
	for key, value := range map[string]string{
		v1alpha1.EventAnnotationCause: c.Name, v1alpha1.EventAnnotationMethod: c.Method,
		v1alpha1.EventAnnotationCode: c.Code, v1alpha1.EventAnnotationStep: c.Step,
	} {
		if value != "" {
			annotations[key] = value
		}
	}
	return annotations
}

// Event is an event that is not sent yet.
type Event struct {
	Kind, Reason string
	Cause        Cause
	Message      string
	// Node that it is about; nil if it is about the Machine.
	Node *corev1.Node
	// topic of the message in List.Sent; empty if it is sent by every pass.
	topic string
}

// List are the events of a pass.
type List struct {
	// Sent are the events that are sent only when they change. It is required by the methods whose names
	// begin with Warn.
	Sent    *events.Said
	pending []Event
}

// Add adds an event on the Machine.
func (l *List) Add(kind, reason string, why Cause, message string) {
	l.pending = append(l.pending, Event{Kind: kind, Reason: reason, Cause: why, Message: message})
}

// AddToNode adds an event on a node, unless that is nil.
func (l *List) AddToNode(node *corev1.Node, kind, reason string, why Cause, message string) {
	if node != nil {
		l.pending = append(l.pending, Event{Kind: kind, Reason: reason, Cause: why, Message: message, Node: node})
	}
}

// AddToBoth adds an event on the Machine, and one on its node, unless that is nil.
func (l *List) AddToBoth(node *corev1.Node, kind, reason string, why Cause, message string) {
	l.Add(kind, reason, why, message)
	l.AddToNode(node, kind, reason, why, message)
}

// WarnOnce adds a warning whose message is not the last one of its topic. It is noted when it is sent.
func (l *List) WarnOnce(topic string, e Event) {
	if !l.Sent.Is(topic, e.Message) {
		e.Kind, e.topic = corev1.EventTypeWarning, topic
		l.pending = append(l.pending, e)
	}
}

// WarnOrForget is WarnOnce; without a message the topic is over.
func (l *List) WarnOrForget(topic string, e Event) {
	if e.Message == "" {
		l.Sent.Over(topic)
		return
	}
	l.WarnOnce(topic, e)
}

// WarnAbout adds a warning unless the last one of its topic was about the same, whatever the messages are.
func (l *List) WarnAbout(topic, about string, e Event) {
	if l.Sent.News(topic, about) {
		l.Add(corev1.EventTypeWarning, e.Reason, e.Cause, e.Message)
	}
}

// Longest limits the bytes of a message, as drivers do not.
const Longest = 1024

// Send sends the events, those on nodes only with a recorder for these.
func (l *List) Send(machine *v1alpha1.Machine, recorder, ofNodes record.EventRecorder) {
	for _, e := range l.pending {
		message := messages.Shorten(e.Message, Longest)
		switch {
		case e.Node == nil:
			recorder.AnnotatedEventf(machine, e.Cause.annotations(), e.Kind, e.Reason, "%s", message)
		case ofNodes != nil:
			ofNodes.AnnotatedEventf(e.Node, e.Cause.annotations(), e.Kind, e.Reason, "%s", message)
		}
		if e.topic != "" {
			l.Sent.Note(e.topic, e.Message)
		}
	}
}
