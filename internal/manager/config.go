package manager

import (
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/controllers/machine"
	"github.com/millwright-dev/millwright/internal/controllers/machineset"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/orphans"
)

// Config configures a manager: what users set, and what the program connects it with.
type Config struct {
	Settings

	// Control is the cluster where the Machines live. Required.
	Control *rest.Config
	// Target is the cluster that nodes join. Nil means that there is none.
	Target *rest.Config
	// Drivers create and delete instances, by the providers of classes and MillwrightMachines. They may
	// be added and removed while the manager runs. Required, except for HalfSets; APICAPI needs drivers
	// with names.
	Drivers *registry.Registry
	// Runnables are started with the controllers, in the leader only.
	Runnables []ctrlmanager.Runnable
	// ReservedNode reports whether no Machine may have a node of that name, with ApproveNodeCertificates.
	// If nil, no name is reserved.
	ReservedNode func(node string) bool
	// Log of all controllers.
	Log logr.Logger
}

// Settings are what users set, with flags.
type Settings struct {
	// Namespace of the Machines in the control cluster. Required unless APIs is only APICAPI: then empty
	// means all namespaces.
	Namespace string
	// Installation is the name by which drivers distinguish their VMs from those of other installations.
	Installation string
	// APIs that the manager serves. Empty means APIMCM.
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

// MachineSettings are for Machines. For the limits of a Machine (CreationTimeout and those in Health, Drain and
// Timeouts), zero means the default, and a negative value means no limit.
type MachineSettings struct {
	// CreationTimeout is the time after which a Machine that has not joined is Failed.
	CreationTimeout time.Duration
	// ResourceExhaustedRetry is the time between creations that fail with ResourceExhausted.
	ResourceExhaustedRetry time.Duration
	// Fallback is when Machines are created with another class than their first choice.
	Fallback Fallback
	// NodeConditions make a Machine unhealthy unless they are False.
	NodeConditions []string
	// Health is how long Machines may be unhealthy.
	Health machine.Health
	// Drain configures drains.
	Drain Drain
	// Timeouts are those of Machines that belong neither to a drain nor to their health.
	Timeouts Timeouts
	// Orphans configures the collection of orphaned VMs.
	Orphans Orphans
	// RecordJoins annotates every new Machine with the time that its node took to join.
	RecordJoins bool
	// BootstrapTokenGroups are the groups that bootstrap tokens authenticate as, separated by commas.
	BootstrapTokenGroups string
	// ApproveNodeCertificates decides on the certificates that nodes request with the bootstrap tokens of
	// Machines. It is only for APIMCM: Millwright issues no bootstrap tokens for other APIs.
	ApproveNodeCertificates bool
}

// SetSettings are for MachineSets and MachineDeployments.
type SetSettings struct {
	// Overshoot is when MachineSets with too many Machines are frozen.
	Overshoot machineset.Overshoot
	// ProtectNodes keeps the cluster autoscaler from removing nodes during a rollout.
	ProtectNodes bool
	// EnforceMinReadySeconds counts Machines as available only after minReadySeconds.
	EnforceMinReadySeconds bool
}

// Drain configures drains.
type Drain struct {
	// Timeout and MaxEvictRetries are those of machine.Drain.
	Timeout         time.Duration
	MaxEvictRetries int32
	// Strategy, DetachTimeout and ReattachTimeout are those of drain.Options.
	Strategy                       drain.Strategy
	DetachTimeout, ReattachTimeout time.Duration
}

// Timeouts are the times that a Machine may take for a phase of its life, unless its spec says otherwise.
type Timeouts struct {
	// Preserve is how long a preserved Machine is kept.
	Preserve time.Duration
	// InPlaceUpdate is how long an in-place update of a node may take.
	InPlaceUpdate time.Duration
}

// Fallback is when Machines are created with another class than their first choice.
type Fallback struct {
	// After is how long a class must be without capacity until another one is taken. Zero means
	// immediately.
	After time.Duration
	// Memory is how long a class counts as having no capacity after the driver reported it. Zero means
	// capacity.DefaultMemory.
	Memory time.Duration
}

// Orphans configures the collection of orphaned VMs.
type Orphans struct {
	// Mode is what is done about them. Empty means that they are deleted.
	Mode orphans.Mode
	// Period is the time between two searches. Zero means none.
	Period time.Duration
}
