package rollout

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
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

// Status is how the rollout of a deployment goes.
type Status struct {
	Key     types.NamespacedName
	Outcome Outcome
	// Observed reports whether the manager has seen the last change of the deployment. If not, all
	// else may be about an earlier state.
	Observed bool
	// Revision is that of the set of the current template; 0 if there is no such set yet.
	Revision int64
	// Wanted, Updated, Available, Exist and Old count machines: those that the deployment wants,
	// those of its current template that are not being deleted, those of any template that are
	// available, all, and those of other templates. The last two include those being deleted.
	Wanted, Updated, Available, Exist, Old int32
	// Preserved counts the preserved machines that exceed what their sets want. No rollout waits for
	// them to go.
	Preserved int32
	// Limit is the progress deadline, and Deadline when it is reached without progress; zero if there
	// is none, Deadline also while it does not run.
	Limit    time.Duration
	Deadline time.Time
	// Sets are those that have or want machines, and that of the current template, which comes first;
	// the others from new to old.
	Sets []SetStatus
	// Waits are what the rollout waits for, the most important first. Texts are complete clauses.
	Waits []report.Finding
}

// SetStatus is how one set of a rollout stands.
type SetStatus struct {
	Name     string
	Revision int64
	// Current reports whether it is of the deployment's template.
	Current bool
	// Wanted, Exist and Available count its machines as those of Status.
	Wanted, Exist, Available int32
	// Phases counts its machines by phase, as "2 Running, 1 Terminating".
	Phases string
}

// StatusOf returns how a rollout goes at a moment.
func StatusOf(f Facts, now time.Time) Status {
	d, current := f.Deployment, f.Current()
	s := Status{
		Key:      types.NamespacedName{Namespace: d.Namespace, Name: d.Name},
		Observed: d.Status.ObservedGeneration >= d.Generation,
		Wanted:   d.Spec.Replicas, Updated: d.Status.UpdatedReplicas,
		Available: d.Status.AvailableReplicas, Exist: d.Status.Replicas,
	}
	for _, set := range f.Sets {
		s.Preserved += preserved(f, set, now)
		if set == current {
			s.Revision = revision.Number(set)
		}
	}
	if !s.Observed || Refusal(f) != "" {
		s.recount(f)
	}
	s.Outcome = outcome(f, s, now)
	s.listed(f)
	s.setDeadline(d)
	for _, set := range slices.Backward(f.Sets) {
		machines := f.Of(set)
		if set != current && set.Spec.Replicas == 0 && len(machines) == 0 {
			continue
		}
		s.Sets = append(s.Sets, SetStatus{
			Name: set.Name, Revision: revision.Number(set), Current: set == current,
			Wanted: set.Spec.Replicas, Exist: int32(len(machines)), Available: set.Status.AvailableReplicas,
			Phases: phases(machines),
		})
	}
	slices.SortStableFunc(s.Sets, func(a, b SetStatus) int { // "new" is before "old"
		return cmp.Or(cmp.Compare(age(a), age(b)), cmp.Compare(b.Revision, a.Revision))
	})
	if s.Outcome != Complete {
		s.Waits = waits(f, s, now)
	}
	return s
}

// recount counts as the manager does when it works on a deployment. Until then, the counts in
// the deployment's status are about an earlier template.
func (s *Status) recount(f Facts) {
	s.Updated, s.Available, s.Exist = 0, 0, 0
	for _, set := range f.Sets {
		s.Available += set.Status.AvailableReplicas
		s.Exist += set.Status.Replicas
	}
	if current := f.Current(); current != nil {
		s.Updated = current.Status.Replicas
	}
}

// listed keeps the counts to what the machines themselves show: one that is being deleted is no
// machine of the template any more, and one that is gone is no old one.
func (s *Status) listed(f Facts) {
	current, live, old := f.Current(), int32(0), int32(0)
	for _, set := range f.Sets {
		for _, machine := range f.Of(set) {
			switch {
			case set != current:
				old++
			case machine.DeletionTimestamp.IsZero():
				live++
			}
		}
	}
	s.Old = min(max(0, s.Exist-s.Updated), old)
	s.Updated = min(s.Updated, live)
}

