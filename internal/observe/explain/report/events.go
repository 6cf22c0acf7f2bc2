package report

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Events are events on one or several objects.
type Events []corev1.Event

// Sort sorts events by their time. The times have a resolution of one second, and caches are not ordered, so it sorts events of
// the same second by their names.
func (e Events) Sort() {
	slices.SortStableFunc(e, func(a, b corev1.Event) int {
		return cmp.Or(Time(&a).Compare(Time(&b)), cmp.Compare(recorded(a.Name), recorded(b.Name)), cmp.Compare(a.Name, b.Name))
	})
}

// recorded returns the suffix of the name of an event. In client-go's names, it is the time in nanoseconds, in hexadecimal.
func recorded(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }

// By returns the events on objects of a kind, grouped by the names of the objects.
func (e Events) By(kind string) map[string]Events {
	by := map[string]Events{}
	for i := range e {
		if on := e[i].InvolvedObject; on.Kind == kind {
			by[on.Name] = append(by[on.Name], e[i])
		}
	}
	return by
}

// Newest returns the latest event on a kind of object for which fits returns true and that has one of the reasons.
// Without reasons, any reason matches. It returns nil if there is none.
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

// Time returns when an event last occurred, from the first of its fields that is set.
func Time(event *corev1.Event) time.Time {
	if event.Series != nil && !event.Series.LastObservedTime.IsZero() {
		return event.Series.LastObservedTime.Time
	}
	for _, t := range []time.Time{event.LastTimestamp.Time, event.EventTime.Time} {
		if !t.IsZero() {
			return t
		}
	}
	return event.CreationTimestamp.Time
}

// CauseOf returns the cause in the event's annotation, or an empty string if there is none.
func CauseOf(event *corev1.Event) string { return event.Annotations[v1alpha1.EventAnnotationCause] }

// IsAnnotated reports whether a controller annotated the event with a cause or with a step of a deletion.
func IsAnnotated(event *corev1.Event) bool {
	return CauseOf(event) != "" || event.Annotations[v1alpha1.EventAnnotationStep] != ""
}

// On reports whether an event is on an object, and not on an earlier object with the same name. An empty UID
// matches any object.
func On(event *corev1.Event, name string, uid types.UID) bool {
	about := event.InvolvedObject
	return about.Name == name && (uid == "" || about.UID == "" || about.UID == uid)
}

// Names reports whether an event on another object mentions the named object, either in its annotation or at the
// end of its message. The latter is the case for events of MCM's sets, which have no annotations.
func Names(event *corev1.Event, name string) bool {
	objects := strings.Split(event.Annotations[v1alpha1.EventAnnotationObjects], ",")
	return slices.Contains(objects, name) || strings.HasSuffix(event.Message, "Deleted machine: "+name)
}

// ScaledDown reports whether an event is about a set that was scaled down.
func ScaledDown(event *corev1.Event, set string) bool {
	return set != "" && CauseOf(event) == v1alpha1.CauseScaledDown && Names(event, set)
}

// EventOf returns what a report shows of an event.
func EventOf(event *corev1.Event) Event {
	count := event.Count
	if event.Series != nil {
		count = event.Series.Count
	}
	return Event{
		At: Time(event), Type: event.Type, Object: event.InvolvedObject.Kind + " " + event.InvolvedObject.Name,
		Reason: event.Reason, Text: Clause(event.Message), Count: max(count, 1),
	}
}
