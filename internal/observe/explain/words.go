package explain

import (
	"regexp"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

var newStatement = report.NewStatement

// Texts that several statements share.
const (
	condition    = "{type} is {status} ({reason}): {text}"
	noEviction   = "it does not allow the eviction of pod {pod}"
	deletedIt    = "machine set {set} deleted it: {text}"
	keptWhy      = "it is preserved {why}, so rollouts, scaling and failures do not delete it"
	lookAtAgent  = "Check the agent on node {node} (gardener-node-agent in Gardener). If it reports success later, the update still succeeds"
	lookAtReason = "Check the VM's console{console}. Possible causes: {reason}"
)

// Statements about a Machine that is not being deleted.
var (
	lastMessage    = newStatement(report.Other, "last message of the manager: {text}", "")
	lastAttempt    = newStatement(report.Other, "result of the last attempt: {text}", "")
	recovered      = newStatement(report.Other, "its node is healthy now, but the manager has not processed that yet; last message of the manager: {text}", "")
	noResult       = newStatement(report.NotStarted, "the driver has not returned a result for its VM yet", "")
	driverSilent   = newStatement(v1alpha1.CauseDriverSilent, "{text}", "Check that the driver is running and can reach its provider")
	blocked        = newStatement("", "{text}", "Fix the problem that the message describes. The manager retries immediately when the machine, its class or its secret changes")
	vmUntouched    = newStatement(report.VirtualMachineNotReady, "the VM controller has not processed it yet; check that the VM controller is running", "")
	vmOfController = newStatement(report.VirtualMachineNotReady, "VM controller {controller}, which its annotation selects, has not processed it yet; other VM controllers ignore it",
		"Check that this VM controller is running. To let another VM controller take over: kubectl -n {vm namespace} annotate {virtualmachines} {vm} {annotation}-")
	vmNotFenced       = newStatement(report.VirtualMachineNotReady, "its VM was not fenced as requested ({reason}): {text}", "")
	vmNotReady        = newStatement(report.VirtualMachineNotReady, "its VM{where} is not ready ({reason}): {text}", "")
	instanceLost      = newStatement(v1alpha1.CauseInstanceLost, "VM {provider ID} no longer exists", "Find out from the provider who deleted the VM")
	targetAway        = newStatement(v1alpha1.CauseTargetUnavailable, "the target cluster does not respond: {text}", "Restore the API server of the target cluster, or the network connection to it")
	notJoined         = newStatement(report.NodeNotJoined, `node "{node}" has not joined`, "")
	certificateDenied = newStatement(report.CertificateDenied, "the certificate that its guest requested was denied: {text}",
		`Correct the user data so that the guest registers as node "{node}", for example with --hostname-override=<<MACHINE_NAME>>, and replace the machine: kubectl -n {namespace} delete {machines} {name}`)
	nodeGone        = newStatement(v1alpha1.CauseNodeMissing, `node "{node}" no longer exists`, "Check the VM's console{console}, and find out who deleted the node")
	nodeAbsent      = newStatement(v1alpha1.CauseNodeMissing, `node "{node}" does not exist at the moment`, "")
	nodeUnhealthy   = newStatement(v1alpha1.CauseNodeUnhealthy, condition, "")
	kubeletSilent   = newStatement(v1alpha1.CauseNodeUnhealthy, condition, "The kubelet of node {node} does not report its status: check the VM's console{console} and its network")
	kubeletNew      = newStatement(v1alpha1.CauseNodeUnhealthy, "its kubelet has not reported any status yet", "")
	criticalMissing = newStatement(report.CriticalComponentsNotReady, "critical components on the node are not ready: the node still has the taint {taint}",
		"Check the pods on node {node}, especially those for network and storage: kubectl get pods -A --field-selector spec.nodeName={node}")
	templateInvalid = newStatement(report.NodeTemplateNotApplied, "Node {node} cannot match spec.nodeTemplate: {text}", "Correct spec.nodeTemplate {template}. Existing nodes are updated immediately")
	templateLate    = newStatement(report.NodeTemplateNotApplied, "{what} yet", "")
	templateRefused = newStatement(report.NodeTemplateNotApplied, "{what}. {text}",
		"Check policies and webhooks for nodes in the target cluster, or correct {source}. The manager retries at least every 10m")
	fallsBack        = newStatement(v1alpha1.CauseNoCapacity, "{text}", "")
	unfitClass       = newStatement(v1alpha1.CauseUnfitClass, "{text}", "Correct the class, or the list in the deployment's spec.fallbackClasses or in its annotation "+v1alpha1.AnnotationKeyFallbackClasses)
	delayed          = newStatement(v1alpha1.CauseReplacementDelayed, "{text}", "Find out why so many machines of the pool fail at the same time: kubectl -n {namespace} get {machines}")
	zoneOut          = newStatement(v1alpha1.CauseZoneOutage, "{text}", "Restore the zone, or replace its machines in other zones: set spec.replacement.zoneOutage to Replace, and spec.fallbackClasses")
	kept             = newStatement(report.Preserved, keptWhy, "To stop preserving it: {release}")
	keptFailed       = newStatement(report.Preserved, keptWhy, "To replace it now: {release}")
	namedKept        = newStatement(v1alpha1.CauseNamedForDeletion, "it was named for deletion, usually by an autoscaler, and is kept because spec.replicas was not reduced{cordoned}", deleteOrKeep)
	namedPreserved   = newStatement(v1alpha1.CauseNamedForDeletion, "it was named for deletion, usually by an autoscaler, and is kept because it is preserved{cordoned}", "")
	keptNoMore       = newStatement(report.Preserved, "it is still preserved, but this is no longer requested; the manager will release it", "")
	updateSilent     = newStatement(report.InPlaceUpdate, "the in-place update of its node failed: the agent did not report a result in time", lookAtAgent)
	updateUnanswered = newStatement(report.InPlaceUpdate, "its node is to be updated in place, and no machine controller has started the update: the node has no condition InPlaceUpdate for this update",
		"Check that a machine-controller that supports in-place updates is running. Older versions do not support them")
	vmToUpdate   = newStatement(v1alpha1.CauseUpdatePending, "its VM is waiting for an update to MachineClass {class}{what}{text}", "")
	vmUpdatable  = newStatement(v1alpha1.CauseUpdatePending, "its VM differs from MachineClass {class} in {what}, which its driver can change without a new VM", updateVMs)
	vmToReplace  = newStatement(v1alpha1.CauseReplacementNeeded, "its VM must be replaced to match MachineClass {class}, because of {what}", replaceVM)
	strategyBad  = newStatement(v1alpha1.CauseInvalidUpdateStrategy, "VMs are not updated: {text}", "Correct the annotation")
	updateQuoted = newStatement(report.InPlaceUpdate, "the manager reports: {text}", "")
	vmElsewhere  = newStatement(v1alpha1.CauseInstanceElsewhere, "it is unknown whether its VM exists: {text}",
		"Undo the changes to MachineClass {class} or its secret, or make them refer to the current location of the VM. Only if the VM no longer exists: kubectl -n {namespace} annotate {machines} {name} {annotation}-")
)

// Advice on VMs that differ from their class.
const (
	updateVMs = "To apply the changes: kubectl -n {namespace} annotate machineclasses.machine.sapcloud.io {class} --overwrite {annotation}=Update"
	replaceVM = "To replace it: millwright rollout restart -n {namespace} DEPLOYMENT --machine {name}, or without --machine to replace all machines"
)

// keptFor are the reasons for a preservation, by the value of the effective annotation.
var keptFor = map[string]string{
	preservation.Now:           "as requested by annotation {annotation} {whose}",
	preservation.WhenFailed:    "as requested by annotation {annotation} {whose} for a failed machine",
	preservation.AutoPreserved: "by its machine set because it failed",
}

// ofWhom names the owner of the effective annotation: true is the node, false is the Machine.
var ofWhom = map[bool]string{true: "of its node", false: "of the machine"}

// updates are the statements about an in-place update of a node, by the reason of the node's condition.
var updates = map[string]report.Statement{
	v1alpha1.CandidateForUpdate: newStatement(report.InPlaceUpdate, "its node is to be updated in place, and is waiting to be selected",
		"The deployment's strategy selects nodes, or you select this node: kubectl label node {node} {label}=true"),
	v1alpha1.SelectedForUpdate: newStatement(report.InPlaceUpdate, "its node is selected for an in-place update, and is being drained first", ""),
	v1alpha1.DrainSuccessful:   newStatement(report.InPlaceUpdate, "its node is drained, and will soon be ready for its in-place update", ""),
	v1alpha1.ReadyForUpdate:    newStatement(report.InPlaceUpdate, "its node is ready for its in-place update, and is waiting for the agent to report the result", lookAtAgent),
	v1alpha1.UpdateSuccessful:  newStatement(report.InPlaceUpdate, "its node was updated in place; the machine becomes Running when the node is healthy", ""),
	v1alpha1.UpdateFailed:      newStatement(report.InPlaceUpdate, "the in-place update of its node failed: {text}", lookAtAgent),
}

// Statements about a deletion.
var (
	notBegun        = newStatement(report.NotStarted, "the manager has not started the deletion yet", "")
	quoted          = newStatement(report.Other, "the manager reports: {text}", "")
	drainQuoted     = newStatement(report.Draining, "the manager reports: {text}", "")
	evictionPending = newStatement(report.EvictionPending, "it is still on the node, and is waiting to be evicted", "")
	podReturned     = newStatement(report.PodReturned, "it tolerates the cordon of the node, and came to the node after that; the drain does not wait for it, and it is deleted with the node", "")
	podTerminating  = newStatement(report.PodTerminating, "it is terminating, and may take until {until}", "")
	podHeld         = newStatement(report.PodStuck, "its grace period is over, but it is not deleted because of its finalizers: {finalizers}", "Check the controllers that own the finalizers of these pods")
	podStuck        = newStatement(report.PodStuck, "its grace period is over, but the kubelet has not removed it",
		"Check why these pods do not terminate. Possible causes: a hanging volume, or a kubelet that does not respond")
	budgetFailed = newStatement(report.DisruptionBudgetForbids, noEviction+", because the disruption controller cannot process it: {text}",
		"Ask the owner of {budget} to correct it. If the pods belong to a controller that Kubernetes does not know, only an integer as minAvailable works")
	budgetUnsettled = newStatement(report.DisruptionBudget, noEviction+": the disruption controller has not processed its last change yet", "")
	budgetAllows0   = newStatement(report.DisruptionBudget, noEviction+" at the moment: {healthy} of {expected} pods {are} healthy, {desired} required", "Check why pods of {budget} are not healthy")
	budgetForbids   = newStatement(report.DisruptionBudgetForbids, "it never allows the eviction of pod {pod}: {all} healthy, {desired} required", "Ask the owner of {budget} to allow one unavailable pod, or to add a pod")
	manyBudgets     = newStatement(report.DisruptionBudgetForbids, "{count} pod disruption budgets cover it, including {budget}; the API server does not evict such a pod",
		"Change the selectors of the budgets so that only one of them covers pod {pod}")
	detachFailed    = newStatement(report.VolumeAttached, "volume {volume} cannot be detached; {attacher} reports: {text}", "Check the CSI driver {attacher} and its provider")
	detaching       = newStatement(report.VolumeAttached, "volume {volume} is being detached by {attacher}", "")
	attached        = newStatement(report.VolumeAttached, "volume {volume} is attached to the node", "")
	instanceDeleted = newStatement(v1alpha1.CauseInstanceExists, "the provider is deleting VM {provider ID}", "")
	instanceRemains = newStatement(v1alpha1.CauseInstanceExists, "the provider was asked to delete VM {provider ID}, but the VM still exists", "")
	instanceShared  = newStatement(v1alpha1.CauseInstanceShared, "{text}",
		"Find out from the provider which machine the VM belongs to, and clear spec.providerID of the other machine: kubectl -n {namespace} edit {machines} NAME")
	undeletable = newStatement(v1alpha1.CauseInvalidClassInputs, "VM {provider ID} cannot be deleted: {text}",
		"If the VM no longer exists, clear spec.providerID. Do not remove the finalizer manually, because that could orphan the VM")
)

// Statements about why a Machine was deleted.
var (
	setDeletedSurplus = newStatement(v1alpha1.CauseSurplus, deletedIt, "")
	setDeletedIt      = newStatement(report.DeletedBySet, deletedIt, "")
	chosenByName      = newStatement(v1alpha1.CauseNamedForDeletion, "it was selected by name, usually by an autoscaler: {text}", "")
	scaledDown        = newStatement(v1alpha1.CauseSurplus, "{text}", "")
	nodeDeleted       = newStatement(v1alpha1.CauseNodeDeleted, "{text}", "")
	failedBefore      = newStatement(v1alpha1.CauseMachineFailed, "it had failed before: {text}", "")
	failedLast        = newStatement(v1alpha1.CauseMachineFailed, "its last failure was: {text}", "")
	setIsDeleted      = newStatement(v1alpha1.CauseOwnerDeleted, "its machine set is being deleted", "")
	nodeIsDeleted     = newStatement(v1alpha1.CauseNodeDeleted, "its node was deleted", "")
	lowestPriority    = newStatement(v1alpha1.CauseNamedForDeletion, "it was selected for deletion, usually by an autoscaler: its annotation {annotation} is 1", "")
	nodeWasUnhealthy  = newStatement(v1alpha1.CauseMachineFailed, "its node was not healthy when the deletion started", "")
	conditionWasBad   = newStatement(v1alpha1.CauseMachineFailed, "condition {type} of its node was {status} ({reason})", "")
	oldRevision       = newStatement(v1alpha1.CauseSurplus, "it has revision {was}, and the deployment rolls out revision {is}", "")
	unexplained       = newStatement(report.Unexplained, "the reason is unknown: either a client other than its machine set deleted it, or the events about it have expired (by default, API servers keep events for an hour)", "")
)

// byCause are the statements about a Machine that its set deleted, by the cause in the set's event.
var byCause = map[string]report.Statement{
	v1alpha1.CauseMachineFailed:    newStatement(v1alpha1.CauseMachineFailed, "machine set {set} deleted it because it failed: {text}", ""),
	v1alpha1.CauseNamedForDeletion: newStatement(v1alpha1.CauseNamedForDeletion, "machine set {set} deleted it because it was named for deletion, usually by an autoscaler", ""),
	v1alpha1.CauseOwnerDeleted:     newStatement(v1alpha1.CauseOwnerDeleted, deletedIt, ""),
}

// Texts about what happens next.
const (
	timeoutsPause  = "If the manager gets no response either, timeouts are paused, and start again afterwards"
	nodeGoesLater  = "The VM no longer exists. The node object is deleted when the target cluster responds"
	detachesFirst  = "The VM is deleted after its volumes are detached"
	askedAgain     = "The manager checks at least every minute whether the VM still exists"
	forced         = "Pods are deleted, ignoring disruption budgets and grace periods: {why}"
	forcedUnless   = "Pods are deleted, ignoring disruption budgets and grace periods, unless the node recovers before then"
	drainTimesOut  = "Remaining pods are deleted, ignoring disruption budgets and grace periods{then}: the drain timeout is {timeout}"
	failsUnless    = "The machine becomes Failed unless {unless} before then: the timeout is {timeout}"
	neverFails     = "It stays in this phase until its node is healthy, because spec.disableHealthTimeout is set"
	zoneReturns    = "It stays Unknown until its zone recovers, or other machines in its zone are healthy"
	failsAfter     = "It becomes Failed after the other machines are replaced, or Running if its node recovers"
	becomesRunning = "It becomes Running when the manager processes that"
	preservedUntil = "Its preservation expires"
	updateTimesOut = "The update counts as failed unless the agent reports a result before then: the timeout is {timeout}"
	askAgain       = "The manager retries {again}, and immediately when the machine, its class or its secret changes"
)

// Additional advice.
const (
	releaseMachine = "millwright machine release -n {namespace} {name}"
	releaseNode    = "kubectl annotate node {node} {annotation}-"

	deleteOrKeep = "To delete it, reduce spec.replicas of {pool}; it is deleted first. To keep it, remove its name from the deployment's annotation {trigger}, if listed there, and then run: " +
		"kubectl -n {namespace} annotate {machines} {name} {priority}- {marked}-{uncordon}"
	uncordon = "No pods are scheduled to the cordoned node. To change that: kubectl uncordon {node}"

	forceDrain = "To continue immediately, without waiting for pods to terminate gracefully: kubectl -n {namespace} label {machines} {name} {label}=True"
	fixClass   = "You can also correct MachineClass {class} while the machine is being deleted; the deletion then continues immediately"
	noInstance = "If the machine cannot have a VM, for example because every creation was rejected: kubectl -n {namespace} patch {machines} {name} --type=merge -p '{\"metadata\":{\"finalizers\":null}}'. If a VM exists anyway, it is deleted as an orphan once the driver can read the class"
	eventsGone = "By default, events are kept for an hour. If it was deleted earlier, check the manager's log or the API server's audit log"

	createClass  = "Create MachineClass {class} in namespace {namespace}. The manager then retries immediately"
	createSecret = "Create the secret, or correct the reference in MachineClass {class}. The manager then retries immediately"
	moveSecret   = "Correct the reference in MachineClass {class}"
	addUserData  = "Add the key to a secret of MachineClass {class}. The manager then retries immediately"

	fixImage    = "Correct the image in MachineClass {class}, or fix its image server. The VM has never run, so its console is empty"
	freeHost    = "Free capacity on a host, or add a host. The VM has not run yet, so its console is empty"
	stuckOnHost = "Its VM starts on another host when host {host} responds and has terminated it, or when node {host} is deleted"
	leaseMoves  = "Its VM starts on another host when its lease expires"
	fenceHost   = "If host {host} is broken, power it off, and then confirm this: millwright vm fence -n {vm namespace} {vm}"

	freeSpace   = "Free space on the storage of the disk of VirtualMachine {vm namespace}/{vm}; the VM then continues automatically"
	lookAtVM    = "If it takes too long, check the VM: kubectl -n {vm namespace} describe {virtualmachines} {vm}. It has not run yet, so its console is empty"
	guestSilent = "The VM's console has no output of the guest: its disk may not be bootable, or its guest has no console on the serial port; Linux needs console=ttyS0 on its command line"
	// NotYet are the possible causes if a running VM has not joined.
	NotYet = "the VM cannot reach the API server, its user data is wrong, or it is slow"
)

const (
	fixSpec        = "Correct the providerSpec of MachineClass {class}; the message names the field"
	fixCredentials = "Correct the credentials in the secret of MachineClass {class}, or those of the driver if the secret has none"
	fixPermissions = fixCredentials + ", or grant them the missing permissions"
	seeProvider    = "Search for the message in the provider's log or console"
)

// byCode is the advice for a driver's error code. Codes without advice only need a retry.
var byCode = map[codes.Code]string{
	codes.ResourceExhausted:  "Free capacity or raise the quota at the provider, or use a class of another zone or size",
	codes.InvalidArgument:    fixSpec,
	codes.OutOfRange:         fixSpec,
	codes.PermissionDenied:   fixPermissions,
	codes.Unauthenticated:    fixCredentials,
	codes.AlreadyExists:      "If the other VM is not used, delete it at the provider. A machine of a machine set is replaced by one with another name",
	codes.FailedPrecondition: "Repair the VM at the provider: its state does not allow the operation",
	codes.Unimplemented:      "The driver does not support this operation; see its documentation",
	codes.Internal:           seeProvider,
	codes.DataLoss:           seeProvider,
}

// byCodeAtCreation is the advice in a creation, if it differs.
var byCodeAtCreation = map[codes.Code]string{
	codes.PermissionDenied:   fixPermissions + ". If the class names a wrong resource, such as a pool or a project, correct the class",
	codes.FailedPrecondition: "Select another resource in MachineClass {class}, or fix the one that the message names at the provider: the VM requires a resource that does not exist or is not in a suitable state",
}

// quota matches messages about an exhausted quota.
var quota = regexp.MustCompile(`(?i)quota ?exceeded|exceed(ed|s|ing)? [a-z ]*quota|limit ?exceeded`)

// AdviceFor returns the advice for a driver's error, or an empty string if there is none.
func AdviceFor(code codes.Code, message string, creation bool) string {
	// OpenStack and others report an exhausted quota as a missing permission.
	if creation && code == codes.PermissionDenied && quota.MatchString(message) {
		code = codes.ResourceExhausted
	}
	if advice, differs := byCodeAtCreation[code]; creation && differs {
		return advice
	}
	return byCode[code]
}
