package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

func (e *explainer) living() {
	current := e.Machine.Status.CurrentStatus
	e.Since = current.LastUpdateTime.Time
	switch current.Phase {
	case v1alpha1.MachineRunning, v1alpha1.MachineAvailable:
		e.running(current.Phase)
		return
	case "", v1alpha1.MachineCrashLoopBackOff:
		if current.Phase == "" {
			e.Since = e.begin
		}
		e.creating()
	case v1alpha1.MachinePending:
		e.joining()
	case v1alpha1.MachineUnknown, v1alpha1.MachineInPlaceUpdateFailed:
		e.unknown()
	case v1alpha1.MachineFailed:
		e.failed()
	default: // updated in place, or in an unknown phase
		e.updating()
		e.undecided()
		e.nodeNow()
	}
	e.nodeTemplate()
	if current.Phase != v1alpha1.MachineFailed { // failed has already added it
		e.preserved()
	}
	e.Conclude(report.NotRunning, "is not Running", e.Report.Why)
}

// running explains a Machine in its final phase.
func (e *explainer) running(phase v1alpha1.MachinePhase) {
	what := "is Running"
	e.virtualMachine() // first, because the node depends on it
	if phase == v1alpha1.MachineAvailable {
		what = "is Available; no target cluster is configured"
	} else {
		e.node(func() { e.Why(nodeAbsent, "", time.Time{}) })
	}
	e.nodeTemplate()
	e.updating()
	e.liveUpdate()
	e.named()
	if e.preserved() {
		what += " and preserved"
	}
	if reserve.In(&e.Machine.Spec) {
		what += " as a reserve in excess of the replicas, for scale-ups and failed machines"
	}
	what += e.otherClass()
	trouble := slices.DeleteFunc(slices.Clone(e.Report.Why), func(f report.Finding) bool { return f.Cause == report.Preserved })
	if len(trouble) > 0 {
		what += ", but"
	}
	e.Conclude(report.Healthy, what, trouble)
}

// creating explains a Machine whose VM does not exist, or is not completely created.
func (e *explainer) creating() {
	missing := e.missing()
	failed, isFailure := e.failure()
	switch {
	case isFailure:
		e.driverFailed(failed)
		e.virtualMachine()
	case e.failedFor(v1alpha1.CauseDriverSilent):
		e.Why(driverSilent, "", e.reported, "{text}", e.message)
	case e.lastFailed() && missing == "":
		e.Why(newStatement(e.blockedBy(), blocked.Text, blocked.Advice), "", e.reported, "{text}", e.message)
	case e.lastFailed():
		e.Quote(v1alpha1.CauseInvalidClassInputs, "", e.reported, missing)
		if e.message != missing {
			e.Why(lastAttempt, "", e.reported, "{text}", e.message)
		}
	case missing != "":
		e.Quote(v1alpha1.CauseInvalidClassInputs, "", time.Time{}, missing)
	case e.fallingBack():
		e.Why(fallsBack, "", e.reported, "{text}", e.message)
	case e.Identity.Phase == "":
		e.Why(noResult, "", e.begin)
	default:
		e.Quote(report.Other, "", e.reported, e.message)
	}
	if refused := e.noted(e.begin, v1alpha1.CauseUnfitClass); refused != nil {
		e.Why(unfitClass, "", report.Time(refused), "{text}", report.Clause(refused.Message))
	}
	e.givenUp(e.begin, e.creationTimeout(), "creation", "it is created and joins")
}

// blockedBy returns the reason why a creation is not tried: the cause in the manager's event or, if the event has
// expired, what the manager's validation rejects.
func (e *explainer) blockedBy() report.Cause {
	switch class := e.Class; {
	case report.CauseOf(&e.note) != "":
		return report.Cause(report.CauseOf(&e.note))
	case len(validation.Machine(e.Machine)) > 0:
		return v1alpha1.CauseInvalidSpec
	case class != nil && len(validation.MachineClass(class)) > 0:
		return v1alpha1.CauseInvalidClassInputs
	}
	return report.CreationBlocked
}

// missing returns which input of a creation or deletion is missing now, and adds advice. It returns an empty string if
// nothing is missing.
func (e *explainer) missing() string {
	lacks := func(advice, text string, values ...string) string {
		e.Advise(advice)
		return e.Text(text, values...)
	}
	if e.ClassMissing {
		return lacks(createClass, `MachineClass "{class}" not found in namespace "{namespace}"`)
	}
	complete := e.Class == nil
	for _, secret := range e.Secrets {
		switch {
		case secret.Missing:
			return lacks(createSecret, `Secret "{secret}" of MachineClass "{class}" not found`, "{secret}", secret.Key.String())
		case secret.Key.Namespace != e.Key.Namespace:
			return lacks(moveSecret, `Secret "{secret}" of MachineClass "{class}" must be in the namespace of the class, "{namespace}"`, "{secret}", secret.Key.String())
		}
		complete = complete || secret.HasUserData || secret.Unread
	}
	if complete {
		return ""
	}
	return lacks(addUserData, `No Secret of MachineClass "{class}" has the key "{key}"`, "{key}", bootstrap.UserDataKey)
}

