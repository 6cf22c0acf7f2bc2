package manager

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/millwright-dev/millwright/internal/reconcile/messages/recorder"
)

// events writes core/v1 Events, as MCM does and MCM's role permits: that role grants
// nothing in the group events.k8s.io, which controller-runtime's newer recorder uses.
type events struct {
	broadcaster record.EventBroadcaster
	scheme      *runtime.Scheme
}

// correlation limits the events on one object. A rollout takes many steps, and each has an event
// that says why; client-go's defaults are a burst of 25 and one more in five minutes.
var correlation = record.CorrelatorOptions{
	BurstSize: 200,
	QPS:       0.1,
	MaxEvents: 100, // with the same reason, in ten minutes
	KeyFunc:   correlationKey,
}

// correlationKey returns what events must have in common to be combined into one, and in what they
// differ then. Combined events lose their annotations, which programs read, so events with
// annotations are only combined with their own repetitions.
func correlationKey(event *corev1.Event) (common, different string) {
	common, different = record.EventAggregatorByReasonFunc(event)
	if len(event.Annotations) > 0 {
		common += different
	}
	return common, different
}

// newEvents starts sending events, on a connection and under a limit of their own.
func newEvents(cluster *rest.Config, scheme *runtime.Scheme) (*events, error) {
	clients, err := kubernetes.NewForConfig(apart(cluster))
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	broadcaster := record.NewBroadcaster(record.WithCorrelatorOptions(correlation))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: clients.CoreV1().Events("")})
	return &events{broadcaster: broadcaster, scheme: scheme}, nil
}

func (e *events) recorder(component string) record.EventRecorder {
	return recorder.New(e.broadcaster.NewRecorder(e.scheme, corev1.EventSource{Component: component}))
}

func (e *events) shutdown() { e.broadcaster.Shutdown() }
