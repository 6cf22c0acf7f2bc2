package manager

import (
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/controllers/machine"
	"github.com/millwright-dev/millwright/internal/controllers/machineset"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/orphans"
)

// Config configures a manager.
type Config struct {
	Settings

	// Control is the cluster with the Machines. Required.
	Control *rest.Config
	// Target is the cluster that nodes join. It is nil if there is none.
	Target *rest.Config
	// Drivers create and delete instances, by the providers of classes and MillwrightMachines. They may be added
	// and removed while the manager is running. Required, except for HalfSets. APICAPI requires drivers with
	// names.
	Drivers *registry.Registry
	// Runnables are started with the controllers, only on the leader.
	Runnables []ctrlmanager.Runnable
	// ReservedNode reports whether Machines must not have a node of the given name. It is used with
	// ApproveNodeCertificates. If nil, no names are reserved.
	ReservedNode func(node string) bool
	// Seed shares the caches of Control with the managers of other namespaces. If nil, the manager has its own. A
	// manager with a Seed serves both halves of APIMCM in Namespace and takes part in leader election, and a panic stops
	// it instead of the process: Run then returns a PanicError. Run returns only after all tasks have completed, however long
	// that takes.
	Seed *Seed
	// Metrics is where the metrics of Machines, sets, deployments and orphans are registered. If nil,
	// controller-runtime's registry is used.
	Metrics prometheus.Registerer
	// Progress is called when the state of the manager changes. Optional.
	Progress func(State)
	// Log is the logger of all controllers.
	Log logr.Logger
}

// State is what a manager is doing.
type State string

const (
	// StateStandby means that another process holds the leases.
	StateStandby State = "standby"
	// StateStarting means that the manager holds the leases and fills its caches.
	StateStarting State = "starting"
	// StateServing means that the controllers run.
	StateServing State = "serving"
)

// registry returns where the metrics are registered.
func (c Config) registry() prometheus.Registerer {
	if c.Metrics == nil {
		return ctrlmetrics.Registry
	}
	return c.Metrics
}

// Settings are the settings that users make with flags.
type Settings struct {
	// Namespace is the namespace of the Machines in the control cluster. Required unless APIs is only APICAPI,
	// where an empty Namespace means all namespaces.
	Namespace string
	// Installation is the name by which drivers distinguish their VMs from those of other installations.
	Installation string
	// APIs are the APIs that the manager serves. Empty means APIMCM.
	APIs []API
	// Half is the half of APIMCM that the manager serves. Empty means both.
	Half Half
	// ClusterAPI configures APICAPI.
	ClusterAPI ClusterAPI
	// Webhooks configures the webhooks of the APIs.
	Webhooks Webhooks
	// Election configures leader election.
	Election Election
	// ConcurrentSyncs is the maximum number of objects of one kind that are reconciled concurrently, and of
	// concurrent driver calls. Required.
	ConcurrentSyncs int
	// ResyncPeriod is how often all objects are reconciled without an event. Zero means
	// controller-runtime's default.
	ResyncPeriod time.Duration

	Pages
	MachineSettings
	SetSettings
}

// MachineSettings are settings for Machines. For the limits of a Machine (CreationTimeout and those in Health,
// Drain and Timeouts), zero means the default, and a negative value means no limit.
type MachineSettings struct {
	// CreationTimeout is the time after which a Machine that has not joined is Failed.
	CreationTimeout time.Duration
	// DriverTimeout is the timeout of a driver call, which the decorator of the drivers applies. Zero means
	// instrument.DefaultTimeout.
	DriverTimeout time.Duration
	// ResourceExhaustedRetry is the interval between creations that fail with ResourceExhausted.
	ResourceExhaustedRetry time.Duration
	// Fallback configures when Machines are created with another class than their first choice.
	Fallback Fallback
	// NodeConditions make a Machine unhealthy unless they are False.
	NodeConditions []string
	// Health configures how long Machines may be unhealthy.
	Health machine.Health
	// Drain configures drains.
	Drain Drain
	// Timeouts are the limits of Machines that concern neither drains nor health.
	Timeouts Timeouts
	// Orphans configures the collection of orphaned VMs.
	Orphans Orphans
	// RecordJoins annotates every new Machine with the time that its node took to join.
	RecordJoins bool
	// BootstrapTokenGroups are the groups that bootstrap tokens authenticate as, separated by commas.
	BootstrapTokenGroups string
	// ApproveNodeCertificates enables decisions about the certificates that nodes request with the bootstrap
	// tokens of Machines. It applies only to APIMCM, because Millwright issues no bootstrap tokens for other
	// APIs.
	ApproveNodeCertificates bool
}

// SetSettings are settings for MachineSets and MachineDeployments.
type SetSettings struct {
	// Overshoot configures when MachineSets with too many Machines are frozen.
	Overshoot machineset.Overshoot
	// ProtectNodes prevents the cluster autoscaler from removing nodes during a rollout.
	ProtectNodes bool
	// EnforceMinReadySeconds counts Machines as available only after minReadySeconds.
	EnforceMinReadySeconds bool
}

// Drain configures drains.
type Drain struct {
	// Timeout and MaxEvictRetries are as in machine.Drain.
	Timeout         time.Duration
	MaxEvictRetries int32
	// Strategy, DetachTimeout and ReattachTimeout are as in drain.Options.
	Strategy                       drain.Strategy
	DetachTimeout, ReattachTimeout time.Duration
}

// Timeouts are the limits of phases of a Machine's lifecycle, which its spec can override.
type Timeouts struct {
	// Preserve is how long a preserved Machine is kept.
	Preserve time.Duration
	// InPlaceUpdate is how long an in-place update of a node may take.
	InPlaceUpdate time.Duration
}

// Fallback configures when Machines are created with another class than their first choice.
type Fallback struct {
	// After is how long a class must be without capacity before another one is used. Zero means that another one
	// is used immediately.
	After time.Duration
	// Memory is how long a class counts as having no capacity after the driver reported it. Zero means
	// capacity.DefaultMemory.
	Memory time.Duration
}

// Orphans configures the collection of orphaned VMs.
type Orphans struct {
	// Mode is what happens to orphaned VMs. Empty means that they are deleted.
	Mode orphans.Mode
	// Period is the time between two searches. Zero disables the search.
	Period time.Duration
}
