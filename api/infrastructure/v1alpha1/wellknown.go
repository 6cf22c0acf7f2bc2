package v1alpha1

// Finalizer holds a MillwrightMachine until its VM is gone.
const Finalizer = "infrastructure.millwright.dev/millwrightmachine"

// Lease is held by the manager that leads.
const Lease = "millwright-cluster-api"

// ClassFinalizer holds a MachineClass while a MillwrightMachine refers to it.
const ClassFinalizer = "infrastructure.millwright.dev/machineclass-in-use"

// SecretFinalizer holds a Secret while a MillwrightMachine needs it: without it the driver
// could not delete the VM.
const SecretFinalizer = "infrastructure.millwright.dev/secret-in-use"

// AnnotationCreationBegun is on a MillwrightMachine from right before the driver is first
// asked on, with the time. Without it there is no VM that would have to be deleted.
const AnnotationCreationBegun = "infrastructure.millwright.dev/creation-begun"

// AnnotationCreationSpec is set together with AnnotationCreationBegun: the digest of what the
// driver was asked with. It is taken off when there may be a VM. As long as it fits, no call
// was about another one.
const AnnotationCreationSpec = "infrastructure.millwright.dev/creation-spec"

// AnnotationInstanceSpec is the digest of what the driver was asked with when it last found
// the VM. Asked with something else, it may look in another place.
const AnnotationInstanceSpec = "infrastructure.millwright.dev/instance-spec"

// AnnotationInstallation is set together with AnnotationCreationBegun: the installation of
// the manager that asks the driver. That of another one would not find the VM.
const AnnotationInstallation = "infrastructure.millwright.dev/installation"

// AnnotationInstanceGone is on a MillwrightMachine that is being deleted and whose VM is gone,
// before the Secrets may go that were needed for that.
const AnnotationInstanceGone = "infrastructure.millwright.dev/instance-gone"

// Types of conditions.
const (
	// ConditionReady reports whether the infrastructure is there, for its whole life.
	ConditionReady = "Ready"
	// ConditionNodeJoined reports whether the VM has become a node.
	ConditionNodeJoined = "NodeJoined"
	// ConditionPaused reports whether the object is left alone.
	ConditionPaused = "Paused"
	// ConditionControlPlaneEndpointKnown reports whether it is known where the API servers
	// are reached.
	ConditionControlPlaneEndpointKnown = "ControlPlaneEndpointKnown"
	// ConditionFailureDomainsKnown reports whether the driver has told its failure domains. It
	// is there only if the driver is to be asked.
	ConditionFailureDomainsKnown = "FailureDomainsKnown"
)

// Reasons of ConditionReady, of a MillwrightMachine unless said otherwise.
const (
	// ReasonProvisioned: the infrastructure is there. Also of a MillwrightCluster.
	ReasonProvisioned = "Provisioned"
	// ReasonWaitingForCluster: the Cluster does not exist (yet).
	ReasonWaitingForCluster = "WaitingForCluster"
	// ReasonWaitingForClusterInfrastructure: the Cluster's infrastructure is not there yet.
	ReasonWaitingForClusterInfrastructure = "WaitingForClusterInfrastructure"
	// ReasonWaitingForBootstrapData: the Machine names no Secret with bootstrap data yet,
	// or there is no such Secret, or it has no data.
	ReasonWaitingForBootstrapData = "WaitingForBootstrapData"
	// ReasonCreating: the driver was asked to make the VM.
	ReasonCreating = "Creating"
	// ReasonCreationFailed: the driver could not make the VM, and is asked again.
	ReasonCreationFailed = "CreationFailed"
	// ReasonInsufficientCapacity: the provider has no room for the VM at present.
	ReasonInsufficientCapacity = "InsufficientCapacity"
	// ReasonInvalidSpec: the driver refuses the VM's description.
	ReasonInvalidSpec = "InvalidSpec"
	// ReasonUnknownDriver: the manager has another driver. Also of FailureDomainsKnown.
	ReasonUnknownDriver = "UnknownDriver"
	// ReasonOtherInstallation: the VM was made by a manager of another installation, and only
	// such a one finds it.
	ReasonOtherInstallation = "OtherInstallation"
	// ReasonUnknownFailureDomain: nothing is said about the Machine's failure domain, and
	// the driver does not know how a VM gets there.
	ReasonUnknownFailureDomain = "UnknownFailureDomain"
	// ReasonMachineClassMissing: the MachineClass does not exist, or one of its Secrets.
	// Also of FailureDomainsKnown.
	ReasonMachineClassMissing = "MachineClassMissing"
	// ReasonCredentialsMissing: the Secret with the credentials does not exist. Also of
	// FailureDomainsKnown.
	ReasonCredentialsMissing = "CredentialsMissing"
	// ReasonProviderIDTaken: the VM is that of another object.
	ReasonProviderIDTaken = "ProviderIDTaken"
	// ReasonProviderIDChanged: spec.providerID is not the VM's any more.
	ReasonProviderIDChanged = "ProviderIDChanged"
	// ReasonSpecChanged: the driver does not find a VM that is to be deleted, but was asked
	// with something else when it last did.
	ReasonSpecChanged = "SpecChanged"
	// ReasonInstanceLost: the provider does not find the VM any more.
	ReasonInstanceLost = "InstanceLost"
	// ReasonDeleting: the driver was asked to delete the VM, or no VM is made since the
	// Machine is being deleted.
	ReasonDeleting = "Deleting"
	// ReasonDeleted: the VM is gone. Of events only.
	ReasonDeleted = "Deleted"
	// ReasonDeletionFailed: the driver could not delete the VM, and is asked again.
	ReasonDeletionFailed = "DeletionFailed"
)

// Reasons of ConditionNodeJoined.
const (
	// ReasonJoined: the VM is a node.
	ReasonJoined = "Joined"
	// ReasonWaitingForNode: it may yet become one.
	ReasonWaitingForNode = "WaitingForNode"
	// ReasonJoinTimeout: that takes too long.
	ReasonJoinTimeout = "JoinTimeout"
)

// Reasons of ConditionControlPlaneEndpointKnown.
const (
	// ReasonEndpointKnown: it is known.
	ReasonEndpointKnown = "EndpointKnown"
	// ReasonWaitingForControlPlane: no control plane machine has an address yet.
	ReasonWaitingForControlPlane = "WaitingForControlPlane"
)

// Reasons of ConditionFailureDomainsKnown, beside those of ConditionReady that say so.
const (
	// ReasonFailureDomainsTold: the driver has told them.
	ReasonFailureDomainsTold = "FailureDomainsTold"
	// ReasonWaitingForDriver: the driver has not answered yet.
	ReasonWaitingForDriver = "WaitingForDriver"
	// ReasonAskingFailed: the driver could not tell, and is asked again.
	ReasonAskingFailed = "AskingFailed"
	// ReasonNotSupported: the driver knows of no failure domains, or this version of
	// Cluster API reads them in another form.
	ReasonNotSupported = "NotSupported"
)

// Reasons of ConditionPaused; they are Cluster API's.
const (
	// ReasonPaused: Cluster or object are paused.
	ReasonPaused = "Paused"
	// ReasonNotPaused: neither is.
	ReasonNotPaused = "NotPaused"
)

// FailureInvalidConfiguration is the one value of status.failureReason that is used: one
// of Cluster API's.
const FailureInvalidConfiguration = "InvalidConfiguration"
