package machine

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

// living explains a Machine that is not being deleted.
func (e *explainer) living() {
	current := e.Machine.Status.CurrentStatus
	e.Since = current.LastUpdateTime.Time
	if current.Phase == "" {
		e.Since = e.Machine.CreationTimestamp.Time
	}
	switch current.Phase {
	case v1alpha1.MachineRunning, v1alpha1.MachineAvailable:
		e.well()
		return
	case "", v1alpha1.MachineCrashLoopBackOff:
		e.creating()
	case v1alpha1.MachinePending:
		e.joining()
	case v1alpha1.MachineUnknown, v1alpha1.MachineInPlaceUpdateFailed:
		e.unhealthy()
	case v1alpha1.MachineFailed:
		e.failed()
	default: // updated in place, or in a phase that is not known here
		e.update()
		e.undecided()
		e.nodeNow()
	}
	e.nodeTemplate()
	e.Conclude(report.NotRunning, "is not Running", e.Report.Why)
}

// well explains a Machine that is as far as it can come.
func (e *explainer) well() {
	what := "is Running"
	switch {
	case e.Machine.Status.CurrentStatus.Phase == v1alpha1.MachineAvailable:
		what = "is Available: there is no target cluster that a node could join"
	case e.Target.Problem != "":
		e.targetAway()
	case e.Target.None, e.Target.Unread:
	case e.Target.Node == nil:
		e.Why(nodeAbsent, "", time.Time{})
	default:
		e.nodeConditions()
	}
	e.nodeTemplate()
	if len(e.Report.Why) > 0 {
		what += ", but"
	}
	e.Conclude(report.Healthy, what, e.Report.Why)
}

// creating explains a Machine without a VM, or with one whose creation is not complete.
func (e *explainer) creating() {
	missing := e.missing()
	failed, isFailure := e.failure()
	didFail := e.last().State == v1alpha1.MachineStateFailed
	switch note := e.noted(e.Machine.CreationTimestamp.Time); {
	case isFailure:
		e.driverFailed(failed)
		e.virtualMachine()
	case didFail && note != nil && report.CauseOf(note) == v1alpha1.CauseDriverSilent:
		e.Why(driverSilent, "", e.reported(), "{text}", e.says())
	case didFail && missing == "" && note != nil:
		e.Why(blocked(report.Cause(report.CauseOf(note))), "", e.reported(), "{text}", e.says())
	case didFail && missing == "":
		e.Why(blocked(report.Other), "", e.reported(), "{text}", e.says())
	case didFail:
		e.Why(inputsMissing, "", e.reported(), "{text}", missing)
		if says := e.says(); says != missing {
			e.Why(lastAttempt, "", e.reported(), "{text}", says)
		}
	case missing != "":
		e.Why(inputsMissing, "", time.Time{}, "{text}", missing)
	case e.Machine.Status.CurrentStatus.Phase == "":
		e.Why(notAnswered, "", e.Machine.CreationTimestamp.Time)
	default:
		e.Why(other, "", e.reported(), "{text}", e.says())
	}
	e.givenUp(e.Machine.CreationTimestamp.Time, e.creationTimeout(), "creation", "it is created and joins before")
}

// missing says what a creation or deletion lacks, as it is now, and advises; empty if nothing is.
func (e *explainer) missing() string {
	lacks := func(advice, text string, values ...string) string {
		e.Advise(advice)
		return e.Text(text, values...)
	}
	if e.Inputs.ClassMissing {
		return lacks(createClass, `MachineClass "{class}" not found in namespace "{namespace}"`)
	}
	hasUserData, unread := false, false
	for _, secret := range e.Inputs.Secrets {
		switch {
		case secret.Missing:
			return lacks(createSecret, `Secret "{secret}" of MachineClass "{class}" not found`, "{secret}", secret.Key.String())
		case secret.Key.Namespace != e.Key.Namespace:
			return lacks(moveSecret, `Secret "{secret}" of MachineClass "{class}" must be in namespace "{namespace}", as the class is`, "{secret}", secret.Key.String())
		}
		hasUserData, unread = hasUserData || secret.HasUserData, unread || secret.Unread
	}
	if e.Inputs.Class == nil || hasUserData || unread {
		return ""
	}
	return lacks(addUserData, `No Secret of MachineClass "{class}" has the key "{key}"`, "{key}", bootstrap.UserDataKey)
}

// joining explains a Machine whose node is awaited.
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
		e.Why(notJoined, "", e.since())
		e.lookAt(notYet)
	default:
		e.nodeConditions()
		if !noderef.CriticalComponentsReady(n) {
			e.Why(criticalMissing, "Node "+n.Name, n.CreationTimestamp.Time, "{taint}", v1alpha1.TaintKeyCriticalComponentsNotReady)
		}
		if e.undecided() {
			return
		}
	}
	e.givenUp(e.Machine.CreationTimestamp.Time, e.creationTimeout(), "creation", "its node is ready before")
}

// targetAway says that the nodes' cluster does not answer. The manager may see it
// otherwise.
func (e *explainer) targetAway() {
	e.Why(targetAway, "", time.Time{}, "{text}", e.Target.Problem)
	e.Next(time.Time{}, timeoutsPause)
}