func (e *explainer) joining() {
	switch n := e.Target.Node; {
	case e.Target.Problem != "":
		e.targetAway()
		return
	case e.Target.Unread:
		e.virtualMachine()
		e.undecided()
	case n == nil:
		e.virtualMachine()
		e.notJoined(e.Since)
	default:
		e.nodeConditions()
		if !noderef.CriticalComponentsReady(n) {
			e.Why(criticalMissing, "Node "+n.Name, n.CreationTimestamp.Time, "{taint}", v1alpha1.TaintKeyCriticalComponentsNotReady)
		}
		if e.undecided() {
			return
		}
	}
	e.givenUp(e.begin, e.creationTimeout(), "creation", "its node is ready")
}

func (e *explainer) creationTimeout() timeouts.Timeout {
	return timeouts.Creation(e.Machine, cmp.Or(e.Flags.Creation, timeouts.DefaultCreation))
}

// givenUp adds when the Machine becomes Failed, and what happens then. Time in which no manager is running, or an API
// server does not respond, does not count.
func (e *explainer) givenUp(begin time.Time, t timeouts.Timeout, name, unless string) {
	e.Earliest(t.Deadline(begin, report.LeaderSince(e.Lease)), failsUnless, "{unless}", unless, "{timeout}", describe(t, name))
	e.Next(time.Time{}, e.replacement("Then"))
}

func (e *explainer) replacement(when string) string {
	owner := metav1.GetControllerOfNoCopy(e.Machine)
	switch set := e.Set; {
	case e.keptIfFailed():
		return when + " it is kept until its preservation expires, and is not replaced before then"
	case owner == nil:
		return when + " it is not replaced, because no machine set owns it"
	case set == nil:
		return fmt.Sprintf("%s it is not replaced, because its owner %s %s no longer exists", when, owner.Kind, owner.Name)
	case report.IsDeleting(set):
		return fmt.Sprintf("%s it is not replaced, because machine set %s is being deleted", when, owner.Name)
	case SetCondition(set, v1alpha1.MachineSetFrozen) != nil:
		return fmt.Sprintf("%s machine set %s deletes it, and creates a replacement when the set is no longer frozen", when, owner.Name)
	default:
		return fmt.Sprintf("%s machine set %s deletes it and creates a replacement", when, set.Name)
	}
}

// keptIfFailed reports whether the Machine is preserved once it has failed.
func (e *explainer) keptIfFailed() bool {
	failed := *e.Machine
	failed.Status.CurrentStatus.Phase = v1alpha1.MachineFailed
	return preservation.Active(&failed, e.now)
}

// targetAway adds that the target cluster does not respond to this command. The manager may still reach it.
func (e *explainer) targetAway() {
	e.Why(targetAway, "", time.Time{}, "{text}", e.Target.Problem)
	e.Next(time.Time{}, timeoutsPause)
}

// unknown explains a Machine that was Running and is now unhealthy.
func (e *explainer) unknown() {
	t := timeouts.Health(e.Machine, cmp.Or(e.Flags.Health, timeouts.DefaultHealth))
	lost := e.noted(e.Since, v1alpha1.CauseInstanceLost) != nil
	if lost {
		e.Why(instanceLost, "", e.Since)
	}
	e.updating()
	e.nodeNow()
	// The event shows that its replacement waits for others. Otherwise, this follows from a health report after the
	// timeout.
	late := e.last.Type == v1alpha1.MachineOperationHealthCheck && e.last.State == v1alpha1.MachineStateProcessing && !e.reported.Before(t.Deadline(e.Since))
	switch {
	case e.awaitsZone():
		e.Why(zoneOut, "", e.reported, "{text}", e.message)
		e.Next(time.Time{}, zoneReturns)
	case late && !lost, e.noted(e.Since, v1alpha1.CauseReplacementDelayed) != nil:
		e.Why(delayed, "", e.reported, "{text}", e.message)
		e.Next(time.Time{}, failsAfter)
	case e.undecided(), e.Target.Problem != "":
	case timeouts.HealthDisabled(e.Machine):
		e.Next(time.Time{}, neverFails)
	case e.Machine.Status.CurrentStatus.Phase == v1alpha1.MachineInPlaceUpdateFailed:
		e.givenUp(e.Since, t, "health", "the agent of its node reports success")
	default:
		e.givenUp(e.Since, t, "health", "its node is healthy")
	}
}

