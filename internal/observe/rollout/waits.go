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
func waits(f Facts, s Status, now time.Time) []report.Finding {
	var found []report.Finding
	add := func(is bool, text string) {
		if is {
			found = append(found, report.Finding{Text: sentence(text)})
		}
	}
	d, deleted := f.Deployment, !f.Deployment.DeletionTimestamp.IsZero()
	add(f.Problem != "", "the API server does not answer, so this may be old: "+f.Problem)
	add(!s.Observed && Refusal(f) == "", "the manager has not looked at the last change of the deployment yet")
	add(d.Spec.Paused, "the deployment is paused: machines are replaced when it is resumed")
	add(d.Spec.RollbackTo != nil, pendingRollback(d))
	explained := explained(f, s.Outcome == Late, now)
	unexplained := unexplained(d, explained)
	switch {
	case deleted && len(explained) == 0:
		unexplained = append(unexplained, report.Finding{Text: "the deployment is being deleted"})
	case deleted:
		explained[0].Text = "the deployment is being deleted: " + explained[0].Text
	}
	return slices.Concat(found, unexplained, explained)
}

// pendingRollback describes a rollback that the manager has not answered; empty if there is none.
func pendingRollback(d *v1alpha1.MachineDeployment) string {
	if d.Spec.RollbackTo == nil {
		return ""
	}
	to := fmt.Sprintf("revision %d", d.Spec.RollbackTo.Revision)
	if d.Spec.RollbackTo.Revision == 0 {
		to = "the revision before"
	}
	return fmt.Sprintf("the manager has not answered the wish to roll back to %s yet", to)
}

// explained is what is found wrong with the deployment, its sets and its machines, without what the
// numbers of a status show, and what waits adds itself.
func explained(f Facts, late bool, now time.Time) []report.Finding {
	var found []report.Finding
	for _, finding := range explain.Pool(f.PoolFacts, now).Why {
		switch finding.Cause {
		case report.RolloutInProgress, report.ProgressDeadlineExceeded, report.Scaling, report.Paused:
			continue
		case report.NotStarted:
			if finding.Object == "" { // the deployment
				continue
			}
		case report.Draining: // to be forced only by those who have read the whole explanation
			finding.Remedy = ""
		case report.NodeNotJoined, report.NodeUnhealthy, report.CriticalComponentsNotReady: // take their time
			if !late {
				finding.Remedy = ""
			}
		}
		finding.Text = finding.String()
		found = append(found, finding)
	}
	return found
}

// unexplained is what else the conditions of a deployment complain of.
func unexplained(d *v1alpha1.MachineDeployment, explained []report.Finding) []report.Finding {
	var found []report.Finding
	for _, is := range d.Status.Conditions {
		bad := is.Status == v1alpha1.ConditionTrue
		switch is.Type {
		case v1alpha1.MachineDeploymentProgressing: // that it is late is not why it is late
			bad = is.Status == v1alpha1.ConditionFalse && is.Reason != v1alpha1.DeploymentReasonTimedOut
		case v1alpha1.MachineDeploymentAvailable: // the numbers show it
			bad = false
		}
		cause := explain.CauseOf(is)
		if bad && !slices.ContainsFunc(explained, func(f report.Finding) bool { return f.Cause == cause }) {
			found = append(found, report.Finding{Cause: cause, Text: sentence(cmp.Or(is.Message, is.Reason)), Since: is.LastTransitionTime.Time})
		}
	}
	return found
}

// sentence is a text in one line without its full stop.
func sentence(text string) string {
	return strings.TrimSuffix(strings.Join(strings.Fields(text), " "), ".")
}
