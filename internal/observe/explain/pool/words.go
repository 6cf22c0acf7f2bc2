package pool

import (
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

var newStatement = report.NewStatement

// What happens next, and advice.
const (
	unfreezes      = "It creates machines again when enough existing ones are gone"
	nextMade       = "The next machines are created; immediately if the class or the template changes"
	restoreTimeout = "Objects that were not restored until then are created"
	lastReady      = "The last of them becomes available if it stays ready"
	stalls         = "The rollout exceeds its progress deadline unless it makes progress before then; it continues anyway"
	seeMore        = "For more details: millwright explain machine -n {namespace} {machine}"
	neverJoined    = "Check why machines do not join: millwright explain machine -n {namespace} NAME, and the console of its VM. Possible causes: " + explain.NotYet
	correctField   = "Correct the field that the message names; nothing happens until then"
)

// byReason contains the statements about conditions of a deployment, by the condition's reason. It does not contain
// conditions that the deployment takes over from its sets, because these are reported for the sets.
var byReason = map[string]report.Statement{
	v1alpha1.DeploymentReasonInvalid:        invalid,
	v1alpha1.DeploymentReasonSelectsAll:     invalid,
	v1alpha1.DeploymentReasonNotSupported:   newStatement(report.NotSupported, "{text}", "Run the manager with --target-kubeconfig, use another strategy, or undo the change of the template"),
	v1alpha1.DeploymentReasonUpdateBlocked:  newStatement(report.InPlaceUpdate, "{text}", "To check the update of a node: millwright explain machine -n {namespace} NAME"),
	v1alpha1.DeploymentReasonSetCreateError: newStatement(report.ReplicaFailure, "{text}", ""),
	v1alpha1.DeploymentReasonSetUpdateError: newStatement(report.ReplicaFailure, "{text}", ""),
	v1alpha1.DeploymentReasonMutated: newStatement(report.ReplicaFailure, "{text}",
		"Exclude machinesets from the mutating webhooks and policies that change their templates. Otherwise, their machines would differ from the deployment's template"),
	v1alpha1.DeploymentReasonMarkError: newStatement(report.ReplicaFailure, "{text}",
		"Check policies, webhooks and permissions for machines: one was named for deletion but cannot be marked, so its set is not scaled down"),
}

// byType contains the statements about other conditions of a deployment, by the condition's type. Their causes are
// reported only once, even if the sets have the same condition.
var byType = map[v1alpha1.MachineDeploymentConditionType]report.Statement{
	v1alpha1.MachineDeploymentFrozen:          newStatement(report.Frozen, "{text}", ""),
	v1alpha1.MachineDeploymentReplicaFailure:  newStatement(report.ReplicaFailure, "{text}", ""),
	v1alpha1.MachineDeploymentProgressing:     newStatement(report.Other, "{text}", ""),
	v1alpha1.MachineDeploymentSelectorOverlap: newStatement(report.SelectorOverlap, "{text}", ""),
	v1alpha1.MachineDeploymentSetReleased: newStatement(report.SetReleased, "{text}",
		"To drain and delete the machines of a released set: kubectl -n {namespace} delete {machinesets} NAME. To get them back, change spec.selector so that it matches the set"),
	v1alpha1.MachineDeploymentRollbackRefused: newStatement(report.RollbackRefused, "{text}",
		"To list the available revisions: millwright rollout history {name} -n {namespace}. The condition is removed at the next change of the template"),
}

// Statements about sets and deployments.
var (
	notSeen         = newStatement(report.NotStarted, "the manager has not processed the latest change yet (generation {generation}, observed {seen})", "")
	paused          = newStatement(report.Paused, "the deployment is paused: it is scaled, but machines with another template are not created", "To resume: millwright rollout resume {name} -n {namespace}")
	pausedRollback  = newStatement(report.Paused, "the requested rollback (spec.rollbackTo) waits until the deployment is resumed", "")
	pendingRollback = newStatement(report.NotStarted, "the manager has not processed the requested rollback to {revision} yet", "")
	invalid         = newStatement(v1alpha1.CauseInvalidSpec, "{text}", correctField)
	noScaleUp       = newStatement(report.ScaleUpDisabled, "it creates no machines because it has the label {label}", "If the label is no longer needed: kubectl -n {namespace} label {machinesets} {set} {label}-")
	updatesOnly     = newStatement(report.InPlaceUpdate, "it creates no machines because the deployment updates their nodes in place and moves them to its latest machine set", "")
	frozen          = newStatement(report.Frozen, "it is frozen and creates no machines: {text}",
		"Find out who creates the surplus machines. To continue anyway: kubectl -n {namespace} annotate {object} {annotation}=")
	awaitsMachines = newStatement(report.AwaitingRestore, "it was restored from a backup and waits for its machines: it creates and deletes none until all {desired} exist and their VMs have been looked up",
		"If no more machines will be restored: kubectl -n {namespace} annotate {machinesets} {set} {annotation}-")
	awaitsSets = newStatement(report.AwaitingRestore, "it was restored from a backup and waits for its machine sets: it creates and scales none until they are restored",
		"If no more machine sets will be restored: kubectl -n {namespace} annotate {machinedeployments} {name} {annotation}-")
	backOff       = newStatement(report.BackOff, "it waits before it creates the next machines. {text}", "")
	minReady      = newStatement(report.MinReadySeconds, "{count} must stay ready for {wait} to become available (spec.minReadySeconds)", "")
	late          = newStatement(report.ProgressDeadlineExceeded, "{text} There was no progress for {seconds}s (spec.progressDeadlineSeconds)", "")
	rolling       = newStatement(report.RolloutInProgress, "a rollout is in progress: {count} {are} still to be {changed}; {bounds}", "")
	classDryRun   = newStatement(report.RolloutInProgress, "its template is not rolled out because of a dry run: {text}", `To update the VMs: kubectl -n {namespace} annotate --overwrite {machinedeployments} {name} {annotation}=Update. To replace all machines, remove that annotation`)
	classAsked    = newStatement(report.RolloutInProgress, "the drivers of its machines are checking which changes an update to its class requires: {text}", "")
	classFollowed = newStatement(report.RolloutInProgress, "its machines get another class, and are kept if their VMs can be updated: {text}; {bounds}", "")
	growing       = newStatement(report.Scaling, "{exist} of {count} exist; the others are being created", "")
	shrinking     = newStatement(report.Scaling, "{count} exist, and {desired} are desired; the others are being deleted", "")
	notCounted    = newStatement(report.Scaling, "all machines are running, but the manager has not counted them yet", "")
	notDeleted    = newStatement(report.Scaling, "the deletion of {count} has not started{others}", "")
	moreCauses    = newStatement(report.Other, "{count} have other problems: kubectl -n {namespace} get {machines}", "")
	setRemains    = newStatement(report.Other, "its machine set {set} still exists", "")
	otherClass    = newStatement(v1alpha1.CauseNoCapacity, "{count} {have} class {class} because class {first} had no capacity when {they} created", "")
	otherZone     = newStatement(v1alpha1.CauseZoneOutage, "{count} {have} class {class} because all machines in the zone of class {first} were unhealthy when {they} created", "")
	fewerInExcess = newStatement(report.Other, "{excess} of {requested} requested machines in excess exist, because the autoscaler's maximum is {most}", "Increase the maximum in annotation "+v1alpha1.AnnotationKeyAutoscalerMaxSize+", or request fewer machines in excess")
	releasing     = newStatement(report.Finalizer, "the Kubernetes garbage collector must release {what}, and then remove finalizer {finalizer}", "")
)
