package report

// Verdict is the kind of an answer, for programs. Verdicts are API: they are never renamed.
type Verdict string

// The verdicts.
const (
	// Healthy: the Machine is Running, or Available where there is no node to wait for; the
	// set or deployment has all Machines that it wants.
	Healthy Verdict = "Healthy"
	// NotRunning: a Machine is neither Running nor being deleted.
	NotRunning Verdict = "NotRunning"
	// Incomplete: a set or deployment does not have what it wants.
	Incomplete Verdict = "Incomplete"
	// Unknown: the Machines of a set or deployment cannot be read, so only what its status
	// says is known.
	Unknown Verdict = "Unknown"
	// Deleting: it is being deleted.
	Deleting Verdict = "Deleting"
	// Gone: there was such an object.
	Gone Verdict = "Gone"
	// NotFound: nothing shows that there ever was one.
	NotFound Verdict = "NotFound"
)

// Cause is the kind of a finding, for programs. Causes are API: they are never renamed.
// docs/explain.md lists them.
type Cause string

// Causes of a Machine that is not Running.
const (
	ManagerNotRunning          Cause = "ManagerNotRunning"
	NotStarted                 Cause = "NotStarted"
	InvalidSpec                Cause = "InvalidSpec"
	InvalidClassInputs         Cause = "InvalidClassInputs"
	BootstrapFailed            Cause = "BootstrapFailed"
	InstanceOwned              Cause = "InstanceOwned"
	DriverFailed               Cause = "DriverFailed"
	DriverSilent               Cause = "DriverSilent"
	VirtualMachineNotReady     Cause = "VirtualMachineNotReady"
	InstanceLost               Cause = "InstanceLost"
	TargetUnavailable          Cause = "TargetUnavailable"
	NodeNotJoined              Cause = "NodeNotJoined"
	NodeMissing                Cause = "NodeMissing"
	NodeUnhealthy              Cause = "NodeUnhealthy"
	CriticalComponentsNotReady Cause = "CriticalComponentsNotReady"
	NodeTemplateNotApplied     Cause = "NodeTemplateNotApplied"
	CreationTimeout            Cause = "CreationTimeout"
	HealthTimeout              Cause = "HealthTimeout"
	ReplacementDelayed         Cause = "ReplacementDelayed"
	Preserved                  Cause = "Preserved"
	InPlaceUpdate              Cause = "InPlaceUpdate"
	Other                      Cause = "Other"
)

// Causes of a deletion that is not complete.
const (
	Draining                Cause = "Draining"
	EvictionPending         Cause = "EvictionPending"
	PodTerminating          Cause = "PodTerminating"
	PodStuck                Cause = "PodStuck"
	DisruptionBudget        Cause = "DisruptionBudget"
	DisruptionBudgetForbids Cause = "DisruptionBudgetForbids"
	VolumeAttached          Cause = "VolumeAttached"
	InstanceExists          Cause = "InstanceExists"
	InstanceShared          Cause = "InstanceShared"
	Finalizer               Cause = "Finalizer"
)

// Causes of a set or deployment that does not have what it wants.
const (
	NotSupported             Cause = "NotSupported"
	Paused                   Cause = "Paused"
	Frozen                   Cause = "Frozen"
	ScaleUpDisabled          Cause = "ScaleUpDisabled"
	BackOff                  Cause = "BackOff"
	ReplicaFailure           Cause = "ReplicaFailure"
	MinReadySeconds          Cause = "MinReadySeconds"
	Scaling                  Cause = "Scaling"
	RolloutInProgress        Cause = "RolloutInProgress"
	ProgressDeadlineExceeded Cause = "ProgressDeadlineExceeded"
	SelectorOverlap          Cause = "SelectorOverlap"
	SetReleased              Cause = "SetReleased"
	RollbackRefused          Cause = "RollbackRefused"
)

// Causes of the deletion of a Machine.
const (
	MachineFailed    Cause = "MachineFailed"
	NamedForDeletion Cause = "NamedForDeletion"
	Surplus          Cause = "Surplus"
	OwnerDeleted     Cause = "OwnerDeleted"
	NodeDeleted      Cause = "NodeDeleted"
	DeletedBySet     Cause = "DeletedBySet"
	Unexplained      Cause = "Unexplained"
)
