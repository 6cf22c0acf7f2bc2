package report

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Events are events of some objects.
type Events []corev1.Event

// Sort puts events in the order of their times.
func (e Events) Sort() {
	slices.SortStableFunc(e, func(a, b corev1.Event) int { return Time(&a).Compare(Time(&b)) })
}

// Newest returns the newest event of a kind of object with one of the reasons that fits; nil if
// there is none.
func (e Events) Newest(kind string, fits func(*corev1.Event) bool, reasons ...string) *corev1.Event {
	var newest *corev1.Event
	for i := range e {
		event := &e[i]
		is := event.InvolvedObject.Kind == kind && (len(reasons) == 0 || slices.Contains(reasons, event.Reason)) && fits(event)
		if is && (newest == nil || !Time(event).Before(Time(newest))) {
			newest = event
		}
	}
	return newest
}

// Time returns when an event last happened. There are three ways to write that.
func Time(event *corev1.Event) time.Time {
	switch {
	case event.Series != nil && !event.Series.LastObservedTime.IsZero():
		return event.Series.LastObservedTime.Time
	case !event.LastTimestamp.IsZero():
		return event.LastTimestamp.Time
	case !event.EventTime.IsZero():
		return event.EventTime.Time
	default:
		return event.CreationTimestamp.Time
	}
}

// Message returns what an event says, without what client-go writes before the newest of many
// similar events, whose annotations it drops.
func Message(event *corev1.Event) string {
	return strings.TrimPrefix(event.Message, "(combined from similar events): ")
}

// CauseOf returns the cause that a controller annotated; empty if it did not.
func CauseOf(event *corev1.Event) string { return event.Annotations[v1alpha1.EventAnnotationCause] }

// Names reports whether an event names an object, other than the one that it is on: in its
// annotation, or in its text if its writer annotates nothing, as MCM.
func Names(event *corev1.Event, name string) bool {
	if objects, ok := event.Annotations[v1alpha1.EventAnnotationObjects]; ok && slices.Contains(strings.Split(objects, ","), name) {
		return true
	}
	return mentions(event.Message, name)
}

// mentions reports whether a text holds a name. Names are often prefixes of others.
func mentions(text, name string) bool {
	for rest := text; ; {
		before, after, found := strings.Cut(rest, name)
		if !found {
			return false
		}
		begins := before == "" || !inName(before[len(before)-1])
		ends := after == "" || !inName(after[0]) || after[0] == '.' && (len(after) == 1 || !inName(after[1]))
		if begins && ends {
			return true
		}
		rest = after
	}
}

func inName(c byte) bool {
	return c == '-' || c == '.' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z'
}

// Quote takes over the newest of the events that are worth showing.
func (b *Builder) Quote(events Events, worth func(*corev1.Event) bool) {
	const most = 12
	var shown []Event
	for i := range events {
		if event := &events[i]; worth(event) {
			count := event.Count
			if event.Series != nil {
				count = event.Series.Count
			}
			shown = append(shown, Event{
				At: Time(event), Type: event.Type, Object: event.InvolvedObject.Kind + " " + event.InvolvedObject.Name,
				Reason: event.Reason, Text: b.Text("{text}", "{text}", event.Message), Count: max(count, 1),
			})
		}
	}
	b.Events = append(b.Events, shown[max(0, len(shown)-most):]...)
}
