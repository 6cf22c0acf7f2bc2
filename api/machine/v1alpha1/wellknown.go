package v1alpha1

import corev1 "k8s.io/api/core/v1"

// Finalizers.
const (
	// FinalizerMCM is on Machines, MachineSets and MachineDeployments from their first reconcile, and on a
	// MachineClass while it is in use.
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
	// NodeLabelKey is the label of a Machine that holds the name of its Node. If the name is too long for a label,
	// AnnotationKeyNodeName holds it instead. See [Machine.NodeName].
	NodeLabelKey = "node"
	// LabelKeyName is the label that, by convention, holds the name of a machine's MachineDeployment.
	LabelKeyName = "name"
	// LabelKeyForceDeletion, parsed as a bool, makes the deletion of a Machine skip all graceful steps.
	LabelKeyForceDeletion = "force-deletion"
	// LabelKeyForceDrain, "True", on a Machine forces a drain that is not part of a deletion.
	LabelKeyForceDrain = "force-drain"
	// LabelKeyFreeze, "True", marks a set or deployment that creates no machines.
	LabelKeyFreeze = "freeze"
	// LabelKeyMachineName is the label of a Node that holds the name of its Machine.
	LabelKeyMachineName = "node.gardener.cloud/machine-name"
	// LabelKeyNodeCandidateForUpdate, "true", marks a node that may be updated in place.
	LabelKeyNodeCandidateForUpdate = "node.machine.sapcloud.io/candidate-for-update"
	// LabelKeyNodeSelectedForUpdate, "true", marks a candidate that is to be updated now.
	LabelKeyNodeSelectedForUpdate = "node.machine.sapcloud.io/selected-for-update"
	// LabelKeyNodeUpdateResult holds the result of an in-place update.
	LabelKeyNodeUpdateResult = "node.machine.sapcloud.io/update-result"
	// LabelValueNodeUpdateSuccessful is the result of an update that succeeded.
	LabelValueNodeUpdateSuccessful = "successful"
	// LabelValueNodeUpdateFailed is the result of an update that failed.
	LabelValueNodeUpdateFailed = "failed"
	// LabelKeyMachineSetScaleUpDisabled on a set prevents it from creating machines.
	LabelKeyMachineSetScaleUpDisabled = "node.machine.sapcloud.io/scale-up-disabled"
)

