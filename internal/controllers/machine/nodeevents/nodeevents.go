// Package nodeevents records events on nodes, where that is allowed. The role of an installation of
// MCM does not allow it: events that are forbidden are dropped, and tried again after a while.
package nodeevents

import (
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/millwright-dev/millwright/internal/reconcile/messages/recorder"
)

// Start returns a recorder of events in the cluster of the nodes, which works until stop is called.
func Start(cluster *rest.Config, scheme *runtime.Scheme, log logr.Logger) (events record.EventRecorder, stop func(), err error) {
	clients, err := kubernetes.NewForConfig(cluster)
	if err != nil {
		return nil, nil, fmt.Errorf("events on nodes: %w", err)
	}
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&optional{
		EventSink: &typedcorev1.EventSinkImpl{Interface: clients.CoreV1().Events("")}, clock: clock.RealClock{}, log: log,
	})
	return recorder.Printable(broadcaster.NewRecorder(scheme, corev1.EventSource{Component: "machine-controller"})), broadcaster.Shutdown, nil
}

// tryAgain is how long nothing is sent after an event was forbidden.
const tryAgain = 10 * time.Minute

type optional struct {
	record.EventSink
	clock clock.PassiveClock
	log   logr.Logger

	mu        sync.Mutex
	forbidden time.Time // until when nothing is sent
}

// Create implements record.EventSink.
func (o *optional) Create(event *corev1.Event) (*corev1.Event, error) {
	return o.try(event, func() (*corev1.Event, error) { return o.EventSink.Create(event) })
}

// Update implements record.EventSink.
func (o *optional) Update(event *corev1.Event) (*corev1.Event, error) {
	return o.try(event, func() (*corev1.Event, error) { return o.EventSink.Update(event) })
}

// Patch implements record.EventSink.
func (o *optional) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	return o.try(event, func() (*corev1.Event, error) { return o.EventSink.Patch(event, data) })
}

func (o *optional) try(event *corev1.Event, send func() (*corev1.Event, error)) (*corev1.Event, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.clock.Now().Before(o.forbidden) {
		return event, nil
	}
	sent, err := send()
	if !apierrors.IsForbidden(err) {
		return sent, err
	}
	if o.forbidden.IsZero() {
		o.log.V(1).Info("events on nodes are not allowed and are left out", "err", err.Error())
	}
	o.forbidden = o.clock.Now().Add(tryAgain)
	return event, nil
}
