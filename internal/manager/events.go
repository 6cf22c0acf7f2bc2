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

// events writes core/v1 Events, like MCM. The recorder of controller-runtime that uses events.k8s.io would
// require permissions that MCM's role does not grant.
type events struct {
	broadcaster record.EventBroadcaster
	scheme      *runtime.Scheme
}

// correlation limits the events about one object. A rollout takes many steps, and each step has an event with
// its reason. The defaults of client-go allow a burst of 25 and then one event every five minutes.
var correlation = record.CorrelatorOptions{
	BurstSize: 200,
	QPS:       0.1,
	MaxEvents: 100, // with the same reason, in ten minutes
	KeyFunc:   correlationKey,
}

// correlationKey returns the key by which events are combined into one, and the text in which combined events
// differ. Combined events lose their annotations, which programs read. For this reason, events with annotations
// are combined only with repetitions of themselves.
func correlationKey(event *corev1.Event) (common, different string) {
	common, different = record.EventAggregatorByReasonFunc(event)
	if len(event.Annotations) > 0 {
		common += different
	}
	return common, different
}

// Sources of events on MachineSets and MachineDeployments, as in MCM. Users select events by them.
const (
	// componentMachineSet is the source of events about creating and deleting Machines.
	componentMachineSet = "machineset-controller"
	// componentMCM is the source of events on MachineDeployments, and on MachineSets that are frozen or unfrozen.
	componentMCM = "machine-controller-manager"
)

// newEvents starts sending events with a separate connection and rate limit.
func newEvents(cluster *rest.Config, scheme *runtime.Scheme) (*events, error) {
	clients, err := kubernetes.NewForConfig(apart(cluster))
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	return newEventsOf(clients, scheme), nil
}

// newEventsOf starts sending events with a client.
func newEventsOf(clients kubernetes.Interface, scheme *runtime.Scheme) *events {
	broadcaster := record.NewBroadcaster(record.WithCorrelatorOptions(correlation))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: clients.CoreV1().Events("")})
	return &events{broadcaster: broadcaster, scheme: scheme}
}

func (e *events) recorder(component string) record.EventRecorder {
	return recorder.New(e.broadcaster.NewRecorder(e.scheme, corev1.EventSource{Component: component}))
}

func (e *events) shutdown() { e.broadcaster.Shutdown() }
