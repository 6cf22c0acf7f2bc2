package explain

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// reasonInvalidSpec is that of conditions which say that nothing is done before the spec is
// corrected.
const reasonInvalidSpec = "InvalidSpec"

// declared explains a set that is asked about.
func (e *poolExplainer) declared(set *v1alpha1.MachineSet) {
	refused := e.refused(set)
	e.held(set)
	e.backOff(set)
	if !refused {
		e.unseen(set, set.Status.ObservedGeneration)
	}
	e.ripening(set)
}

// refused says so if nothing is done about a set before its spec is corrected.
func (e *poolExplainer) refused(set *v1alpha1.MachineSet) bool {
	for _, condition := range set.Status.Conditions {
		if condition.Reason == reasonInvalidSpec && condition.Status == v1alpha1.ConditionTrue {
			e.why(InvalidSpec, e.named(set), condition.LastTransitionTime.Time, "%s", condition.Message)
			e.remedy("Correct the field that is named. Nothing is done before")
			return true
		}
	}
	return false
}

// named is a set in a finding about another object.
func (e *poolExplainer) named(set *v1alpha1.MachineSet) string {
	if e.Kind == kindSet {
		return ""
	}
	return kindSet + " " + set.Name
}

// held says what keeps a set from creating Machines.
func (e *poolExplainer) held(set *v1alpha1.MachineSet) {
	if set.Labels[v1alpha1.LabelKeyFreeze] == "True" || frozen(set) {
		e.frozen(set)
	}
	if _, disabled := set.Labels[v1alpha1.LabelKeyMachineSetScaleUpDisabled]; disabled {
		e.why(ScaleUpDisabled, e.named(set), time.Time{}, "it creates no machines: it has the label %s", v1alpha1.LabelKeyMachineSetScaleUpDisabled)
		e.remedy("If nobody needs it any more: kubectl -n %s label %s %s %s-", set.Namespace, setResource, set.Name, v1alpha1.LabelKeyMachineSetScaleUpDisabled)
	}
	e.failures(set, func(string) bool { return true })
}

// failures says what the manager could not do for a set, for those reasons that are of interest.
// That its spec is refused is said elsewhere.
func (e *poolExplainer) failures(set *v1alpha1.MachineSet, interests func(reason string) bool) {
	for _, condition := range set.Status.Conditions {
		is := condition.Type == v1alpha1.MachineSetReplicaFailure && condition.Status == v1alpha1.ConditionTrue
		if is && condition.Reason != reasonInvalidSpec && interests(condition.Reason) {
			e.why(SetBlocked, e.named(set), condition.LastTransitionTime.Time, "%s: %s", condition.Reason, condition.Message)
		}
	}
}

func (e *poolExplainer) frozen(set *v1alpha1.MachineSet) {
	message, since := "its label "+v1alpha1.LabelKeyFreeze+" is True", time.Time{}
	for _, condition := range set.Status.Conditions {
		if condition.Type == v1alpha1.MachineSetFrozen {
			message, since = condition.Message, condition.LastTransitionTime.Time
		}
	}
	e.why(Frozen, e.named(set), since, "it is frozen, and creates no machines: %s", message)
	e.next(time.Time{}, "It creates machines again when enough of those that exist are gone")
	object, name := setResource, set.Name
	if e.Deployment != nil {
		object, name = deploymentResource, e.Deployment.Name
	}
	e.remedy("Find out who makes the machines that are too many. To go on all the same: kubectl -n %s annotate %s %s %s=", set.Namespace, object, name, v1alpha1.AnnotationKeyUnfreeze)
}

// backOff says until when a set waits whose Machines keep failing. Only the event tells:
// a manager forgets it when it ends.
func (e *poolExplainer) backOff(set *v1alpha1.MachineSet) {
	event := e.newest(set.Name, "BackOff")
	if event == nil || e.Lease != nil && e.Lease.Spec.AcquireTime != nil && e.Lease.Spec.AcquireTime.After(timeOf(event)) {
		return
	}
	message := strings.TrimPrefix(event.Message, combined)
	_, text, _ := strings.Cut(message, messages.NextMade)
	text, _, _ = strings.Cut(text, " ")
	delay, err := time.ParseDuration(text)
	until := timeOf(event).Add(delay)
	if err != nil || !until.After(e.now) {
		return
	}
	why, _, _ := strings.Cut(message, ": ")
	_, last, told := strings.Cut(message, messages.LastFailed)
	if !told {
		e.why(BackOff, e.named(set), timeOf(event), "it waits before it makes the next machines. %s", why)
	} else {
		e.lastFailed(set, why, last, timeOf(event))
	}
	e.next(until, "The next machines are made; at once when the class or the template changes")
}

// lastFailed says of what the Machines fail for which a set waits: that of which the last did.
func (e *poolExplainer) lastFailed(set *v1alpha1.MachineSet, why, last string, since time.Time) {
	name, said, _ := strings.Cut(last, ": ")
	f, isFailure := failureOf(v1alpha1.LastOperation{Type: v1alpha1.MachineOperationCreate, State: v1alpha1.MachineStateFailed, Description: said})
	found := Finding{Cause: BackOff, Object: e.named(set), Since: since}
	advice := "See why they do not join while the next ones try: millwright explain machine -n %s NAME, and look at the console of its VM: it cannot reach the API server, its user data is wrong, or it is slow"
	advice = sentence(advice, set.Namespace)
	said = strings.TrimPrefix(said, "Machine "+name+" ")
	if isFailure {
		said, found.Code = f.text, f.code.String()
		advice = f.advice(set.Spec.Template.Spec.Class.Name)
	}
	found.Text = sentence("it waits before it makes the next machines. %s, at last %s: %s", why, name, said)
	e.report.Why = append(e.report.Why, found)
	if advice != "" {
		e.remedy("%s", advice)
	}
}

// newest is the newest event of a reason on a set; nil if there is none.
func (e *poolExplainer) newest(set, reason string) *corev1.Event {
	var found *corev1.Event
	for i := range e.Events {
		event := &e.Events[i]
		is := event.InvolvedObject.Kind == kindSet && event.InvolvedObject.Name == set && event.Reason == reason
		if is && (found == nil || !timeOf(event).Before(timeOf(found))) {
			found = event
		}
	}
	return found
}

// ripening says so if Machines run that do not count as available yet.
func (e *poolExplainer) ripening(set *v1alpha1.MachineSet) {
	wait := time.Duration(set.Spec.MinReadySeconds) * time.Second
	if wait == 0 || set.Status.AvailableReplicas >= set.Status.ReadyReplicas {
		return
	}
	waiting, last := 0, time.Time{}
	for _, machine := range e.of(set) {
		if at := readySince(machine).Add(wait); usable(machine) && at.After(e.now) {
			waiting++
			if at.After(last) {
				last = at
			}
		}
	}
	if waiting == 0 {
		return
	}
	e.why(MinReady, e.named(set), time.Time{}, "%s must stay ready for %s to count as available (spec.minReadySeconds)", machines(waiting), brief(wait))
	e.next(last, "The last of them counts as available, if it stays ready")
}

// readySince is when the node of a Machine turned ready or, without one or by a clock that is
// ahead, when the Machine came into its phase.
func readySince(machine *v1alpha1.Machine) time.Time {
	since := machine.Status.CurrentStatus.LastUpdateTime
	for _, condition := range machine.Status.Conditions {
		if condition.Type == corev1.NodeReady && (since.IsZero() || condition.LastTransitionTime.Before(&since)) {
			since = condition.LastTransitionTime
		}
	}
	return since.Time
}