// awaitsZone reports whether, according to the last event about it, the replacement waits for the zone.
func (e *explainer) awaitsZone() bool {
	event := e.noted(e.Since, v1alpha1.CauseReplacementDelayed, v1alpha1.CauseZoneOutage)
	return event != nil && report.CauseOf(event) == v1alpha1.CauseZoneOutage
}

func (e *explainer) nodeNow() {
	if e.Target.Problem == "" && !e.Target.None && !e.Target.Unread {
		e.virtualMachine() // first, because the node depends on it
	}
	e.node(func() {
		switch {
		case e.Identity.ProviderID == "": // the node never existed
		case e.last.Type == v1alpha1.MachineOperationCreate:
			e.notJoined(e.begin)
		default:
			e.certificateDenied()
			e.Why(nodeGone, "", e.Since)
		}
	})
}

// notJoined adds that the node has not joined since a time, and why, as far as it is known.
func (e *explainer) notJoined(since time.Time) {
	denied := e.certificateDenied()
	e.Why(notJoined, "", since)
	if !denied {
		e.lookAt(NotYet)
	}
}

// certificateDenied adds why the guest's latest request for the certificate of its node was denied, and reports whether
// one was.
func (e *explainer) certificateDenied() bool {
	event := e.Events.Newest(KindMachine, e.own, "NodeCertificateDenied")
	if event != nil {
		e.Why(certificateDenied, "", report.Time(event), "{text}", event.Message)
	}
	return event != nil
}

// node adds the problems of the node, or calls absent if the node does not exist.
func (e *explainer) node(absent func()) {
	switch {
	case e.Target.Problem != "":
		e.targetAway()
	case e.Target.None, e.Target.Unread:
	case e.Target.Node == nil:
		absent()
	default:
		e.nodeConditions()
	}
}

// nodeConditions adds the bad conditions of the node, oldest first.
func (e *explainer) nodeConditions() {
	n := e.Target.Node
	conditions := slices.Clone(n.Status.Conditions)
	slices.SortStableFunc(conditions, func(a, b corev1.NodeCondition) int { return a.LastTransitionTime.Compare(b.LastTransitionTime.Time) })
	for _, condition := range conditions {
		statement := nodeUnhealthy
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionUnknown {
			statement = kubeletSilent
		}
		statement.Text = strings.Replace(statement.Text, "{type}", string(condition.Type), 1) // each type is a separate problem
		if e.unhealthy(condition) {
			e.Why(statement, "Node "+n.Name, condition.LastTransitionTime.Time,
				"{status}", string(condition.Status), "{reason}", condition.Reason, "{text}", condition.Message)
		}
	}
	if len(conditions) == 0 {
		e.Why(kubeletNew, "Node "+n.Name, n.CreationTimestamp.Time)
	}
}

// undecided falls back to the manager's last message if nothing else was found: the node is healthy now, but the manager
// has not processed that yet, or sees another state.
func (e *explainer) undecided() bool {
	if slices.ContainsFunc(e.Report.Why, func(f report.Finding) bool { return f.Cause != report.ManagerNotRunning }) {
		return false
	}
	if e.Target.Node == nil || e.Target.Copied {
		e.Why(lastMessage, "", e.reported, "{text}", cmp.Or(e.message, "nothing"))
		return true
	}
	e.Why(recovered, "", e.reported, "{text}", e.message)
	e.Next(time.Time{}, becomesRunning)
	return true
}

func (e *explainer) failed() {
	if f, ok := e.failure(); ok {
		e.Add(e.driverFinding(f))
	} else {
		cause := report.Cause(v1alpha1.CauseHealthTimeout)
		if e.last.Type == v1alpha1.MachineOperationCreate {
			cause = v1alpha1.CauseCreationTimeout
		}
		e.Quote(cause, "", e.reported, e.message)
	}
	e.nodeNow()
	if !e.preserved() {
		e.Next(time.Time{}, e.replacement("Now"))
	}
}