// Annotations.
const (
	// AnnotationKeyMachinePriority orders the machines of a set for deletion: the lowest value is deleted
	// first. If absent or invalid, it is 3; 1 means chosen for deletion.
	AnnotationKeyMachinePriority = "machinepriority.machine.sapcloud.io"
	// AnnotationKeyMarkedForDeletionTime is the time at which a machine was chosen for deletion.
	AnnotationKeyMarkedForDeletionTime = "machine.sapcloud.io/marked-for-deletion-time"
	// AnnotationKeyTriggerDeletion on a deployment names machines to delete, as
	// NAME~TIME, separated by commas.
	AnnotationKeyTriggerDeletion = "node.machine.sapcloud.io/trigger-deletion-by-mcm"
	// AnnotationKeyLastReplicaChange on a deployment and its sets is the time at which an autoscaler last
	// changed the number of replicas.
	AnnotationKeyLastReplicaChange = "machine.sapcloud.io/last-deployment-replica-change-by-scaler-time"
	// AnnotationKeyDrainSince is the time, in RFC 3339, at which the drain of a Machine was restarted after it
	// timed out, because no drain was possible before. Only Millwright writes it.
	AnnotationKeyDrainSince = "machine.millwright.dev/drain-since"
	// AnnotationKeyNodeName on a Machine is the name of its Node if a label cannot hold it, because it has more than
	// 63 characters. MCM does not know it.
	AnnotationKeyNodeName = "machine.millwright.dev/node-name"
	// AnnotationKeyAwaitsRestoreUntil on a deployment or a set that was restored from a backup is the time, in RFC
	// 3339, until which it waits for its sets or Machines to be restored. Until then, no others are created, and none
	// are deleted. Its controller removes the annotation when all of them exist. Without it, they do not wait.
	AnnotationKeyAwaitsRestoreUntil = "machine.millwright.dev/awaits-restore-until"
	// AnnotationKeyUID on a set without a deployment is its UID when its controller first saw it. Another UID means
	// that the set was restored from a backup.
	AnnotationKeyUID = "machine.millwright.dev/uid"
	// AnnotationKeySkipValidation, "true", exempts an object of this group from the admission policies of
	// config/policy. Controllers ignore it.
	AnnotationKeySkipValidation = "machine.millwright.dev/skip-validation"
	// AnnotationKeyExcessReplicas on a deployment replaces spec.excessReplicas in clusters whose CRDs prune
	// that field, which takes precedence: a number, or a percentage of the replicas. On a set, the deployment
	// writes how many of the set's replicas are in excess.
	AnnotationKeyExcessReplicas = "machine.millwright.dev/excess-replicas"
	// AnnotationKeyExcessNoExecute, "true", on a deployment, which copies it to its sets, gives machines in
	// excess the taint NoExecute in addition to NoSchedule: Pods that do not tolerate it are evicted
	// immediately, regardless of PodDisruptionBudgets.
	AnnotationKeyExcessNoExecute = "machine.millwright.dev/excess-no-execute"
	// AnnotationKeyFallbackClasses on a deployment, which copies it to its sets, replaces spec.fallbackClasses
	// in clusters whose CRDs prune that field, which takes precedence: names separated by commas.
	AnnotationKeyFallbackClasses = "machine.millwright.dev/fallback-classes"
	// AnnotationKeyClassChoices on a machine lists the classes that it may be created with, separated by
	// commas, the first choice first. If absent, its own class is the only choice.
	AnnotationKeyClassChoices = "machine.millwright.dev/class-choices"
	// AnnotationKeyClassReason on a machine is the reason why it does not have the first choice of class:
	// CauseNoCapacity, CauseZoneSpread or CauseZoneOutage.
	AnnotationKeyClassReason = "machine.millwright.dev/class-reason"
	// AnnotationKeyZoneMaxSkew on a deployment, which copies it to its sets, spreads the machines over the
	// zones of its classes. It is the maximum difference in machines between a zone and the zone with the
	// fewest.
	AnnotationKeyZoneMaxSkew = "machine.millwright.dev/zone-max-skew"
	// AnnotationKeyFailureDomain on a machine is the failure domain, such as a zone, that its driver reports
	// for the VM. If absent, the driver does not report one.
	AnnotationKeyFailureDomain = "machine.millwright.dev/failure-domain"
	// AnnotationKeyReplacement on a deployment, which copies it to its sets, replaces spec.replacement, as
	// JSON, in clusters whose CRDs prune that field, which takes precedence.
	AnnotationKeyReplacement = "machine.millwright.dev/replacement"
	// AnnotationKeyZonesOut on a set maps the zones in which all of its machines were unhealthy to the time at
	// which that was last observed, as JSON: {"zone": "time in RFC 3339"}. The set's controller writes it if
	// spec.replacement.zoneOutage is Replace, and creates machines in other zones while a zone is listed.
	AnnotationKeyZonesOut = "machine.millwright.dev/zones-out"
	// AnnotationKeyUpdateStrategy on a MachineClass or a Machine determines what happens to existing VMs when
	// the class changes: with "Update", the driver changes them as far as it can; with "DryRun", the driver
	// reports what it could change. If absent, VMs are not changed. The annotation of a Machine takes
	// precedence over that of its class. On a deployment, it applies when the template names another class; if
	// absent, the machines are replaced.
	AnnotationKeyUpdateStrategy = "machine.millwright.dev/update-strategy"
	// AnnotationKeyMadeFrom on a Machine with an update strategy describes, as JSON, what its VM was created
	// from or updated to.
	AnnotationKeyMadeFrom = "machine.millwright.dev/made-from"
	// AnnotationKeyUpdateClass on a Machine is the name of the class in the template of its deployment, if the
	// deployment has an update strategy. While the Machine has another class, its driver is asked what an
	// update to that class would change; once the Machine has that class, its VM is being updated.
	AnnotationKeyUpdateClass = "machine.millwright.dev/update-class"
	// AnnotationKeyUpdatePlan on a Machine holds, as JSON, the driver's plan of an update and its progress.
	AnnotationKeyUpdatePlan = "machine.millwright.dev/update-plan"
	// AnnotationKeyAutoscalerMaxSize on a deployment is the maximum number of machines that an autoscaler may
	// give it. The key is the autoscaler's for Cluster API. Machines in excess respect it.
	AnnotationKeyAutoscalerMaxSize = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size"
	// AnnotationKeyMachineEffectiveCreationTimeout takes precedence over the creation timeout of the spec and
	// the flag.
	AnnotationKeyMachineEffectiveCreationTimeout = "node.machine.sapcloud.io/effective-creation-timeout"
	// AnnotationKeyMachineJoinDuration on a machine is the Go duration between its creation and its node's
	// joining. It is written to machines that have AnnotationKeyMachineEffectiveCreationTimeout, for the
	// program that sets that annotation.
	AnnotationKeyMachineJoinDuration = "node.machine.sapcloud.io/machine-join-duration"
	// AnnotationKeyMachineUpdateFailedReason on a node is the reason why its in-place update failed.
	AnnotationKeyMachineUpdateFailedReason = "node.machine.sapcloud.io/update-failed-reason"
	// AnnotationKeyLastAppliedNodeTemplate on a node is the last applied node template, the base of the
	// three-way merge.
	AnnotationKeyLastAppliedNodeTemplate = "node.machine.sapcloud.io/last-applied-anno-labels-taints"
	// AnnotationKeyLastAppliedVirtualCapacity is the last applied virtual capacity, used in the same way.
	AnnotationKeyLastAppliedVirtualCapacity = "node.machine.sapcloud.io/last-applied-virtual-capacity"
	// AnnotationKeyNotManaged, "1", marks nodes that have no Machine.
	AnnotationKeyNotManaged = "node.machine.sapcloud.io/not-managed-by-mcm"
	// AnnotationKeyPreserve requests that a machine or node is preserved.
	AnnotationKeyPreserve = "node.machine.sapcloud.io/preserve"
	// AnnotationKeyLastAppliedPreserve on a machine is the last observed value of its node's annotation.
	AnnotationKeyLastAppliedPreserve = "node.machine.sapcloud.io/last-applied-node-preserve-value"
	// AnnotationKeyScaleDownDisabled on a node prevents the cluster autoscaler from removing it.
	AnnotationKeyScaleDownDisabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	// AnnotationKeyScaleDownDisabledByMCM marks nodes whose
	// AnnotationKeyScaleDownDisabled was not set by the user.
	AnnotationKeyScaleDownDisabledByMCM = "cluster-autoscaler.kubernetes.io/scale-down-disabled-by-mcm"
	// AnnotationKeyRevision is the revision of a deployment or set.
	AnnotationKeyRevision = "deployment.kubernetes.io/revision"
	// AnnotationKeyRevisionHistory lists the earlier revisions of a set that became current again.
	AnnotationKeyRevisionHistory = "deployment.kubernetes.io/revision-history"
	// AnnotationKeyDesiredReplicas on a set is its deployment's spec.replicas at the time the set was last
	// scaled.
	AnnotationKeyDesiredReplicas = "deployment.kubernetes.io/desired-replicas"
	// AnnotationKeyMaxReplicas on a set is AnnotationKeyDesiredReplicas plus the surge.
	AnnotationKeyMaxReplicas = "deployment.kubernetes.io/max-replicas"
	// AnnotationKeyPreferNoSchedule on a set records that its nodes are tainted.
	AnnotationKeyPreferNoSchedule = "deployment.machine.sapcloud.io/prefer-no-schedule"
	// AnnotationKeyUnfreeze on a set or deployment removes its freeze.
	AnnotationKeyUnfreeze = "safety.machine.sapcloud.io/unfreeze"
)

