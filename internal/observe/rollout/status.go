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

// Outcome is how a rollout has ended, if it has.
type Outcome string

// The outcomes.
const (
	// Progressing: the rollout has not ended, or no manager has worked on it yet.
	Progressing Outcome = "Progressing"
	// Complete: all machines are of the current template and available, and no others are left.
	Complete Outcome = "Complete"
	// Late: there was no progress within the deadline. The rollout may still go on.
	Late Outcome = "Late"
)

// Status is how the rollout of a deployment goes. Its numbers are those of an explanation.
type Status struct {
	report.Pool

	Key     types.NamespacedName
	Outcome Outcome
	// Observed reports whether the manager has seen the last change of the deployment.
	Observed bool
	// Revision is that of the set of the current template; 0 if there is no such set yet.
	Revision int64
	// Limit is the progress deadline, and Deadline when it is reached without progress; zero if there
	// is none, Deadline also while it does not run.
	Limit    time.Duration
	Deadline time.Time
	// Waits are what the rollout waits for, the most important first. Texts are complete clauses.
	Waits []report.Finding
	// Classes say which machines have another class than their first choice, and why.
	Classes []string
}

// StatusOf returns how a rollout goes at a moment.
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

// Old counts the machines of earlier templates, also those that are being deleted.
func (s Status) Old() (old int32) {
	for _, set := range s.Sets {
		if !set.Current {
			old += set.Exist + set.Leaving
		}
	}
	return old
}

// Refusal returns why the manager does nothing about the deployment as it is; empty if it does.
func Refusal(f Facts) string {
	is := status.Progress(f.Deployment.Status)
	if is.Reason == v1alpha1.DeploymentReasonInvalid || is.Reason == v1alpha1.DeploymentReasonSelectsAll {
		return report.Clause(cmp.Or(is.Message, is.Reason))
	}
	return ""
}

// outcome follows the controllers: complete is what they have counted as complete, late is what they
// report.
func outcome(f Facts, s Status, explained report.Report) Outcome {
	d := f.Deployment
	wanted := d.Spec.Replicas // the status counts what is in excess apart
	counted := d.Status.Replicas-s.Preserved == wanted && min(d.Status.UpdatedReplicas, d.Status.AvailableReplicas) >= wanted
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

// ofClasses reports whether a finding is about the classes of the deployment's machines, for which nothing
// waits.
func ofClasses(finding report.Finding) bool {
	return finding.Cause == v1alpha1.CauseNoCapacity && finding.Object == ""
}

// waits returns what a rollout waits for: what package explain finds wrong with the deployment, its
// sets and its machines, without what the numbers of a status show.
func waits(f Facts, explained report.Report, late bool) []report.Finding {
	var found []report.Finding
	if f.Problem != "" {
		found = append(found, report.Finding{Text: report.Clause("the API server does not answer, so this may be old: " + f.Problem)})
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
		case report.Draining: // to be forced only by those who have read the whole explanation
			finding.Remedy = ""
		case report.NodeNotJoined, v1alpha1.CauseNodeUnhealthy, report.CriticalComponentsNotReady: // take their time
			if !late {
				finding.Remedy = ""
			}
		case report.InPlaceUpdate: // so does that of a machine, until the deployment says that it is blocked
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
