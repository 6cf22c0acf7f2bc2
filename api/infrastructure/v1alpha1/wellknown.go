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
	// AnnotationCreationBegun is set before the first call to the driver. Its value is the time of that call.
	// If it is absent, there is no VM to delete.
	AnnotationCreationBegun = "infrastructure.millwright.dev/creation-begun"
	// AnnotationCreationSpec is set together with AnnotationCreationBegun. Its value is a digest of the request
	// to the driver. It is removed when a VM may exist. As long as it matches the current request, all calls
	// were about the same VM.
	AnnotationCreationSpec = "infrastructure.millwright.dev/creation-spec"
	// AnnotationInstanceSpec is the digest of the last request with which the driver found the VM. With a
	// different request, the driver may look in a different place.
	AnnotationInstanceSpec = "infrastructure.millwright.dev/instance-spec"
	// AnnotationInstallation is set together with AnnotationCreationBegun. Its value identifies the
	// installation of the manager. The driver of another installation would not find the VM.
	AnnotationInstallation = "infrastructure.millwright.dev/installation"
	// AnnotationInstanceGone is set when a deletion has removed the VM. Only then are the finalizers of the
	// Secrets removed. Its value names the object and the time of its deletion.
	AnnotationInstanceGone = "infrastructure.millwright.dev/instance-gone"
)

// Types of conditions.
const (
	// ConditionReady reports whether the infrastructure exists, for the lifetime of the object.
	ConditionReady = "Ready"
	// ConditionNodeJoined reports whether the VM has become a node.
	ConditionNodeJoined = "NodeJoined"
	// ConditionUpToDate reports whether the VM matches the spec. It exists once Cluster API has begun to update
	// the machine in place.
	ConditionUpToDate = "UpToDate"
	// ConditionPaused reports whether reconciliation is paused.
	ConditionPaused = "Paused"
	// ConditionControlPlaneEndpointKnown reports whether the address of the API servers is
	// known.
	ConditionControlPlaneEndpointKnown = "ControlPlaneEndpointKnown"
	// ConditionLoadBalancerReady reports whether a load balancer forwards connections to the endpoint to a
	// control plane machine. It exists only if spec.controlPlaneLoadBalancer is set and that load balancer
	// runs.
	ConditionLoadBalancerReady = "LoadBalancerReady"
	// ConditionFailureDomainsKnown reports whether the driver's failure domains are known.
	// It exists only if spec.failureDomainsFrom is set.
	ConditionFailureDomainsKnown = "FailureDomainsKnown"
)

// Reasons of ConditionReady. Unless noted otherwise, they apply to MillwrightMachines.
const (
	// ReasonProvisioned means that the infrastructure exists. Also used by MillwrightClusters.
	ReasonProvisioned = "Provisioned"
	// ReasonWaitingForCluster means that the Cluster does not exist.
	ReasonWaitingForCluster = "WaitingForCluster"
	// ReasonWaitingForClusterInfrastructure means that the Cluster's infrastructure is not ready.
	ReasonWaitingForClusterInfrastructure = "WaitingForClusterInfrastructure"
	// ReasonWaitingForBootstrapData means that the Machine does not name a Secret with bootstrap data yet, or that Secret
	// does not exist or has no data.
	ReasonWaitingForBootstrapData = "WaitingForBootstrapData"
	// ReasonCreating means that the driver is creating the VM.
	ReasonCreating = "Creating"
	// ReasonCreationFailed means that the driver could not create the VM and will retry.
	ReasonCreationFailed = "CreationFailed"
	// ReasonInsufficientCapacity means that the provider currently has no capacity for the VM.
	ReasonInsufficientCapacity = "InsufficientCapacity"
	// ReasonInvalidSpec means that the driver rejects the provider specification.
	ReasonInvalidSpec = "InvalidSpec"
	// ReasonUnknownDriver means that the manager has another driver. Also used by FailureDomainsKnown.
	ReasonUnknownDriver = "UnknownDriver"
	// ReasonOtherInstallation means that a manager of another installation created the VM, and only
	// that installation finds it.
	ReasonOtherInstallation = "OtherInstallation"
	// ReasonUnknownFailureDomain means that the Machine's failure domain is neither listed nor known
	// to the driver.
	ReasonUnknownFailureDomain = "UnknownFailureDomain"
	// ReasonMachineClassMissing means that the MachineClass or one of its Secrets does not exist. Also used by
	// FailureDomainsKnown.
	ReasonMachineClassMissing = "MachineClassMissing"
	// ReasonCredentialsMissing means that the Secret with the credentials does not exist. Also used by
	// FailureDomainsKnown.
	ReasonCredentialsMissing = "CredentialsMissing"
	// ReasonProviderIDTaken means that the VM belongs to another object.
	ReasonProviderIDTaken = "ProviderIDTaken"
	// ReasonProviderIDChanged means that spec.providerID was changed.
	ReasonProviderIDChanged = "ProviderIDChanged"
	// ReasonSpecChanged means that the driver does not find the VM to delete, and the request has changed since the
	// driver last found it.
	ReasonSpecChanged = "SpecChanged"
	// ReasonInstanceLost means that the VM no longer exists.
	ReasonInstanceLost = "InstanceLost"
	// ReasonDeleting means that the driver is deleting the VM, or no VM is created because the Machine is being deleted.
	ReasonDeleting = "Deleting"
	// ReasonDeleted means that the VM is gone. Used only in events.
	ReasonDeleted = "Deleted"
	// ReasonDeletionFailed means that the driver could not delete the VM and will retry.
	ReasonDeletionFailed = "DeletionFailed"
)

