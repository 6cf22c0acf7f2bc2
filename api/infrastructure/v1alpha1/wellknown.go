package v1alpha1

// Lease is the name of the Lease for leader election.
const Lease = "millwright-cluster-api"

// Finalizers.
const (
	// Finalizer keeps a MillwrightMachine until its VM is deleted.
	Finalizer = "infrastructure.millwright.dev/millwrightmachine"
	// ClassFinalizer keeps a MachineClass while a MillwrightMachine refers to it.
	ClassFinalizer = "infrastructure.millwright.dev/machineclass-in-use"
	// SecretFinalizer keeps a Secret while a MillwrightMachine needs it: without the Secret
	// the driver could not delete the VM.
	SecretFinalizer = "infrastructure.millwright.dev/secret-in-use"
)

// Annotations of a MillwrightMachine. The controller sets them.
const (
	// AnnotationCreationBegun is set before the first call to the driver. Its value is the
	// time of that call. Without it there is no VM to delete.
	AnnotationCreationBegun = "infrastructure.millwright.dev/creation-begun"
	// AnnotationCreationSpec is set together with AnnotationCreationBegun. Its value is a
	// digest of the request to the driver. It is removed when there may be a VM. As long as
	// it matches, all calls were about the same VM.
	AnnotationCreationSpec = "infrastructure.millwright.dev/creation-spec"
	// AnnotationInstanceSpec is the digest of the last request with which the driver found
	// the VM. With another request it may look in another place.
	AnnotationInstanceSpec = "infrastructure.millwright.dev/instance-spec"
	// AnnotationInstallation is set together with AnnotationCreationBegun. Its value is the
	// installation of the manager. The driver of another installation would not find the VM.
	AnnotationInstallation = "infrastructure.millwright.dev/installation"
	// AnnotationInstanceGone is set during deletion when the VM is deleted. Only then are
	// the finalizers of the Secrets removed. Its value names the object and the time of its deletion.
	AnnotationInstanceGone = "infrastructure.millwright.dev/instance-gone"
)

// Types of conditions.
const (
	// ConditionReady reports whether the infrastructure exists, during its whole life.
	ConditionReady = "Ready"
	// ConditionNodeJoined reports whether the VM has become a node.
	ConditionNodeJoined = "NodeJoined"
	// ConditionUpToDate reports whether the VM is as the spec says. It exists once Cluster
	// API has begun to update the machine in place.
	ConditionUpToDate = "UpToDate"
	// ConditionPaused reports whether the object is not reconciled.
	ConditionPaused = "Paused"
	// ConditionControlPlaneEndpointKnown reports whether the address of the API servers is
	// known.
	ConditionControlPlaneEndpointKnown = "ControlPlaneEndpointKnown"
	// ConditionLoadBalancerReady reports whether a load balancer forwards what arrives at the
	// endpoint to a control plane machine. It exists only if spec.controlPlaneLoadBalancer is
	// set, and that load balancer runs.
	ConditionLoadBalancerReady = "LoadBalancerReady"
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

// Reasons of ConditionUpToDate. They are those of events, too.
const (
	// ReasonUpdated: the VM is as the spec says.
	ReasonUpdated = "Updated"
	// ReasonUpdating: the driver compares the VM with the spec, or changes it.
	ReasonUpdating = "Updating"
	// ReasonUpdateFailed: an input of the driver is missing, or the driver failed. It is
	// tried again.
	ReasonUpdateFailed = "UpdateFailed"
	// ReasonReplacementNeeded: the VM differs from the spec in something for which the
	// driver needs a new VM.
	ReasonReplacementNeeded = "ReplacementNeeded"
)

// Reasons of ConditionControlPlaneEndpointKnown.
const (
	// ReasonEndpointKnown: the address is known.
	ReasonEndpointKnown = "EndpointKnown"
	// ReasonWaitingForControlPlane: no control plane machine has an address yet.
	ReasonWaitingForControlPlane = "WaitingForControlPlane"
	// ReasonWaitingForLoadBalancer: the load balancer has not set it yet.
	ReasonWaitingForLoadBalancer = "WaitingForLoadBalancer"
)

// Reasons of ConditionLoadBalancerReady.
const (
	// ReasonForwarding: connections are forwarded.
	ReasonForwarding = "Forwarding"
	// ReasonNoHealthyMachine: no API server of a control plane machine is ready, so connections
	// are closed, or forwarded to one that is not ready.
	ReasonNoHealthyMachine = "NoHealthyMachine"
	// ReasonNoFreePort: all ports of the load balancer are in use.
	ReasonNoFreePort = "NoFreePort"
	// ReasonTooManyInNamespace: other MillwrightClusters of the namespace have as many ports as the load
	// balancer gives to one namespace.
	ReasonTooManyInNamespace = "TooManyInNamespace"
	// ReasonPortNotAllowed: the port of the endpoint is none of the load balancer's.
	ReasonPortNotAllowed = "PortNotAllowed"
	// ReasonPortTaken: the port of the endpoint is that of another MillwrightCluster.
	ReasonPortTaken = "PortTaken"
	// ReasonListenFailed: the port cannot be opened, as if another process has it. It is tried
	// again.
	ReasonListenFailed = "ListenFailed"
)

// Reasons of ConditionFailureDomainsKnown. See also those of ConditionReady.
const (
	// ReasonFailureDomainsReported: the driver has returned them.
	ReasonFailureDomainsReported = "FailureDomainsReported"
	// ReasonWaitingForDriver: the driver has not answered yet.
	ReasonWaitingForDriver = "WaitingForDriver"
	// ReasonDriverCallFailed: the call to the driver failed or could not be made. It is
	// retried.
	ReasonDriverCallFailed = "DriverCallFailed"
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