// Refusal is the manager's last message about a deployment whose spec has to be corrected before
// it is worked on; empty if there is none. It may be about an earlier spec.
func Refusal(f Facts) string {
	if is := progressing(f.Deployment); is.Reason == v1alpha1.DeploymentReasonInvalid || is.Reason == v1alpha1.DeploymentReasonSelectsAll {
		return report.Clause(cmp.Or(is.Message, is.Reason))
	}
	return ""
}

// outcome follows the controllers: complete is what they call complete, late is what they report.
func outcome(f Facts, s Status, now time.Time) Outcome {
	d, current := f.Deployment, f.Current()
	var usable, kept int32 // of the current set
	if current != nil {
		usable, kept = current.Status.AvailableReplicas, preserved(f, current, now)
	}
	switch {
	case f.Problem != "" || !s.Observed || Refusal(f) != "" || d.Spec.RollbackTo != nil || !d.DeletionTimestamp.IsZero():
		return Progressing
	case s.Updated-kept == s.Wanted && s.Exist-s.Preserved == s.Wanted && min(s.Available, usable) >= s.Wanted:
		return Complete
	case progressing(d).Reason == v1alpha1.DeploymentReasonTimedOut:
		return Late
	}
	return Progressing
}

// preserved is how many machines of a set are beyond what it asks for, and preserved.
func preserved(f Facts, set *v1alpha1.MachineSet, now time.Time) int32 {
	return explain.Kept(f.Of(set), set.Status.Replicas-set.Spec.Replicas, now)
}

func (s *Status) setDeadline(d *v1alpha1.MachineDeployment) {
	limit, is := d.Spec.ProgressDeadlineSeconds, progressing(d)
	if limit == nil {
		return
	}
	s.Limit = time.Duration(*limit) * time.Second
	// Without progress, the condition stays as it is; while paused or complete, no deadline runs.
	if is.Status == v1alpha1.ConditionTrue && is.Reason != v1alpha1.DeploymentReasonComplete {
		s.Deadline = is.LastUpdateTime.Add(s.Limit)
	}
}

// progressing is the condition Progressing; empty if there is none.
func progressing(d *v1alpha1.MachineDeployment) v1alpha1.MachineDeploymentCondition {
	for _, is := range d.Status.Conditions {
		if is.Type == v1alpha1.MachineDeploymentProgressing {
			return is
		}
	}
	return v1alpha1.MachineDeploymentCondition{}
}

// phaseOrder is the order in which phases are counted. Others come after them.
var phaseOrder = []string{
	noPhase, string(v1alpha1.MachinePending), string(v1alpha1.MachineAvailable), string(v1alpha1.MachineRunning),
	string(v1alpha1.MachineUnknown), string(v1alpha1.MachineFailed), string(v1alpha1.MachineCrashLoopBackOff),
	string(v1alpha1.MachineTerminating),
}

// noPhase is shown for a Machine that has no phase yet.
const noPhase = "New"

// phases counts machines by phase. One that is being deleted is Terminating, also before the manager
// has said so.
func phases(machines []*v1alpha1.Machine) string {
	counts, parts := map[string]int{}, []string(nil)
	for _, machine := range machines {
		phase := cmp.Or(string(machine.Status.CurrentStatus.Phase), noPhase)
		if !machine.DeletionTimestamp.IsZero() {
			phase = string(v1alpha1.MachineTerminating)
		}
		counts[phase]++
	}
	for _, phase := range append(slices.Clone(phaseOrder), slices.Sorted(maps.Keys(counts))...) {
		if n := counts[phase]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, phase))
			delete(counts, phase)
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}

// waits returns what a rollout waits for: first what holds up the whole of it, then what package
// explain finds wrong with the deployment, its sets and its machines.
func waits(f Facts, s Status, now time.Time) []report.Finding {
	var found []report.Finding
	add := func(is bool, text string) {
		if is {
			found = append(found, report.Finding{Text: report.Clause(text)})
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
			found = append(found, report.Finding{Cause: cause, Text: report.Clause(cmp.Or(is.Message, is.Reason)), Since: is.LastTransitionTime.Time})
		}
	}
	return found
}
