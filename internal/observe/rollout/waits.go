package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

// waits returns what a rollout waits for: first what holds up the whole of it, then what package
// explain finds wrong with the deployment, its sets and its machines.
func waits(f Facts, s Status, now time.Time) []Wait {
	var found []Wait
	add := func(is bool, format string, args ...any) {
		if is {
			found = append(found, Wait{Text: sentence(format, args...)})
		}
	}
	d := f.Deployment
	add(f.Problem != "", "the API server does not answer, so this may be old: %s", f.Problem)
	add(!s.Observed && Refusal(f) == "", "the manager has not looked at the last change of the deployment yet")
	add(d.Spec.Paused, "the deployment is paused: machines are replaced when it is resumed")
	add(d.Spec.RollbackTo != nil, "%s", pendingRollback(d))
	explained := explained(f, s.Outcome == Late, now)
	if !d.DeletionTimestamp.IsZero() {
		explained = deletion(explained)
	}
	return slices.Concat(found, unexplained(d, explained), explained)
}

// deletion presents what is found wrong with a deployment as what holds up its deletion.
func deletion(explained []Wait) []Wait {
	first := Wait{Text: "the deployment is being deleted"}
	if len(explained) > 0 {
		first, explained = explained[0], explained[1:]
		first.Text = "the deployment is being deleted: " + first.Text
	}
	return append([]Wait{first}, explained...)
}

// pendingRollback describes a rollback that was asked for and not done yet; empty if there is none.
func pendingRollback(d *v1alpha1.MachineDeployment) string {
	if d.Spec.RollbackTo == nil {
		return ""
	}
	if d.Spec.RollbackTo.Revision == 0 {
		return "the manager has not answered the wish to roll back to the revision before yet"
	}
	return fmt.Sprintf("the manager has not answered the wish to roll back to revision %d yet", d.Spec.RollbackTo.Revision)
}

// explained is what is found wrong with the deployment, its sets and its machines.
func explained(f Facts, late bool, now time.Time) []Wait {
	var found []Wait
	for _, finding := range explain.Pool(f.pool(), now).Why {
		if shownElsewhere(finding) {
			continue
		}
		wait := Wait{Text: finding.String(), Since: finding.Since, Remedy: finding.Remedy}
		if passesByItself(finding.Cause, late) {
			wait.Remedy = ""
		}
		found = append(found, wait)
	}
	return found
}

// passesByItself reports whether no remedy is to be shown: a node takes its time to join, and a drain
// should be forced only by those who have read the whole explanation.
func passesByItself(cause report.Cause, late bool) bool {
	switch cause {
	case report.Draining:
		return true
	case report.NodeNotJoined, report.NodeUnhealthy, report.CriticalComponentsNotReady:
		return !late
	}
	return false
}

// shownElsewhere reports whether a finding is about what the numbers of a status show, or what
// waits adds itself.
func shownElsewhere(finding report.Finding) bool {
	switch finding.Cause {
	case report.RolloutInProgress, report.ProgressDeadlineExceeded, report.Scaling, report.Paused:
		return true
	case report.NotStarted:
		return finding.Object == "" // the deployment
	}
	return false
}

// unexplained is what else the conditions of a deployment complain of. What a finding quotes is
// not shown twice.
func unexplained(d *v1alpha1.MachineDeployment, explained []Wait) []Wait {
	var found []Wait
	for _, is := range d.Status.Conditions {
		bad := is.Status == v1alpha1.ConditionTrue
		switch is.Type {
		case v1alpha1.MachineDeploymentProgressing: // that it is late is not why it is late
			bad = is.Status == v1alpha1.ConditionFalse && is.Reason != v1alpha1.DeploymentReasonTimedOut
		case v1alpha1.MachineDeploymentAvailable: // the numbers show it
			bad = false
		}
		text := sentence("%s", cmp.Or(is.Message, is.Reason))
		if bad && !slices.ContainsFunc(explained, func(w Wait) bool { return strings.Contains(w.Text, text) }) {
			found = append(found, Wait{Text: text, Since: is.LastTransitionTime.Time})
		}
	}
	return found
}

// sentence is a text in one line without its full stop.
func sentence(format string, args ...any) string {
	return strings.TrimSuffix(strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "), ".")
}
