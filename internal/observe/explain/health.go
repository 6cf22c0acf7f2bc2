package explain

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// well explains a Machine that is as far as it can come.
func (e *explainer) well() {
	phase := e.Machine.Status.CurrentStatus.Phase
	what := "is Running"
	switch {
	case phase == v1alpha1.MachineAvailable:
		what = "is Available: there is no target cluster that a node could join"
	case e.Target.Problem != "":
		e.targetAway()
	case e.Target.None, e.Target.Unread:
	case e.Target.Node == nil:
		e.why(NodeMissing, "", time.Time{}, "node %q does not exist now", e.nodeName())
	default:
		e.nodeConditions()
	}
	e.nodeTemplate()
	if len(e.report.Why) > 0 {
		what += ", but"
	}
	e.answer(Healthy, what, e.report.Why)
	e.report.Answer = strings.Replace(e.report.Answer, "but: ", "but ", 1)
}

// unhealthy explains a Machine that was Running and is not well.
func (e *explainer) unhealthy() {
	last := e.Machine.Status.LastOperation
	if strings.Contains(last.Description, messages.VMLost) {
		e.why(VMLost, "", e.since(), "%s", last.Description)
		e.advise("Find out at the provider who removed the VM")
	}
	e.update()
	e.nodeNow()
	switch {
	case delayed(last):
		e.why(ReplacementDelayed, "", last.LastUpdateTime.Time, "%s", e.own())
		e.next(time.Time{}, "It becomes Failed once the others are replaced, or Running if its node recovers")
		e.advise("Look why so many machines of the pool fail at once: kubectl -n %s get %s", e.Key.Namespace, machineResource)
		return
	case e.undecided(), e.Target.Problem != "":
		return
	}
	if config := e.Machine.Spec.MachineConfiguration; config != nil && deref(config.DisableHealthTimeout) {
		e.next(time.Time{}, "It stays as it is until its node is healthy: spec.disableHealthTimeout is set")
		return
	}
	t := e.healthTimeout()
	e.givenUp(e.due(e.since(), t), t, "its node is healthy before")
}

func delayed(last v1alpha1.LastOperation) bool {
	return strings.Contains(last.Description, messages.Delayed)
}

// nodeNow says what is wrong with the node at present.
func (e *explainer) nodeNow() {
	switch n := e.Target.Node; {
	case e.Target.Problem != "":
		e.targetAway()
	case e.Target.None, e.Target.Unread:
	case n == nil && e.Machine.Spec.ProviderID == "": // there never was one
	case n == nil && e.Machine.Status.LastOperation.Type == v1alpha1.MachineOperationCreate:
		e.virtualMachine()
		e.why(NotJoined, "", e.Machine.CreationTimestamp.Time, "node %q has not joined", e.nodeName())
		e.lookAt("it cannot reach the API server, its user data is wrong, or it was slow")
	case n == nil:
		e.virtualMachine()
		e.why(NodeMissing, "", e.since(), "node %q does not exist any more", e.nodeName())
		e.advise("Look at the VM's console%s, and at who deleted the node", e.console())
	default:
		e.virtualMachine() // first: what ails the VM ails the node
		e.nodeConditions()
	}
}

// nodeConditions lists what is wrong with the node, the longest first.
func (e *explainer) nodeConditions() {
	n := e.Target.Node
	var bad []corev1.NodeCondition
	for _, condition := range n.Status.Conditions {
		if !noderef.Healthy([]corev1.NodeCondition{condition}, e.badConditions()) {
			bad = append(bad, condition)
		}
	}
	slices.SortStableFunc(bad, func(a, b corev1.NodeCondition) int { return a.LastTransitionTime.Compare(b.LastTransitionTime.Time) })
	for _, condition := range bad {
		e.why(NodeUnhealthy, "Node "+n.Name, condition.LastTransitionTime.Time, "%s is %s (%s): %s", condition.Type, condition.Status, condition.Reason, condition.Message)
	}
	if len(n.Status.Conditions) == 0 {
		e.why(NodeUnhealthy, "Node "+n.Name, n.CreationTimestamp.Time, "its kubelet has not said anything yet")
	}
	for _, condition := range bad {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionUnknown {
			e.advise("The kubelet of node %s does not report: look at the VM's console%s, and at its network", n.Name, e.console())
		}
	}
}

// undecided falls back to what the manager said last, if nothing else is found: the node is
// well by now, and the manager has not seen it, or sees it otherwise.
func (e *explainer) undecided() bool {
	if slices.ContainsFunc(e.report.Why, func(f Finding) bool { return f.Cause != NoManager }) {
		return false
	}
	last := e.Machine.Status.LastOperation
	if e.Target.Node == nil || e.Target.Copied {
		e.why(Other, "", last.LastUpdateTime.Time, "the manager said last: %s", cmp.Or(e.own(), "nothing"))
		return true
	}
	e.why(Other, "", last.LastUpdateTime.Time, "its node is well now, which the manager has not seen yet. It said last: %s", e.own())
	e.next(time.Time{}, "It becomes Running as soon as the manager has seen that")
	return true
}

// failed explains a Machine that was given up.
func (e *explainer) failed() {
	last := e.Machine.Status.LastOperation
	if f, ok := failureOf(last); ok {
		e.report.Why = append(e.report.Why, Finding{Cause: DriverError, Code: f.code.String(), Text: sentence("%s", f.text), Since: f.since})
		if advice := f.advice(e.className()); advice != "" {
			e.advise("%s", advice)
		}
	} else {
		e.why(TimedOut, "", last.LastUpdateTime.Time, "%s", e.own())
	}
	e.nodeNow()
	if until := e.Machine.Status.CurrentStatus.PreserveExpiryTime; until != nil && until.After(e.now) {
		e.why(Preserved, "", time.Time{}, "it is kept for somebody to look at, although it failed")
		e.next(until.Time, "Its preservation ends")
		e.advise("To have it replaced now, remove the annotation %s from it and from its node", v1alpha1.AnnotationKeyPreserve)
		return
	}
	e.next(time.Time{}, "%s", e.replacement("Now"))
}

// updating explains a Machine whose node is updated in place, or in a phase that is not
// known here.
func (e *explainer) updating() {
	e.update()
	e.undecided()
	e.nodeNow()
}

// update says how an update in place goes.
func (e *explainer) update() {
	last := e.Machine.Status.LastOperation
	if last.Type != v1alpha1.MachineOperationInPlaceUpdate && last.Type != v1alpha1.MachineOperationDrainNode {
		return
	}
	e.why(InPlaceUpdate, "", last.LastUpdateTime.Time, "%s", e.own())
	if n := e.Target.Node; n != nil && n.Annotations[v1alpha1.AnnotationKeyMachineUpdateFailedReason] != "" {
		e.why(InPlaceUpdate, "Node "+n.Name, time.Time{}, "%s", n.Annotations[v1alpha1.AnnotationKeyMachineUpdateFailedReason])
	}
}