// Taints.
const (
	// TaintKeyPreferNoSchedule is on the nodes of old sets during a rollout.
	TaintKeyPreferNoSchedule = "deployment.machine.sapcloud.io/prefer-no-schedule"
	// TaintKeyExcess is on the nodes of machines in excess of a deployment's replicas. The prefix is the
	// cluster autoscaler's: the autoscaler considers such a node ready, and does not expect the taint on new
	// nodes.
	TaintKeyExcess = "status-taint.cluster-autoscaler.kubernetes.io/millwright-excess"
	// TaintKeyCriticalComponentsNotReady prevents a Pending machine from becoming Running.
	TaintKeyCriticalComponentsNotReady = "node.gardener.cloud/critical-components-not-ready"
	// TaintKeyToBeDeleted makes the service controller and kube-proxy remove a node from load balancers. The cluster
	// autoscaler, which defines it, and the machine controller set it on nodes that they delete. Its value is the
	// time in seconds since 1970, and its effect is NoSchedule.
	TaintKeyToBeDeleted = "ToBeDeletedByClusterAutoscaler"
	// TaintKeyPreserved keeps new pods off the node of a Failed machine that is preserved.
	TaintKeyPreserved = "node.machine.sapcloud.io/preserved"
)

// Conditions of Nodes, and their reasons.
const (
	// NodeTerminationCondition is True on a node whose machine is being deleted.
	NodeTerminationCondition corev1.NodeConditionType = "Terminating"
	// NodeScaleDown is the reason of NodeTerminationCondition for a machine that is deleted to scale down.
	NodeScaleDown = "ScaleDown"
	// NodeUnhealthy is the reason of NodeTerminationCondition for a machine that is replaced.
	NodeUnhealthy = "Unhealthy"

	// NodePreserved is True on a node whose machine is preserved and, if the machine has failed, drained. The
	// reasons below are MCM's.
	NodePreserved corev1.NodeConditionType = "Preserved"
	// PreservedByUser is the reason of NodePreserved for a preservation requested by an annotation.
	PreservedByUser = "Preserved by user."
	// PreservedByMCM is the reason of NodePreserved for a preservation by a machine set.
	PreservedByMCM = "Preserved by MCM."
	// PreservedNodeDrainSuccessful begins the message of NodePreserved once the node of a Failed machine is
	// drained.
	PreservedNodeDrainSuccessful = "Preserved node drained successfully."
	// PreservedNodeDrainUnsuccessful begins the message of NodePreserved while the drain fails.
	PreservedNodeDrainUnsuccessful = "Preserved node could not be drained."
	// PreservationStopped is the reason of NodePreserved once the machine is no longer preserved.
	PreservationStopped = "Preservation stopped."

	// NodeInPlaceUpdate is True on a node that is, or was, updated in place. Its reason is the progress of the
	// update.
	NodeInPlaceUpdate corev1.NodeConditionType = "InPlaceUpdate"
	// CandidateForUpdate is the reason of NodeInPlaceUpdate while the node may be selected.
	CandidateForUpdate = "CandidateForUpdate"
	// SelectedForUpdate is the reason while the node is drained.
	SelectedForUpdate = "SelectedForUpdate"
	// DrainSuccessful is the reason once the node is drained.
	DrainSuccessful = "DrainSuccessful"
	// ReadyForUpdate is the reason that makes the node's agent update it.
	ReadyForUpdate = "ReadyForUpdate"
	// UpdateSuccessful is the reason once the agent has reported success.
	UpdateSuccessful = "UpdateSuccessful"
	// UpdateFailed is the reason once the agent has reported a failure.
	UpdateFailed = "UpdateFailed"
)

// Conditions in the status of a Machine that do not come from its Node.
const (
	// ConditionMachineJoined shows whether the node of a machine has joined the cluster within the creation timeout.
	// Future versions of MCM write it. Millwright only keeps it.
	ConditionMachineJoined corev1.NodeConditionType = "MachineJoined"
	// FailedJoin is the reason of ConditionMachineJoined, and the error code of the last operation, if the node has
	// not joined in time. It is not a code of a driver.
	FailedJoin = "FailedJoin"
)

// Names of the leases of MCM's two processes. A manager that runs their controllers must hold them.
const (
	// LeaseMachineController gates the controllers of Machines.
	LeaseMachineController = "machine-controller"
	// LeaseMachineControllerManager gates those of sets and deployments.
	LeaseMachineControllerManager = "machine-controller-manager"
)