// unhealthy explains a Machine that was Running and is not well.
func (e *explainer) unhealthy() {
	t := e.healthTimeout()
	lost := e.noted(e.since(), v1alpha1.CauseInstanceLost) != nil
	if lost {
		e.Why(instanceLost, "", e.since(), "{text}", "VM "+e.providerID()+" does not exist any more")
	}
	e.update()
	e.nodeNow()
	switch {
	case e.isDelayed(t, lost):
		e.Why(delayed, "", e.reported(), "{text}", e.says())
		e.Next(time.Time{}, failsAfter)
		return
	case e.undecided(), e.Target.Problem != "":
		return
	case timeouts.HealthDisabled(e.Machine):
		e.Next(time.Time{}, neverFails)
		return
	}
	e.givenUp(e.since(), t, "health", "its node is healthy before")
}

// isDelayed reports whether the Machine is not Failed since others of its pool are replaced first:
// by the event of that, or as the manager reported of its health again when the timeout was over.
func (e *explainer) isDelayed(t timeouts.Timeout, lost bool) bool {
	last := e.last()
	late := last.Type == v1alpha1.MachineOperationHealthCheck && last.State == v1alpha1.MachineStateProcessing && !e.reported().Before(t.Ends(e.since()))
	return late && !lost || e.noted(e.since(), v1alpha1.CauseReplacementDelayed) != nil
}

// nodeNow says what is wrong with the node at present.
func (e *explainer) nodeNow() {
	switch n := e.Target.Node; {
	case e.Target.Problem != "":
		e.targetAway()
	case e.Target.None, e.Target.Unread:
	case n == nil && e.Machine.Spec.ProviderID == "": // there never was one
	case n == nil && e.last().Type == v1alpha1.MachineOperationCreate:
		e.virtualMachine()
		e.Why(notJoined, "", e.Machine.CreationTimestamp.Time)
		e.lookAt(notInTime)
	case n == nil:
		e.virtualMachine()
		e.Why(nodeGone, "", e.since())
	default:
		e.virtualMachine() // first: what ails the VM ails the node
		e.nodeConditions()
	}
}

// nodeConditions lists what is wrong with the node, the longest first.
func (e *explainer) nodeConditions() {
	n := e.Target.Node
	conditions := slices.Clone(n.Status.Conditions)
	slices.SortStableFunc(conditions, func(a, b corev1.NodeCondition) int { return a.LastTransitionTime.Compare(b.LastTransitionTime.Time) })
	for _, condition := range conditions {
		if noderef.Healthy([]corev1.NodeCondition{condition}, e.badConditions()) {
			continue
		}
		statement := nodeUnhealthy
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionUnknown {
			statement = kubeletSilent
		}
		e.Why(statement, "Node "+n.Name, condition.LastTransitionTime.Time, "{type}", string(condition.Type),
			"{status}", string(condition.Status), "{reason}", condition.Reason, "{text}", condition.Message, "{node}", n.Name)
	}
	if len(conditions) == 0 {
		e.Why(kubeletNew, "Node "+n.Name, n.CreationTimestamp.Time)
	}
}

// undecided falls back to what the manager said last, if nothing else is found: the node is
// well by now, and the manager has not seen it, or sees it otherwise.
func (e *explainer) undecided() bool {
	if slices.ContainsFunc(e.Report.Why, func(f report.Finding) bool { return f.Cause != report.ManagerNotRunning }) {
		return false
	}
	if e.Target.Node == nil || e.Target.Copied {
		e.Why(saidLast, "", e.reported(), "{text}", cmp.Or(e.says(), "nothing"))
		return true
	}
	e.Why(recovered, "", e.reported(), "{text}", e.says())
	e.Next(time.Time{}, becomesRunning)
	return true
}

// failed explains a Machine that was given up.
func (e *explainer) failed() {
	if f, ok := e.failure(); ok {
		e.Add(e.driverFinding(f))
	} else {
		cause := report.HealthTimeout
		if e.last().Type == v1alpha1.MachineOperationCreate {
			cause = report.CreationTimeout
		}
		e.Why(statement{Cause: cause, Text: "{text}"}, "", e.reported(), "{text}", e.says())
	}
	e.nodeNow()
	if until := e.Machine.Status.CurrentStatus.PreserveExpiryTime; until != nil && until.After(e.now) {
		e.Why(kept, "", time.Time{}, "{annotation}", v1alpha1.AnnotationKeyPreserve)
		e.Next(until.Time, preservedUntil)
		return
	}
	e.Next(time.Time{}, e.replacement("Now"))
}

// update says how an update in place goes.
func (e *explainer) update() {
	if kind := e.last().Type; kind != v1alpha1.MachineOperationInPlaceUpdate && kind != v1alpha1.MachineOperationDrainNode {
		return
	}
	e.Why(inPlace, "", e.reported(), "{text}", e.says())
	if n := e.Target.Node; n != nil && n.Annotations[v1alpha1.AnnotationKeyMachineUpdateFailedReason] != "" {
		e.Why(inPlace, "Node "+n.Name, time.Time{}, "{text}", n.Annotations[v1alpha1.AnnotationKeyMachineUpdateFailedReason])
	}
}
