package v1alpha1

// Finalizer keeps a MillwrightMachine until its VM is gone.
const Finalizer = "infrastructure.millwright.dev/millwrightmachine"

// Lease is the name of the Lease for leader election.
const Lease = "millwright-cluster-api"

// ClassFinalizer keeps a MachineClass while a MillwrightMachine refers to it.
const ClassFinalizer = "infrastructure.millwright.dev/machineclass-in-use"

// SecretFinalizer keeps a Secret while a MillwrightMachine needs it: without the Secret the
// driver could not delete the VM.
const SecretFinalizer = "infrastructure.millwright.dev/secret-in-use"

// AnnotationCreationBegun is set on a MillwrightMachine before the driver is called for the
// first time. Its value is that time. Without it there is no VM to delete.
const AnnotationCreationBegun = "infrastructure.millwright.dev/creation-begun"

// AnnotationCreationSpec is set together with AnnotationCreationBegun. Its value is a digest of
// the driver's request. It is removed when there may be a VM. As long as it matches, no call
// was about another VM.
const AnnotationCreationSpec = "infrastructure.millwright.dev/creation-spec"

// AnnotationInstanceSpec is the digest of the last request with which the driver found the
// VM. With another request it may look in another place.
const AnnotationInstanceSpec = "infrastructure.millwright.dev/instance-spec"

// AnnotationInstallation is set together with AnnotationCreationBegun. Its value is the
// installation of the manager. The driver of another installation would not find the VM.
const AnnotationInstallation = "infrastructure.millwright.dev/installation"

// AnnotationInstanceGone is set on a MillwrightMachine that is being deleted when its VM is
// gone. Only then are the finalizers of its Secrets removed.
const AnnotationInstanceGone = "infrastructure.millwright.dev/instance-gone"

// Types of conditions.
const (
	// ConditionReady reports whether the infrastructure exists, during its whole life.
	ConditionReady = "Ready"
	// ConditionNodeJoined reports whether the VM has become a node.
	ConditionNodeJoined = "NodeJoined"
	// ConditionPaused reports whether the object is not reconciled.
	ConditionPaused = "Paused"
	// ConditionControlPlaneEndpointKnown reports whether the address of the API servers is
	// known.
	ConditionControlPlaneEndpointKnown = "ControlPlaneEndpointKnown"
	// ConditionFailureDomainsKnown reports whether the driver's failure domains are known.
	// It exists only if spec.failureDomainsFrom is set.
	ConditionFailureDomainsKnown = "FailureDomainsKnown"
)

// Reasons of ConditionReady, of a MillwrightMachine unless said otherwise.
const (
	// ReasonProvisioned: the infrastructure exists. Also of a MillwrightCluster.
	ReasonProvisioned = "Provisioned"
	// ReasonWaitingForCluster: the Cluster does not exist.
	ReasonWaitingForCluster = "WaitingForCluster"
	// ReasonWaitingForClusterInfrastructure: the Cluster's infrastructure is not ready.
	ReasonWaitingForClusterInfrastructure = "WaitingForClusterInfrastructure"
	// ReasonWaitingForBootstrapData: the Machine names no Secret with bootstrap data yet,
	// or there is no such Secret, or it has no data.
	ReasonWaitingForBootstrapData = "WaitingForBootstrapData"
	// ReasonCreating: the driver creates the VM.
	ReasonCreating = "Creating"
	// ReasonCreationFailed: the driver could not create the VM, and tries again.
	ReasonCreationFailed = "CreationFailed"
	// ReasonInsufficientCapacity: the provider has no room for the VM at present.
	ReasonInsufficientCapacity = "InsufficientCapacity"
	// ReasonInvalidSpec: the driver refuses the provider specification.
	ReasonInvalidSpec = "InvalidSpec"
	// ReasonUnknownDriver: the manager has another driver. Also of FailureDomainsKnown.
	ReasonUnknownDriver = "UnknownDriver"
	// ReasonOtherInstallation: a manager of another installation created the VM, and only
	// that installation finds it.
	ReasonOtherInstallation = "OtherInstallation"
	// ReasonUnknownFailureDomain: the Machine's failure domain is neither listed nor known
	// to the driver.
	ReasonUnknownFailureDomain = "UnknownFailureDomain"
	// ReasonMachineClassMissing: the MachineClass or one of its Secrets does not exist.
	// Also of FailureDomainsKnown.
	ReasonMachineClassMissing = "MachineClassMissing"
	// ReasonCredentialsMissing: the Secret with the credentials does not exist. Also of
	// FailureDomainsKnown.
	ReasonCredentialsMissing = "CredentialsMissing"
	// ReasonProviderIDTaken: the VM belongs to another object.
	ReasonProviderIDTaken = "ProviderIDTaken"
	// ReasonProviderIDChanged: spec.providerID was changed.
	ReasonProviderIDChanged = "ProviderIDChanged"
	// ReasonSpecChanged: the driver does not find the VM to delete, but its request has
	// changed since it last found the VM.
	ReasonSpecChanged = "SpecChanged"
	// ReasonInstanceLost: the VM does not exist any more.
	ReasonInstanceLost = "InstanceLost"
	// ReasonDeleting: the driver deletes the VM, or no VM is created since the Machine is
	// being deleted.
	ReasonDeleting = "Deleting"
	// ReasonDeleted: the VM is gone. Of events only.
	ReasonDeleted = "Deleted"
	// ReasonDeletionFailed: the driver could not delete the VM, and tries again.
	ReasonDeletionFailed = "DeletionFailed"
)

// Reasons of ConditionNodeJoined.
const (
	// ReasonJoined: the VM is a node.
	ReasonJoined = "Joined"
	// ReasonWaitingForNode: the VM has not become a node yet.
	ReasonWaitingForNode = "WaitingForNode"
	// ReasonJoinTimeout: the VM did not become a node in time.
	ReasonJoinTimeout = "JoinTimeout"
)

// Reasons of ConditionControlPlaneEndpointKnown.
const (
	// ReasonEndpointKnown: the address is known.
	ReasonEndpointKnown = "EndpointKnown"
	// ReasonWaitingForControlPlane: no control plane machine has an address yet.
	ReasonWaitingForControlPlane = "WaitingForControlPlane"
)

// Reasons of ConditionFailureDomainsKnown. See also those of ConditionReady.
const (
	// ReasonFailureDomainsTold: the driver has returned them.
	ReasonFailureDomainsTold = "FailureDomainsTold"
	// ReasonWaitingForDriver: the driver has not answered yet.
	ReasonWaitingForDriver = "WaitingForDriver"
	// ReasonAskingFailed: the driver returned an error, and is called again.
	ReasonAskingFailed = "AskingFailed"
	// ReasonNotSupported: the driver does not support failure domains, or this version of
	// Cluster API has another form of them.
	ReasonNotSupported = "NotSupported"
)

// Reasons of ConditionPaused; they are Cluster API's.
const (
	// ReasonPaused: the Cluster or the object is paused.
	ReasonPaused = "Paused"
	// ReasonNotPaused: neither is.
	ReasonNotPaused = "NotPaused"
)

// FailureInvalidConfiguration is the only value of status.failureReason. It is one of
// Cluster API's.
const FailureInvalidConfiguration = "InvalidConfiguration"
