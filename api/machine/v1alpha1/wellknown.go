package v1alpha1

import corev1 "k8s.io/api/core/v1"

// Finalizers.
const (
	// FinalizerMCM is on Machines, MachineSets and MachineDeployments from their
	// first reconcile on, and on a MachineClass while something uses it.
	FinalizerMCM = "machine.sapcloud.io/machine-controller-manager"
	// FinalizerSecret is on a Secret while a MachineClass refers to it.
	FinalizerSecret = "machine.sapcloud.io/machine-controller"
	// FinalizerNode is on a Node while its Machine exists.
	FinalizerNode = "node.machine.sapcloud.io/machine-controller"
	// FinalizerLegacy was on Machines of very old versions.
	FinalizerLegacy = "machine.sapcloud.io/operator"
)

// Labels.
const (
	// NodeLabelKey is the label of a Machine that holds the name of its Node. It is
	// the only link from a Machine to its Node.
	NodeLabelKey = "node"
	// LabelKeyName is the label that, by convention, holds the name of a machine's MachineDeployment.
	LabelKeyName = "name"
	// LabelKeyForceDeletion, parsed as a bool, makes the deletion of a Machine skip all graceful steps.
	LabelKeyForceDeletion = "force-deletion"
	// LabelKeyForceDrain, "True", on a Machine forces a drain that precedes no deletion.
	LabelKeyForceDrain = "force-drain"
	// LabelKeyFreeze, "True", marks a set or deployment that creates nothing.
	LabelKeyFreeze = "freeze"
	// LabelKeyMachineName is the label of a Node that holds the name of its Machine.
	LabelKeyMachineName = "node.gardener.cloud/machine-name"
	// LabelKeyNodeCandidateForUpdate, "true", on a node says that it may be updated in place.
	LabelKeyNodeCandidateForUpdate = "node.machine.sapcloud.io/candidate-for-update"
	// LabelKeyNodeSelectedForUpdate, "true", on a candidate says that it is to be updated now.
	LabelKeyNodeSelectedForUpdate = "node.machine.sapcloud.io/selected-for-update"
	// LabelKeyNodeUpdateResult holds the result of an in-place update.
	LabelKeyNodeUpdateResult = "node.machine.sapcloud.io/update-result"
	// LabelValueNodeUpdateSuccessful is the result of an update that succeeded.
	LabelValueNodeUpdateSuccessful = "successful"
	// LabelValueNodeUpdateFailed is the result of an update that failed.
	LabelValueNodeUpdateFailed = "failed"
	// LabelKeyMachineSetScaleUpDisabled on a set keeps it from creating machines.
	LabelKeyMachineSetScaleUpDisabled = "node.machine.sapcloud.io/scale-up-disabled"
)

