package machine

import (
	"cmp"
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/outage"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity/capacity"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/reconcile/target"
)

// Options configure a Controller.
type Options struct {
	// Client of the control cluster. It reads from the cache.
	Client client.Client
	// Target is the cluster that nodes join; nil if there is none.
	Target target.Interface
	// Tokens issues bootstrap tokens; nil without a target.
	Tokens *bootstrap.Tokens
	// Engine creates and deletes instances.
	Engine *instance.Engine
	// Drivers contains the engine's drivers. If no driver serves a Machine's class, the Machine's VM is
	// neither created nor deleted. If nil, this is not checked.
	Drivers *registry.Registry
	// TaskCompletions emits the events of the engine's Wake, one for each completed task.
	TaskCompletions source.Source
	// Capacity records which classes have capacity. If nil, Machines never fall back to another class.
	Capacity *capacity.Memory
	// Events records events on Machines. NodeEvents records events on nodes; nil drops them.
	Events, NodeEvents record.EventRecorder
	Clock              clock.PassiveClock
	// Steady is a clock that is never adjusted; see outage.Options. If nil, Clock is used.
	Steady clock.PassiveClock
	// Concurrency is the number of workers.
	Concurrency int
	// CreationTimeout is the time after which a Machine whose node has not joined is Failed. Zero means
	// timeouts.DefaultCreation. A Machine may override it, like all timeouts.
	CreationTimeout time.Duration
	// PreserveTimeout is how long a Machine is preserved. Zero means DefaultPreserveTimeout.
	PreserveTimeout time.Duration
	// InPlaceUpdateTimeout is the time after which the in-place update of a node has failed. Zero means
	// timeouts.DefaultInPlaceUpdate.
	InPlaceUpdateTimeout time.Duration
	// RecordJoins records on every new Machine how long its node took to join, which costs one request per
	// Machine. If false, this is recorded only on Machines with the annotation
	// v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout.
	RecordJoins bool
	// NodeConditions lists the node conditions that make a Machine unhealthy unless they are False. A
	// Machine may override the list.
	NodeConditions []string
	Health         Health
	Drain          Drain
	// Migration reports the progress of the migration of a class of a legacy kind. If nil, legacy kinds are
	// not supported.
	Migration func(ctx context.Context, namespace string, class v1alpha1.ClassSpec) (Migration, error)
	// OtherOwners finds the objects of another API group that own a VM. If nil, only Machines own VMs.
	OtherOwners ownership.Finder
	// Outages reports to other components whether timeouts are suspended. It may be nil.
	Outages *outage.Reporter
}

// Health configures the replacement of unhealthy Machines.
type Health struct {
	// Timeout is the time after which an unhealthy Machine is Failed. Zero means DefaultHealthTimeout.
	Timeout time.Duration
	// MaxReplacements limits how many unhealthy Machines with the same label "name" may be replaced at the
	// same time. It is a number, or a percentage of those Machines, which is rounded down but at least 1.
	MaxReplacements intstr.IntOrString
	// MaxTotalReplacements limits replacements in the same way across all pools. Zero disables replacements;
	// nil means no limit.
	MaxTotalReplacements *intstr.IntOrString
	// OutageTimeout is how long an API server must fail to respond before it counts as unavailable. Timeouts
	// restart when it responds again. Zero means DefaultOutageTimeout.
	OutageTimeout time.Duration
	// OutagePeriod is the interval of the health checks of the API servers while a timeout is
	// pending. Zero means DefaultOutagePeriod.
	OutagePeriod time.Duration
}

// Drain configures the drain of nodes before their VMs are deleted.
type Drain struct {
	// Drainer drains nodes. If nil, nodes are only cordoned.
	Drainer drain.Interface
	// Timeout is the time from the deletion of a Machine until its drain is forced. Zero means
	// DefaultDrainTimeout.
	Timeout time.Duration
	// MaxEvictRetries is how many times a refused eviction is retried. Zero means DefaultMaxEvictRetries. A
	// Machine may override it.
	MaxEvictRetries int32
}

// Default values of the options. They are MCM's.
const (
	DefaultHealthTimeout   = timeouts.DefaultHealth
	DefaultDrainTimeout    = timeouts.DefaultDrain
	DefaultPreserveTimeout = timeouts.DefaultPreserve
	DefaultMaxEvictRetries = timeouts.DefaultMaxEvictRetries
	DefaultOutageTimeout   = timeouts.DefaultOutage
	DefaultOutagePeriod    = timeouts.DefaultOutagePeriod
)

// withDefaults replaces zero values with defaults, and negative timeouts and retry counts with zero.
func (o Options) withDefaults() Options {
	o.CreationTimeout = max(0, cmp.Or(o.CreationTimeout, timeouts.DefaultCreation))
	o.PreserveTimeout = max(0, cmp.Or(o.PreserveTimeout, DefaultPreserveTimeout))
	o.InPlaceUpdateTimeout = max(0, cmp.Or(o.InPlaceUpdateTimeout, timeouts.DefaultInPlaceUpdate))
	o.Health.Timeout = max(0, cmp.Or(o.Health.Timeout, DefaultHealthTimeout))
	o.Health.OutageTimeout = cmp.Or(o.Health.OutageTimeout, DefaultOutageTimeout)
	o.Health.OutagePeriod = cmp.Or(o.Health.OutagePeriod, DefaultOutagePeriod)
	o.Drain.Timeout = max(0, cmp.Or(o.Drain.Timeout, DefaultDrainTimeout))
	o.Drain.MaxEvictRetries = max(0, cmp.Or(o.Drain.MaxEvictRetries, DefaultMaxEvictRetries))
	return o
}
