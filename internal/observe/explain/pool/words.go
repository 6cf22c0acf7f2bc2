package pool

import (
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

var say = report.NewStatement

// What happens next, and advice.
const (
	thaws        = "It creates machines again when enough of those that exist are gone"
	nextMade     = "The next machines are made; at once when the class or the template changes"
	lastReady    = "The last of them counts as available, if it stays ready"
	stalls       = "The rollout counts as stalled, unless it makes progress before; it goes on all the same"
	seeMore      = "See what happens next, and more: millwright explain machine -n {namespace} {machine}"
	neverJoined  = "See why they do not join while the next ones try: millwright explain machine -n {namespace} NAME, and look at the console of its VM: " + explain.NotYet
	correctField = "Correct the field that is named. Nothing is done before"
)

// byReason are the statements about conditions of a deployment by the condition's reason. Those of
// its sets are said of the sets.
var byReason = map[string]report.Statement{
	v1alpha1.DeploymentReasonInvalid:        invalid,
	v1alpha1.DeploymentReasonSelectsAll:     invalid,
	v1alpha1.DeploymentReasonNotSupported:   say(report.NotSupported, "{text}", "Run the manager with --target-kubeconfig, choose another strategy, or undo the change of the template"),
	v1alpha1.DeploymentReasonUpdateBlocked:  say(report.InPlaceUpdate, "{text}", "See how far the update of a node is: millwright explain machine -n {namespace} NAME"),
	v1alpha1.DeploymentReasonSetCreateError: say(report.ReplicaFailure, "{text}", ""),
	v1alpha1.DeploymentReasonSetUpdateError: say(report.ReplicaFailure, "{text}", ""),
	v1alpha1.DeploymentReasonMutated: say(report.ReplicaFailure, "{text}",
		"Keep mutating webhooks and policies from changing the templates of machinesets: their machines would not be what the deployment asks for"),
	v1alpha1.DeploymentReasonMarkError: say(report.ReplicaFailure, "{text}",
		"Look at policies, webhooks and rights on machines: one was named for deletion and cannot be marked, so its set is not scaled down"),
}

// byType are the statements about other conditions of a deployment, by the condition's type. None is
// said again of what its sets say themselves.
var byType = map[v1alpha1.MachineDeploymentConditionType]report.Statement{
	v1alpha1.MachineDeploymentFrozen:          say(report.Frozen, "{text}", ""),
	v1alpha1.MachineDeploymentReplicaFailure:  say(report.ReplicaFailure, "{text}", ""),
	v1alpha1.MachineDeploymentProgressing:     say(report.Other, "{text}", ""),
	v1alpha1.MachineDeploymentSelectorOverlap: say(report.SelectorOverlap, "{text}", ""),
	v1alpha1.MachineDeploymentSetReleased: say(report.SetReleased, "{text}",
		"To drain and delete the machines of a released set: kubectl -n {namespace} delete {machinesets} NAME. To have them back: change spec.selector so that it matches the set"),
	v1alpha1.MachineDeploymentRollbackRefused: say(report.RollbackRefused, "{text}",
		"See what one can go back to: millwright rollout history {name} -n {namespace}. The refusal is forgotten with the next change of the template"),
}

// Statements about sets and deployments.
var (
	notSeen      = say(report.NotStarted, "the manager has not acted yet on what was changed last (generation {generation}, it has seen {seen})", "")
	paused       = say(report.Paused, "the deployment is paused: sizes change, and no machine of another template is made", "To go on: millwright rollout resume {name} -n {namespace}")
	pausedWish   = say(report.Paused, "the wish to roll back (spec.rollbackTo) waits for the end of the pause", "")
	rollbackWish = say(report.NotStarted, "the manager has not answered the wish to roll back to {revision} yet", "")
	invalid      = say(v1alpha1.CauseInvalidSpec, "{text}", correctField)
	noScaleUp    = say(report.ScaleUpDisabled, "it creates no machines: it has the label {label}", "If nobody needs it any more: kubectl -n {namespace} label {machinesets} {set} {label}-")
	updatesOnly  = say(report.InPlaceUpdate, "it creates no machines, since the deployment updates their nodes in place and moves them to its newest machine set", "")
	frozen       = say(report.Frozen, "it is frozen, and creates no machines: {text}",
		"Find out who makes the machines that are too many. To go on all the same: kubectl -n {namespace} annotate {object} {annotation}=")
	backOff       = say(report.BackOff, "it waits before it makes the next machines. {text}", "")
	minReady      = say(report.MinReadySeconds, "{count} must stay ready for {wait} to count as available (spec.minReadySeconds)", "")
	late          = say(report.ProgressDeadlineExceeded, "{text} There was no progress for {seconds}s (spec.progressDeadlineSeconds)", "")
	rolling       = say(report.RolloutInProgress, "a rollout goes on: {count} {are} still to be {changed}; {bounds}", "")
	classDryRun   = say(report.RolloutInProgress, "its template is not rolled out, for a dry run: {text}", `To update the VMs: kubectl -n {namespace} annotate --overwrite {machinedeployments} {name} {annotation}=Update. To replace all machines, remove that annotation`)
	classAsked    = say(report.RolloutInProgress, "the drivers of its machines are asked what an update to its class would change: {text}", "")
	classFollowed = say(report.RolloutInProgress, "its machines get another class, and stay where their VMs can be updated: {text}; {bounds}", "")
	growing       = say(report.Scaling, "{exist} of {count} exist: the others are being made", "")
	shrinking     = say(report.Scaling, "{count} exist, and {wanted} are wanted: the others are being deleted", "")
	notCounted    = say(report.Scaling, "all machines run, which the manager has not counted yet", "")
	notDeleted    = say(report.Scaling, "the deletion of {count} has not begun{others}", "")
	moreCauses    = say(report.Other, "{count} more are not well for other causes: kubectl -n {namespace} get {machines}", "")
	setRemains    = say(report.Other, "its machine set {set} is not gone yet", "")
	otherClass    = say(v1alpha1.CauseNoCapacity, "{count} {are} of class {class}, as class {first} had no capacity left when they were made", "")
	otherZone     = say(v1alpha1.CauseZoneOutage, "{count} {are} of class {class}, as all machines in the zone of class {first} were unhealthy when they were made", "")
	fewerInExcess = say(report.Other, "of {wish} machines in excess that it asks for, it has {excess}: the autoscaler may give it {most} in all", "Raise the maximum in annotation "+v1alpha1.AnnotationKeyAutoscalerMaxSize+", or ask for fewer")
	releasing     = say(report.Finalizer, "the garbage collector of Kubernetes has to let go of {what} first, and then of finalizer {finalizer}", "")
)