// Annotations.
const (
	// AnnotationKeyMachinePriority orders the machines of a set for deletion: lower
	// goes first. Absent or unreadable means 3; 1 means chosen for deletion.
	AnnotationKeyMachinePriority = "machinepriority.machine.sapcloud.io"
	// AnnotationKeyMarkedForDeletionTime is when a machine was chosen for deletion.
	AnnotationKeyMarkedForDeletionTime = "machine.sapcloud.io/marked-for-deletion-time"
	// AnnotationKeyTriggerDeletion on a deployment names machines to delete, as
	// NAME~TIME, separated by commas.
	AnnotationKeyTriggerDeletion = "node.machine.sapcloud.io/trigger-deletion-by-mcm"
	// AnnotationKeyLastReplicaChange on a deployment and its sets is when an
	// autoscaler last changed the number of replicas.
	AnnotationKeyLastReplicaChange = "machine.sapcloud.io/last-deployment-replica-change-by-scaler-time"
	// AnnotationKeyDrainSince is when the drain of a Machine has begun anew after its time was over,
	// as nobody could drain before. It is written in RFC 3339, by our manager only.
	AnnotationKeyDrainSince = "machine.millwright.dev/drain-since"
	// AnnotationKeySkipValidation, "true", exempts an object of this group from the admission policies
	// of config/policy. Controllers do not look at it.
	AnnotationKeySkipValidation = "machine.millwright.dev/skip-validation"
	// AnnotationKeyExcessReplicas on a deployment is spec.excessReplicas for clusters whose CRDs prune that
	// field, which outranks it: a number, or a percentage of the replicas. On a set, the deployment writes
	// there how many of the set's replicas are in excess.
	AnnotationKeyExcessReplicas = "machine.millwright.dev/excess-replicas"
	// AnnotationKeyExcessNoExecute, "true", on a deployment, and from there on its sets, gives machines in
	// excess the taint NoExecute beside NoSchedule: pods that do not tolerate it are evicted at once,
	// without regard to PodDisruptionBudgets.
	AnnotationKeyExcessNoExecute = "machine.millwright.dev/excess-no-execute"
	// AnnotationKeyFallbackClasses on a deployment, and from there on its sets, is spec.fallbackClasses for
	// clusters whose CRDs prune that field, which outranks it: names separated by commas.
	AnnotationKeyFallbackClasses = "machine.millwright.dev/fallback-classes"
	// AnnotationKeyClassChoices on a machine are the classes that it may be made with, the first choice
	// first, separated by commas. Without it, its own class is the only one.
	AnnotationKeyClassChoices = "machine.millwright.dev/class-choices"
	// AnnotationKeyClassReason on a machine says why it has the class that it has, and not the first
	// choice: CauseNoCapacity, CauseZoneSpread or CauseZoneOutage.
	AnnotationKeyClassReason = "machine.millwright.dev/class-reason"
	// AnnotationKeyZoneMaxSkew on a deployment, and from there on its sets, spreads the machines over the
	// zones of its classes: how many more machines a zone may have than the emptiest one.
	AnnotationKeyZoneMaxSkew = "machine.millwright.dev/zone-max-skew"
	// AnnotationKeyFailureDomain on a machine is in which failure domain, such as a zone, its driver says that
	// the VM is. Without it the driver does not say.
	AnnotationKeyFailureDomain = "machine.millwright.dev/failure-domain"
	// AnnotationKeyReplacement on a deployment, and from there on its sets, is spec.replacement, as JSON, for
	// clusters whose CRDs prune that field, which outranks it.
	AnnotationKeyReplacement = "machine.millwright.dev/replacement"
	// AnnotationKeyZonesOut on a set are the zones in which all of its machines were unhealthy, by when that was seen
	// last, as JSON: {"zone": "time in RFC 3339"}. Its controller writes it where spec.replacement.zoneOutage is Replace,
	// and makes machines in other zones for as long as a zone is there.
	AnnotationKeyZonesOut = "machine.millwright.dev/zones-out"
	// AnnotationKeyUpdateStrategy on a MachineClass or a Machine says what becomes of VMs that exist when the
	// class changes: "Update" changes them as far as their driver can, "DryRun" has the driver say what it
	// could change. Without it they stay as they are. What is on a Machine outranks what is on its class. On a
	// deployment it says the same for VMs when the template names another class: without it they are replaced.
	AnnotationKeyUpdateStrategy = "machine.millwright.dev/update-strategy"
	// AnnotationKeyMadeFrom on a Machine with an update strategy is what its VM was made from, or updated to,
	// as JSON.
	AnnotationKeyMadeFrom = "machine.millwright.dev/made-from"
	// AnnotationKeyUpdateClass on a Machine is the name of the class that the template of its deployment names, if the
	// deployment has an update strategy: while the Machine has another class, its driver is asked what an update to
	// that one would change; once it has that class, its VM is being updated.
	AnnotationKeyUpdateClass = "machine.millwright.dev/update-class"
	// AnnotationKeyUpdatePlan on a Machine is the driver's answer what an update would change, and how far
	// the update is, as JSON.
	AnnotationKeyUpdatePlan = "machine.millwright.dev/update-plan"
	// AnnotationKeyAutoscalerMaxSize on a deployment is how many machines an autoscaler may give it. The
	// key is the one that the autoscaler has for Cluster API. Machines in excess keep to it.
	AnnotationKeyAutoscalerMaxSize = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size"
	// AnnotationKeyMachineEffectiveCreationTimeout outranks the creation timeout of spec and flag.
	AnnotationKeyMachineEffectiveCreationTimeout = "node.machine.sapcloud.io/effective-creation-timeout"
	// AnnotationKeyMachineJoinDuration on a machine is how long after its creation its node had joined,
	// as Go writes durations. It is written to machines that have
	// AnnotationKeyMachineEffectiveCreationTimeout, for the program that sets that.
	AnnotationKeyMachineJoinDuration = "node.machine.sapcloud.io/machine-join-duration"
	// AnnotationKeyMachineUpdateFailedReason on a node says why its in-place update failed.
	AnnotationKeyMachineUpdateFailedReason = "node.machine.sapcloud.io/update-failed-reason"
	// AnnotationKeyLastAppliedNodeTemplate on a node is the node template last
	// applied, the base of the three-way merge.
	AnnotationKeyLastAppliedNodeTemplate = "node.machine.sapcloud.io/last-applied-anno-labels-taints"
	// AnnotationKeyLastAppliedVirtualCapacity is the same for virtual capacity.
	AnnotationKeyLastAppliedVirtualCapacity = "node.machine.sapcloud.io/last-applied-virtual-capacity"
	// AnnotationKeyNotManaged, "1", marks nodes that have no Machine.
	AnnotationKeyNotManaged = "node.machine.sapcloud.io/not-managed-by-mcm"
	// AnnotationKeyPreserve asks for a machine or node to be preserved.
	AnnotationKeyPreserve = "node.machine.sapcloud.io/preserve"
	// AnnotationKeyLastAppliedPreserve on a machine is the node's value last seen.
	AnnotationKeyLastAppliedPreserve = "node.machine.sapcloud.io/last-applied-node-preserve-value"
	// AnnotationKeyScaleDownDisabled on a node keeps the cluster autoscaler from removing it.
	AnnotationKeyScaleDownDisabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	// AnnotationKeyScaleDownDisabledByMCM marks nodes whose
	// AnnotationKeyScaleDownDisabled was not set by the user.
	AnnotationKeyScaleDownDisabledByMCM = "cluster-autoscaler.kubernetes.io/scale-down-disabled-by-mcm"
	// AnnotationKeyRevision is the revision of a deployment or set.
	AnnotationKeyRevision = "deployment.kubernetes.io/revision"
	// AnnotationKeyRevisionHistory lists earlier revisions of a set used again.
	AnnotationKeyRevisionHistory = "deployment.kubernetes.io/revision-history"
	// AnnotationKeyDesiredReplicas on a set is its deployment's spec.replicas when
	// the set was last scaled.
	AnnotationKeyDesiredReplicas = "deployment.kubernetes.io/desired-replicas"
	// AnnotationKeyMaxReplicas on a set is the same with the surge added.
	AnnotationKeyMaxReplicas = "deployment.kubernetes.io/max-replicas"
	// AnnotationKeyPreferNoSchedule on a set records that its nodes are tainted.
	AnnotationKeyPreferNoSchedule = "deployment.machine.sapcloud.io/prefer-no-schedule"
	// AnnotationKeyUnfreeze on a set or deployment lifts its freeze.
	AnnotationKeyUnfreeze = "safety.machine.sapcloud.io/unfreeze"
)

