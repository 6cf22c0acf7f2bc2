// Package nodeevents records events on nodes. MCM's role does not allow that, so the recorder drops events that
// are forbidden, and retries after a while.
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

// Start returns a recorder of events in the cluster of the nodes. It records until stop is called.
func Start(cluster *rest.Config, scheme *runtime.Scheme, log logr.Logger) (events record.EventRecorder, stop func(), err error) {
	clients, err := kubernetes.NewForConfig(cluster)
	if err != nil {
		return nil, nil, fmt.Errorf("creating a client for events on nodes: %w", err)
	}
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&optionalSink{
		EventSink: &typedcorev1.EventSinkImpl{Interface: clients.CoreV1().Events("")}, clock: clock.RealClock{}, log: log,
	})
	return recorder.New(broadcaster.NewRecorder(scheme, corev1.EventSource{Component: "machine-controller"})), broadcaster.Shutdown, nil
}

// forbiddenRetry is how long events are dropped after one was forbidden.
const forbiddenRetry = 10 * time.Minute

// optionalSink is an event sink that drops events while they are forbidden.
type optionalSink struct {
	record.EventSink
	clock clock.PassiveClock
	log   logr.Logger

	mu     sync.Mutex
	paused time.Time // events are dropped until then; zero if none was forbidden
}

// Create implements record.EventSink.
func (o *optionalSink) Create(event *corev1.Event) (*corev1.Event, error) {
	return o.try(event, func() (*corev1.Event, error) { return o.EventSink.Create(event) })
}

// Update implements record.EventSink.
func (o *optionalSink) Update(event *corev1.Event) (*corev1.Event, error) {
	return o.try(event, func() (*corev1.Event, error) { return o.EventSink.Update(event) })
}

// Patch implements record.EventSink.
func (o *optionalSink) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	return o.try(event, func() (*corev1.Event, error) { return o.EventSink.Patch(event, data) })
}

func (o *optionalSink) try(event *corev1.Event, send func() (*corev1.Event, error)) (*corev1.Event, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.clock.Now().Before(o.paused) {
		return event, nil
	}
	sent, err := send()
	if !apierrors.IsForbidden(err) {
		return sent, err
	}
	if o.paused.IsZero() {
		o.log.V(1).Info("cannot create events on nodes; dropping them", "err", err.Error())
	}
	o.paused = o.clock.Now().Add(forbiddenRetry)
	return event, nil
}
