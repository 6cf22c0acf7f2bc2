// Package recorder makes the texts of events printable and limits their length, because parts of them come from
// providers and guests.
package recorder

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Longest is the maximum length of an event's text, in bytes.
const Longest = 4 << 10

// New returns a recorder that shortens the texts of events and makes them printable. All recorders are created
// with it.
func New(inner record.EventRecorder) record.EventRecorder { return printable{inner} }

type printable struct{ record.EventRecorder }

// Event implements record.EventRecorder.
func (p printable) Event(object runtime.Object, kind, reason, message string) {
	p.EventRecorder.Event(object, kind, reason, messages.Shorten(message, Longest))
}

// Eventf implements record.EventRecorder.
func (p printable) Eventf(object runtime.Object, kind, reason, format string, values ...any) {
	p.Event(object, kind, reason, fmt.Sprintf(format, values...))
}

// AnnotatedEventf implements record.EventRecorder.
func (p printable) AnnotatedEventf(object runtime.Object, annotations map[string]string, kind, reason, format string, values ...any) {
	p.EventRecorder.AnnotatedEventf(object, annotations, kind, reason, "%s", messages.Shorten(fmt.Sprintf(format, values...), Longest))
}