// Taints.
const (
	// TaintKeyPreferNoSchedule is on the nodes of old sets during a rollout.
	TaintKeyPreferNoSchedule = "deployment.machine.sapcloud.io/prefer-no-schedule"
	// TaintKeyExcess is on the nodes of machines in excess of a deployment's replicas. The prefix is the
	// cluster autoscaler's: it takes such a node for ready, and does not think that new nodes have the taint.
	TaintKeyExcess = "status-taint.cluster-autoscaler.kubernetes.io/millwright-excess"
	// TaintKeyCriticalComponentsNotReady keeps a Pending machine from being Running.
	TaintKeyCriticalComponentsNotReady = "node.gardener.cloud/critical-components-not-ready"
	// TaintKeyPreserved keeps new pods off the node of a Failed machine that is preserved.
	TaintKeyPreserved = "node.machine.sapcloud.io/preserved"
)

// Conditions of Nodes, and their reasons.
const (
	// NodeTerminationCondition is True on a node whose machine is being deleted.
	NodeTerminationCondition corev1.NodeConditionType = "Terminating"
	// NodeScaleDown is the reason of NodeTerminationCondition for a machine that is
	// deleted to reduce the replicas.
	NodeScaleDown = "ScaleDown"
	// NodeUnhealthy is the reason for a machine that is replaced.
	NodeUnhealthy = "Unhealthy"

	// NodePreserved is True on a node whose machine is preserved and, if that failed, drained. The
	// reasons below are MCM's.
	NodePreserved corev1.NodeConditionType = "Preserved"
	// PreservedByUser is the reason of NodePreserved for a preservation that an annotation asks for.
	PreservedByUser = "Preserved by user."
	// PreservedByMCM is the reason for a preservation by a machine set.
	PreservedByMCM = "Preserved by MCM."
	// PreservedNodeDrainSuccessful begins the message of NodePreserved once the node of a Failed
	// machine is drained.
	PreservedNodeDrainSuccessful = "Preserved node drained successfully."
	// PreservedNodeDrainUnsuccessful begins the message while its drain fails.
	PreservedNodeDrainUnsuccessful = "Preserved node could not be drained."
	// PreservationStopped is the reason once the machine is not preserved any more.
	PreservationStopped = "Preservation stopped."

	// NodeInPlaceUpdate is True on a node that is, or was, updated in place. Its reason says how far
	// the update is.
	NodeInPlaceUpdate corev1.NodeConditionType = "InPlaceUpdate"
	// CandidateForUpdate is the reason of NodeInPlaceUpdate while the node may be selected.
	CandidateForUpdate = "CandidateForUpdate"
	// SelectedForUpdate is the reason while the node is drained.
	SelectedForUpdate = "SelectedForUpdate"
	// DrainSuccessful is the reason once the node is drained.
	DrainSuccessful = "DrainSuccessful"
	// ReadyForUpdate is the reason on which the agent of the node updates it.
	ReadyForUpdate = "ReadyForUpdate"
	// UpdateSuccessful is the reason once the agent has reported success.
	UpdateSuccessful = "UpdateSuccessful"
	// UpdateFailed is the reason once the agent has reported a failure.
	UpdateFailed = "UpdateFailed"
)

// Names of the leases of MCM's two processes. A manager that runs their controllers must hold them.
const (
	// LeaseMachineController gates the controllers of Machines.
	LeaseMachineController = "machine-controller"
	// LeaseMachineControllerManager gates those of sets and deployments.
	LeaseMachineControllerManager = "machine-controller-manager"
)