func (e *explainer) nodeTemplate() {
	n, where := e.Target.Node, "of the machine"
	if n == nil {
		return
	}
	if deployment, set := e.Deployment, e.Set; deployment != nil {
		where = "in the template of MachineDeployment " + deployment.Name
	} else if set != nil {
		where = "in the template of MachineSet " + set.Name
	}
	for _, wrong := range noderef.Invalid(n, e.Machine) {
		e.Why(templateInvalid, "Node "+n.Name, time.Time{}, "{text}", wrong, "{template}", where)
	}
	if e.Target.Copied {
		return
	}
	if lacking := noderef.Lacks(n, e.Machine); len(lacking) > 0 {
		e.notApplied("NodeTemplateRefused", strings.Join(lacking, " and ")+" of Node "+n.Name+" do not match spec.nodeTemplate", "spec.nodeTemplate "+where)
	}
	class := e.Class
	if class == nil || class.NodeTemplate == nil {
		return
	}
	for name, want := range class.NodeTemplate.VirtualCapacity {
		if has, ok := n.Status.Capacity[name]; !ok || has.Cmp(want) != 0 {
			e.notApplied("VirtualCapacityRefused", "the capacity of Node "+n.Name+" does not match nodeTemplate.virtualCapacity of the class",
				"nodeTemplate.virtualCapacity of MachineClass "+class.Name)
			return
		}
	}
}

// notApplied adds what the node lacks, with the cause if there is an event with the given reason.
func (e *explainer) notApplied(reason, what, source string) {
	node := "Node " + e.Target.Node.Name
	if event := e.Events.Newest(KindMachine, e.own, reason); event != nil {
		e.Why(templateRefused, node, report.Time(event), "{what}", what, "{text}", event.Message, "{source}", source)
		return
	}
	e.Why(templateLate, node, time.Time{}, "{what}", what)
}

func (e *explainer) virtualMachine() {
	vm := e.VM
	if vm == nil {
		return
	}
	object, where := "VirtualMachine "+vm.Namespace+"/"+vm.Name, ""
	if vm.Status.NodeName != "" {
		where = " on host " + vm.Status.NodeName
	}
	switch ready := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionReady); {
	case ready == nil && vm.Annotations[vmv1alpha1.AnnotationController] != "":
		e.Why(vmOfController, object, vm.CreationTimestamp.Time, "{controller}", vm.Annotations[vmv1alpha1.AnnotationController],
			"{annotation}", vmv1alpha1.AnnotationController, "{vm namespace}", vm.Namespace, "{vm}", vm.Name)
	case ready == nil:
		e.Why(vmUntouched, object, vm.CreationTimestamp.Time)
	case ready.Status != metav1.ConditionTrue:
		e.Why(vmNotReady, object, ready.LastTransitionTime.Time, "{where}", where, "{reason}", ready.Reason, "{text}", ready.Message)
		if ready.Reason == vmv1alpha1.ReasonNoSpace {
			e.Advise(freeSpace, "{vm namespace}", vm.Namespace, "{vm}", vm.Name)
		}
		if ready.Reason == vmv1alpha1.ReasonHostUnreachable {
			e.hostAway()
		}
	}
	if pending := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionRestartNeeded); pending != nil {
		e.Next(time.Time{}, restartNeeded, "{reason}", pending.Reason, "{text}", pending.Message)
	}
	if !report.IsDeleting(vm) {
		e.migration()
	}
}

// hostAway adds when a VM whose host does not respond starts on another host, and what a user can do.
func (e *explainer) hostAway() {
	vm := e.VM
	values := []string{"{vm namespace}", vm.Namespace, "{vm}", vm.Name, "{host}", cmp.Or(vm.Status.NodeName, "?")}
	if fenced := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionFenced); fenced != nil && fenced.Status == metav1.ConditionFalse {
		e.Why(vmNotFenced, "VirtualMachine "+vm.Namespace+"/"+vm.Name, fenced.LastTransitionTime.Time, "{reason}", fenced.Reason, "{text}", fenced.Message)
	}
	if vm.Status.Lease != nil {
		e.Next(time.Time{}, leaseMoves)
		return
	}
	e.Next(time.Time{}, stuckOnHost, values...)
	e.Advise(fenceHost, values...)
}

// lookAt advises what to check if a VM has not joined: its console, or the reason why it is not running.
func (e *explainer) lookAt(because string) {
	vm := e.VM
	if vm == nil || vm.Status.Phase != vmv1alpha1.PhaseCreating {
		e.Advise(lookAtReason, "{reason}", because)
		if e.Console != nil && !report.HasGuestOutput(e.Console) {
			e.Advise(guestSilent)
		}
		return
	}
	ready := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionReady)
	switch ptr.Deref(ready, metav1.Condition{}).Reason {
	case "ImageUnavailable", "ImageRejected": // names in the protocol of hypervisors
		e.Advise(fixImage)
	case vmv1alpha1.ReasonUnschedulable:
		e.Advise(freeHost)
	default:
		e.Advise(lookAtVM, "{vm namespace}", vm.Namespace, "{vm}", vm.Name)
	}
}
