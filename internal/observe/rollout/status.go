package rollout

import (
	"cmp"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/pool"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/pool/rollout/status"
)

// Outcome is the result of a rollout so far.
type Outcome string

// The outcomes.
const (
	// Progressing means that the rollout is not complete, or that no manager has worked on it yet.
	Progressing Outcome = "Progressing"
	// Complete means that all machines have the current template and are available, and that no old
	// machines are left.
	Complete Outcome = "Complete"
	// Late means that the rollout made no progress within its deadline. It may still continue.
	Late Outcome = "Late"
)

// Status is the state of a deployment's rollout. Its numbers are the same as in an explanation.
type Status struct {
	report.Pool

	Key     types.NamespacedName
	Outcome Outcome
	// Observed reports whether the manager has seen the last change of the deployment.
	Observed bool
	// Revision is the revision of the set that has the current template, or 0 if no set has it yet.
	Revision int64
	// Limit is the progress deadline as a duration, and Deadline is when it expires unless there is
	// progress. Both are zero if there is no deadline. Deadline is also zero while it is suspended.
	Limit    time.Duration
	Deadline time.Time
	// Waits are the reasons why the rollout is waiting, the most important first. Their texts are
	// complete clauses.
	Waits []report.Finding
	// Classes describe which machines have a class other than their first choice, and why.
	Classes []string
}

// StatusOf returns the state of a rollout at the given time.
func StatusOf(f Facts, now time.Time) Status {
	d, explained := f.Deployment, pool.Explain(f.Facts, now)
	s := Status{Pool: *explained.Pool, Key: f.Key, Observed: d.Status.ObservedGeneration >= d.Generation}
	if current := f.Current(); current != nil {
		s.Revision = revision.Number(current)
	}
	s.Limit = time.Duration(ptr.Deref(d.Spec.ProgressDeadlineSeconds, 0)) * time.Second
	s.Deadline = pool.Deadline(f.Facts, now)
	s.Outcome = outcome(f, s, explained)
	for _, finding := range explained.Why {
		if ofClasses(finding) {
			s.Classes = append(s.Classes, finding.String())
		}
	}
	if s.Outcome != Complete {
		s.Waits = waits(f, explained, s.Outcome == Late)
	}
	return s
}

// Old returns the number of machines of earlier templates, including those being deleted.
func (s Status) Old() (old int32) {
	for _, set := range s.Sets {
		if !set.Current {
			old += set.Exist + set.Leaving
		}
	}
	return old
}

// Refusal returns why the manager does not act on the deployment in its current form, or "" if it
// does.
func Refusal(f Facts) string {
	is := status.Progress(f.Deployment.Status)
	if is.Reason == v1alpha1.DeploymentReasonInvalid || is.Reason == v1alpha1.DeploymentReasonSelectsAll {
		return report.Clause(cmp.Or(is.Message, is.Reason))
	}
	return ""
}

// outcome uses the counts and conditions that the controllers report: a rollout is complete or late
// only if they report it.
func outcome(f Facts, s Status, explained report.Report) Outcome {
	d := f.Deployment
	desired := d.Spec.Replicas // the status counts excess machines separately
	counted := d.Status.Replicas-s.Preserved == desired && min(d.Status.UpdatedReplicas, d.Status.AvailableReplicas) >= desired
	switch {
	case f.Problem != "" || !s.Observed || Refusal(f) != "" || d.Spec.RollbackTo != nil || !d.DeletionTimestamp.IsZero():
		return Progressing
	case explained.Verdict == report.Healthy && counted:
		return Complete
	case status.Progress(d.Status).Reason == v1alpha1.DeploymentReasonTimedOut:
		return Late
	}
	return Progressing
}

// ofClasses reports whether a finding is about the classes of the deployment's machines. The
// rollout does not wait for such a finding.
func ofClasses(finding report.Finding) bool {
	return finding.Cause == v1alpha1.CauseNoCapacity && finding.Object == ""
}

// waits returns what a rollout waits for: the problems that package explain finds with the
// deployment, its sets and its machines, except for those that the numbers of a status already
// show.
func waits(f Facts, explained report.Report, late bool) []report.Finding {
	var found []report.Finding
	if f.Problem != "" {
		found = append(found, report.Finding{Text: report.Clause("the API server does not respond, so this status may be out of date: " + f.Problem)})
	}
	deleted := ""
	if explained.Verdict == report.Deleting {
		deleted = "the deployment is being deleted"
	}
	for _, finding := range explained.Why {
		switch finding.Cause {
		case report.RolloutInProgress, report.ProgressDeadlineExceeded, report.Scaling:
			continue
		case v1alpha1.CauseNoCapacity:
			if ofClasses(finding) {
				continue
			}
		case report.Draining: // only the full explanation suggests forcing a drain
			finding.Remedy = ""
		case report.NodeNotJoined, v1alpha1.CauseNodeUnhealthy, report.CriticalComponentsNotReady: // normal until the deadline has passed
			if !late {
				finding.Remedy = ""
			}
		case report.InPlaceUpdate: // normal for a machine until the deployment reports that the update is blocked
			if !late && finding.Object != "" {
				finding.Remedy = ""
			}
		}
		finding.Text = finding.String()
		if deleted != "" {
			finding.Text, deleted = deleted+": "+finding.Text, ""
		}
		found = append(found, finding)
	}
	if deleted != "" {
		found = append(found, report.Finding{Text: deleted})
	}
	return found
}