// Reasons of ConditionNodeJoined.
const (
	// ReasonJoined means that the VM is a node.
	ReasonJoined = "Joined"
	// ReasonWaitingForNode means that the VM has not become a node yet.
	ReasonWaitingForNode = "WaitingForNode"
	// ReasonJoinTimeout means that the VM did not become a node in time.
	ReasonJoinTimeout = "JoinTimeout"
)

// Reasons of ConditionUpToDate, also used in events.
const (
	// ReasonUpdated means that the VM matches the spec.
	ReasonUpdated = "Updated"
	// ReasonUpdating means that the driver is comparing the VM with the spec or changing it.
	ReasonUpdating = "Updating"
	// ReasonUpdateFailed means that an input of the driver is missing, or the driver failed. The update is retried.
	ReasonUpdateFailed = "UpdateFailed"
	// ReasonReplacementNeeded means that the VM differs from the spec in a way that requires a new VM.
	ReasonReplacementNeeded = "ReplacementNeeded"
)

// Reasons of ConditionControlPlaneEndpointKnown.
const (
	// ReasonEndpointKnown means that the address is known.
	ReasonEndpointKnown = "EndpointKnown"
	// ReasonWaitingForControlPlane means that no control plane machine has an address yet.
	ReasonWaitingForControlPlane = "WaitingForControlPlane"
	// ReasonWaitingForLoadBalancer means that the load balancer has not set the address yet.
	ReasonWaitingForLoadBalancer = "WaitingForLoadBalancer"
)

// Reasons of ConditionLoadBalancerReady.
const (
	// ReasonForwarding means that connections are forwarded.
	ReasonForwarding = "Forwarding"
	// ReasonNoHealthyMachine means that no control plane machine has a ready API server, so connections are closed or
	// forwarded to an API server that is not ready.
	ReasonNoHealthyMachine = "NoHealthyMachine"
	// ReasonNoFreePort means that all ports of the load balancer are in use.
	ReasonNoFreePort = "NoFreePort"
	// ReasonTooManyInNamespace means that other MillwrightClusters of the namespace use all ports that the load balancer
	// grants to one namespace.
	ReasonTooManyInNamespace = "TooManyInNamespace"
	// ReasonPortNotAllowed means that the port of the endpoint is not one of the load balancer's.
	ReasonPortNotAllowed = "PortNotAllowed"
	// ReasonPortTaken means that another MillwrightCluster uses the port of the endpoint.
	ReasonPortTaken = "PortTaken"
	// ReasonListenFailed means that the load balancer cannot listen on the port, for example because another process uses
	// it. It retries.
	ReasonListenFailed = "ListenFailed"
)

// Reasons of ConditionFailureDomainsKnown. Some reasons of ConditionReady apply too.
const (
	// ReasonFailureDomainsReported means that the driver has returned its failure domains.
	ReasonFailureDomainsReported = "FailureDomainsReported"
	// ReasonWaitingForDriver means that the driver has not responded yet.
	ReasonWaitingForDriver = "WaitingForDriver"
	// ReasonDriverCallFailed means that the call to the driver failed or could not be made. It is retried.
	ReasonDriverCallFailed = "DriverCallFailed"
	// ReasonNotSupported means that the driver does not support failure domains, or this version of Cluster API defines
	// them in another form.
	ReasonNotSupported = "NotSupported"
)

// Reasons of ConditionPaused, as defined by Cluster API.
const (
	// ReasonPaused means that the Cluster or the object is paused.
	ReasonPaused = "Paused"
	// ReasonNotPaused means that neither the Cluster nor the object is paused.
	ReasonNotPaused = "NotPaused"
)

// FailureInvalidConfiguration is the only value of status.failureReason. Cluster API defines it.
const FailureInvalidConfiguration = "InvalidConfiguration"
