package explain

import (
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

var say = report.NewStatement

// Words that several statements share.
const (
	condition    = "{type} is {status} ({reason}): {text}"
	noEviction   = "it allows no eviction of pod {pod}"
	deletedIt    = "machine set {set} deleted it: {text}"
	keptWhy      = "it is preserved {why}: neither a rollout nor scaling nor a failure deletes it"
	lookAtAgent  = "Look at the agent on node {node}, which in Gardener is gardener-node-agent. A success that it reports later counts"
	lookAtReason = "Look at the VM's console{console}: {reason}"
)

// Statements about a Machine that is not being deleted.
var (
	saidLast       = say(report.Other, "the manager said last: {text}", "")
	lastAttempt    = say(report.Other, "the last attempt said: {text}", "")
	recovered      = say(report.Other, "its node is well now, which the manager has not seen yet. It said last: {text}", "")
	notAnswered    = say(report.NotStarted, "the driver has not answered yet about a VM for it", "")
	driverSilent   = say(v1alpha1.CauseDriverSilent, "{text}", "Look whether the driver works, and whether it reaches its provider")
	blocked        = say("", "{text}", "Change what the sentence names. It is tried again at once when the machine, its class or its secret changes")
	vmUntouched    = say(report.VirtualMachineNotReady, "nothing was done for it yet: is its controller running?", "")
	vmOfController = say(report.VirtualMachineNotReady, "nothing was done for it yet by VM controller {controller}, which its annotation names; others leave it alone",
		"Look whether that VM controller runs. To have another one take it: kubectl -n {vm namespace} annotate {virtualmachines} {vm} {annotation}-")
	vmNotFenced     = say(report.VirtualMachineNotReady, "its VM was not taken from its host, as somebody wanted ({reason}): {text}", "")
	vmNotReady      = say(report.VirtualMachineNotReady, "its VM{where} is not ready ({reason}): {text}", "")
	instanceLost    = say(v1alpha1.CauseInstanceLost, "VM {provider ID} no longer exists", "Find out at the provider who removed the VM")
	targetAway      = say(v1alpha1.CauseTargetUnavailable, "the target cluster does not answer: {text}", "Bring the API server of the target cluster back, if it is not only out of reach from here")
	notJoined       = say(report.NodeNotJoined, `node "{node}" has not joined`, "")
	nodeGone        = say(v1alpha1.CauseNodeMissing, `node "{node}" does not exist any more`, "Look at the VM's console{console}, and at who deleted the node")
	nodeAbsent      = say(v1alpha1.CauseNodeMissing, `node "{node}" does not exist now`, "")
	nodeUnhealthy   = say(v1alpha1.CauseNodeUnhealthy, condition, "")
	kubeletSilent   = say(v1alpha1.CauseNodeUnhealthy, condition, "The kubelet of node {node} does not report: look at the VM's console{console}, and at its network")
	kubeletNew      = say(v1alpha1.CauseNodeUnhealthy, "its kubelet has not said anything yet", "")
	criticalMissing = say(report.CriticalComponentsNotReady, "critical components on the node are not ready: it still has the taint {taint}",
		"Look at the pods of node {node}, above all at those of its network and storage: kubectl get pods -A --field-selector spec.nodeName={node}")
	templateInvalid = say(report.NodeTemplateNotApplied, "Node {node} is not as spec.nodeTemplate says: {text}", "Correct spec.nodeTemplate {template}. Nodes that exist get it at once")
	templateLate    = say(report.NodeTemplateNotApplied, "{what} yet", "")
	templateRefused = say(report.NodeTemplateNotApplied, "{what}. {text}",
		"Look at policies and webhooks for nodes in the target cluster, or correct {source}. The manager tries again at least every 10m")
	fallsBack        = say(v1alpha1.CauseNoCapacity, "{text}", "")
	unfitClass       = say(v1alpha1.CauseUnfitClass, "{text}", "Correct the class, or the list in spec.fallbackClasses of the deployment or in its annotation "+v1alpha1.AnnotationKeyFallbackClasses)
	delayed          = say(v1alpha1.CauseReplacementDelayed, "{text}", "Look why so many machines of the pool fail at once: kubectl -n {namespace} get {machines}")
	zoneOut          = say(v1alpha1.CauseZoneOutage, "{text}", "Bring the zone back, or have its machines replaced in other zones: spec.replacement.zoneOutage: Replace, with spec.fallbackClasses")
	kept             = say(report.Preserved, keptWhy, "To end its preservation: {release}")
	keptFailed       = say(report.Preserved, keptWhy, "To have it replaced now: {release}")
	namedKept        = say(v1alpha1.CauseNamedForDeletion, "it was named for deletion, normally by an autoscaler, and is kept: spec.replicas was not lowered{cordoned}", deleteOrKeep)
	namedPreserved   = say(v1alpha1.CauseNamedForDeletion, "it was named for deletion, normally by an autoscaler, and is kept: it is preserved{cordoned}", "")
	keptNoMore       = say(report.Preserved, "it is preserved, which ends when the manager has seen that nobody asks for it any more", "")
	updateSilent     = say(report.InPlaceUpdate, "the update of its node in place failed: the agent did not report in time", lookAtAgent)
	updateUnanswered = say(report.InPlaceUpdate, "its node is to be updated in place, and no machine controller has answered that: the node has no condition InPlaceUpdate of this update",
		"Look whether a machine-controller runs that updates nodes in place. An older version does not")
	vmToUpdate   = say(v1alpha1.CauseUpdatePending, "its VM waits for an update to MachineClass {class}{what}{text}", "")
	vmUpdatable  = say(v1alpha1.CauseUpdatePending, "its VM differs from MachineClass {class} in {what}, which its driver can change without a new VM", updateVMs)
	vmToReplace  = say(v1alpha1.CauseReplacementNeeded, "its VM needs a replacement to be as MachineClass {class} says, because of {what}", replaceVM)
	strategyBad  = say(v1alpha1.CauseInvalidUpdateStrategy, "VMs stay as they are: {text}", "Correct the annotation")
	updateQuoted = say(report.InPlaceUpdate, "the manager says: {text}", "")
	vmElsewhere  = say(v1alpha1.CauseInstanceElsewhere, "nobody knows whether its VM exists: {text}",
		"Undo what was changed in MachineClass {class} or its secret, or have them lead to where the VM is now. Only if there is no VM any more: kubectl -n {namespace} annotate {machines} {name} {annotation}-")
)

// Advice on VMs that differ from their class.
const (
	updateVMs = "To have it done: kubectl -n {namespace} annotate machineclasses.machine.sapcloud.io {class} --overwrite {annotation}=Update"
	replaceVM = "To replace it: millwright rollout restart -n {namespace} DEPLOYMENT --machine {name}, or without --machine for all"
)

// keptFor says why a Machine is preserved, by the value of the annotation that counts.
var keptFor = map[string]string{
	preservation.Now:           "as the annotation {annotation} {whose} asks",
	preservation.WhenFailed:    "as the annotation {annotation} {whose} asks for when it has failed",
	preservation.AutoPreserved: "by its machine set, since it failed",
}

// ofWhom says whose annotation counts: the node's, or the Machine's.
var ofWhom = map[bool]string{true: "of its node", false: "of the machine"}

// updates are the statements about an update of a node in place, by the reason of the node's condition.
var updates = map[string]report.Statement{
	v1alpha1.CandidateForUpdate: say(report.InPlaceUpdate, "its node is to be updated in place, and waits to be selected",
		"The strategy of the deployment selects nodes, or you do: kubectl label node {node} {label}=true"),
	v1alpha1.SelectedForUpdate: say(report.InPlaceUpdate, "its node is selected for an update in place, and is drained first", ""),
	v1alpha1.DrainSuccessful:   say(report.InPlaceUpdate, "its node is drained, and is about to be ready for its update in place", ""),
	v1alpha1.ReadyForUpdate:    say(report.InPlaceUpdate, "its node is ready for its update in place, and waits for the agent to report the result", lookAtAgent),
	v1alpha1.UpdateSuccessful:  say(report.InPlaceUpdate, "its node was updated in place; the machine is Running when the node is healthy", ""),
	v1alpha1.UpdateFailed:      say(report.InPlaceUpdate, "the update of its node in place failed: {text}", lookAtAgent),
}

// Statements about a deletion.
var (
	notBegun        = say(report.NotStarted, "the manager has not begun with it", "")
	quoted          = say(report.Other, "the manager says: {text}", "")
	drainQuoted     = say(report.Draining, "the manager says: {text}", "")
	evictionPending = say(report.EvictionPending, "it is still on the node, and waits for its eviction or for its turn", "")
	podTerminating  = say(report.PodTerminating, "it is ending, for which it may take until {until}", "")
	podHeld         = say(report.PodStuck, "it should have ended; finalizer {finalizers} holds it", "Ask whoever owns the finalizers of such pods")
	podStuck        = say(report.PodStuck, "it should have ended: its grace period is over, and the kubelet has not removed it",
		"Look at the pods that should have ended: a hanging volume, or a kubelet that does not answer")
	budgetUnsettled = say(report.DisruptionBudget, noEviction+": the disruption controller has not looked at it since it changed", "")
	budgetAllows0   = say(report.DisruptionBudget, noEviction+" now: {healthy} of {expected} pods {are} healthy, and it wants {desired}", "Look why pods that {budget} covers are not healthy")
	budgetForbids   = say(report.DisruptionBudgetForbids, "it never allows an eviction of pod {pod}: {all} healthy, and it wants {desired}", "Have the owner of {budget} allow one pod to be missing, or add a pod")
	manyBudgets     = say(report.DisruptionBudgetForbids, "{count} pod disruption budgets cover it, {budget} among them: the API server evicts no such pod",
		"Change the selectors of the budgets, so that one of them covers pod {pod}")
	detachFailed    = say(report.VolumeAttached, "volume {volume} cannot be detached; {attacher} says: {text}", "Look at the CSI driver {attacher} and at its provider")
	detaching       = say(report.VolumeAttached, "volume {volume} is being detached by {attacher}", "")
	attached        = say(report.VolumeAttached, "volume {volume} is attached to the node", "")
	instanceDeleted = say(v1alpha1.CauseInstanceExists, "the provider is deleting VM {provider ID}", "")
	instanceRemains = say(v1alpha1.CauseInstanceExists, "the provider was asked to delete VM {provider ID}, and still has it", "")
	instanceShared  = say(v1alpha1.CauseInstanceShared, "{text}",
		"Find out at the provider whose VM it is, and clear spec.providerID of the other machine: kubectl -n {namespace} edit {machines} NAME")
	undeletable = say(v1alpha1.CauseInvalidClassInputs, "VM {provider ID} cannot be deleted: {text}",
		"If the VM is gone already, clear spec.providerID; do not remove the finalizer by hand, or the VM is left behind")
)

// Statements about why a Machine was deleted.
var (
	setDeletedSurplus = say(v1alpha1.CauseSurplus, deletedIt, "")
	setDeletedIt      = say(report.DeletedBySet, deletedIt, "")
	chosenByName      = say(v1alpha1.CauseNamedForDeletion, "it was chosen by name, normally by an autoscaler: {text}", "")
	scaledDown        = say(v1alpha1.CauseSurplus, "{text}", "")
	nodeDeleted       = say(v1alpha1.CauseNodeDeleted, "{text}", "")
	failedBefore      = say(v1alpha1.CauseMachineFailed, "it had failed before: {text}", "")
	failedLast        = say(v1alpha1.CauseMachineFailed, "its last failure was: {text}", "")
	setIsDeleted      = say(v1alpha1.CauseOwnerDeleted, "its machine set is being deleted", "")
	nodeIsDeleted     = say(v1alpha1.CauseNodeDeleted, "somebody deleted its node", "")
	lowestPriority    = say(v1alpha1.CauseNamedForDeletion, "it was chosen for deletion, normally by an autoscaler: its annotation {annotation} is 1", "")
	nodeWasUnhealthy  = say(v1alpha1.CauseMachineFailed, "its node was not healthy when it was deleted", "")
	conditionWasBad   = say(v1alpha1.CauseMachineFailed, "its node's condition {type} was {status} ({reason})", "")
	oldRevision       = say(v1alpha1.CauseSurplus, "it is of revision {was}, and the deployment rolls out revision {is}", "")
	unexplained       = say(report.Unexplained, "nothing tells why: somebody other than its set deleted it, or the events about it have expired, which an API server keeps for an hour", "")
)

// byCause are the statements about a Machine that its set deleted, by the cause that the set annotated.
var byCause = map[string]report.Statement{
	v1alpha1.CauseMachineFailed:    say(v1alpha1.CauseMachineFailed, "machine set {set} deleted it because it failed: {text}", ""),
	v1alpha1.CauseNamedForDeletion: say(v1alpha1.CauseNamedForDeletion, "machine set {set} deleted it because it was named for deletion, normally by an autoscaler", ""),
	v1alpha1.CauseOwnerDeleted:     say(v1alpha1.CauseOwnerDeleted, deletedIt, ""),
}

// What happens next.
const (
	timeoutsPause  = "Timeouts stand still as long as the manager gets no answer either, and begin anew then"
	nodeGoesLater  = "The VM is gone. The node object is deleted when the target cluster answers"
	detachesFirst  = "The VM is deleted when its volumes are detached"
	askedAgain     = "The provider is asked at least every minute whether it is gone"
	forced         = "Pods are deleted without regard to budgets and grace: {why}"
	forcedUnless   = "Pods are deleted without regard to budgets and grace, unless the node recovers before"
	drainTimesOut  = "What is left then is deleted without regard to budgets and grace{then}: the drain timeout is {timeout}"
	failsUnless    = "The machine becomes Failed unless {unless}: its timeout is {timeout}"
	neverFails     = "It stays as it is until its node is healthy: spec.disableHealthTimeout is set"
	zoneReturns    = "It stays Unknown until its zone is back, or others of its zone are healthy"
	failsAfter     = "It becomes Failed once the others are replaced, or Running if its node recovers"
	becomesRunning = "It becomes Running as soon as the manager has seen that"
	preservedUntil = "Its preservation ends"
	updateTimesOut = "The update counts as failed unless the agent reports before: its timeout is {timeout}"
	askAgain       = "The driver is asked again {again}; at once when the machine, its class or its secret changes"
)

// Further advice.
const (
	releaseMachine = "millwright machine release -n {namespace} {name}"
	releaseNode    = "kubectl annotate node {node} {annotation}-"

	deleteOrKeep = "To delete it, lower spec.replicas of {pool}: it goes first. To keep it, remove its name from the deployment's annotation {trigger}, if it is there, and then: " +
		"kubectl -n {namespace} annotate {machines} {name} {priority}- {marked}-{uncordon}"
	uncordon = "Nothing is scheduled to a cordoned node: kubectl uncordon {node}"

	forceDrain = "To go on at once, at the price of pods that end without grace: kubectl -n {namespace} label {machines} {name} {label}=True"
	fixClass   = "MachineClass {class} can be corrected while the machine is being deleted, too: the deletion then goes on at once"
	noInstance = "If no VM of it can exist, as where every creation was refused: kubectl -n {namespace} patch {machines} {name} --type=merge -p '{\"metadata\":{\"finalizers\":null}}'. A VM that exists nevertheless is removed as an orphan once the driver can read the class"
	eventsGone = "Events are kept for an hour: look in the log of the manager, or in the API server's audit log, if it went before"

	createClass  = "Create MachineClass {class} in namespace {namespace}. It is tried at once then"
	createSecret = "Create the secret, or correct the reference in MachineClass {class}. It is tried at once then"
	moveSecret   = "Correct the reference in MachineClass {class}"
	addUserData  = "Add the key to a secret of MachineClass {class}. It is tried at once then"

	fixImage    = "Correct the image that MachineClass {class} names, or what its server answers: the VM has never run, so its console tells nothing"
	freeHost    = "Free room on a host, or add one: the VM has not run yet, so its console tells nothing"
	stuckOnHost = "Its VM starts on another host when its host {host} answers and has ended it, or when the node {host} is deleted"
	leaseMoves  = "Its VM starts on another host when its lease has expired"
	fenceHost   = "Switch off host {host} if it is broken, then say so: millwright vm fence -n {vm namespace} {vm}"

	makeRoom = "Make room on the storage of the disk of VirtualMachine {vm namespace}/{vm}: it goes on by itself"
	lookAtVM = "If it takes too long, look at the VM: kubectl -n {vm namespace} describe {virtualmachines} {vm}. It has not run yet, so its console tells nothing"
	// NotYet is why a VM that runs may not have joined.
	NotYet    = "it cannot reach the API server, its user data is wrong, or it is slow"
	notInTime = "it cannot reach the API server, its user data is wrong, or it was slow"
)

const (
	fixSpec        = "Correct the providerSpec of MachineClass {class}: the message names the field"
	fixCredentials = "Correct the credentials in the secret of MachineClass {class}, or the driver's own if it has none"
	fixRights      = fixCredentials + ", or what they are allowed to do"
	seeProvider    = "Look for the message in the provider's own log or console"
)

// byCode is the advice against a driver's code. Where there is none, the driver is asked again.
var byCode = map[codes.Code]string{
	codes.ResourceExhausted:  "Free capacity or raise the quota at the provider, or use a class of another zone or size",
	codes.InvalidArgument:    fixSpec,
	codes.OutOfRange:         fixSpec,
	codes.PermissionDenied:   fixRights,
	codes.Unauthenticated:    fixCredentials,
	codes.AlreadyExists:      "Remove the other VM at the provider, if it is nobody's; a machine of a set gets a successor with another name",
	codes.FailedPrecondition: "Repair the VM at the provider: its state does not allow what is asked",
	codes.Unimplemented:      "The driver does not support this: look at its documentation",
	codes.Internal:           seeProvider,
	codes.DataLoss:           seeProvider,
}

// byCodeAtCreation is that in a creation, where it differs.
var byCodeAtCreation = map[codes.Code]string{
	codes.PermissionDenied:   fixRights + ". If the class names something by mistake, such as a pool or a project, correct that",
	codes.FailedPrecondition: "Have MachineClass {class} name another one of what the message says, or mend that at the provider: the VM needs something that is not there, or not in a state for it",
}

// AdviceFor returns the advice against a code of a driver; empty if there is none.
func AdviceFor(code codes.Code, creation bool) string {
	if advice, differs := byCodeAtCreation[code]; creation && differs {
		return advice
	}
	return byCode[code]
}
