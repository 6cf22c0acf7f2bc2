package machine

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// severity orders what pods wait for: what does not pass by itself comes first, then what
// lasts longest.
var severity = []report.Cause{report.PodStuck, report.DisruptionBudgetForbids, report.DisruptionBudget, report.PodTerminating, report.EvictionPending}

// pods says of each pod that has to leave what keeps it; false if there is none.
func (e *explainer) pods() bool {
	from := len(e.Report.Why)
	for i := range e.Target.Pods {
		if pod := &e.Target.Pods[i]; drain.MustLeave(pod) {
			e.pod(pod, pod.Namespace+"/"+pod.Name)
		}
	}
	slices.SortStableFunc(e.Report.Why[from:], func(a, b report.Finding) int {
		return cmp.Or(slices.Index(severity, a.Cause)-slices.Index(severity, b.Cause), a.Since.Compare(b.Since))
	})
	return len(e.Report.Why) > from
}

func (e *explainer) pod(pod *corev1.Pod, name string) {
	if !pod.DeletionTimestamp.IsZero() {
		e.podLeaves(pod, "Pod "+name)
		return
	}
	var sameNamespace []policyv1.PodDisruptionBudget
	for i := range e.Target.Budgets {
		if e.Target.Budgets[i].Namespace == pod.Namespace {
			sameNamespace = append(sameNamespace, e.Target.Budgets[i])
		}
	}
	switch covering := drain.Covering(pod.Labels, sameNamespace); {
	case len(covering) > 1:
		e.Why(manyBudgets, "Pod "+name, time.Time{}, "{count}", strconv.Itoa(len(covering)), "{budget}", covering[0].Namespace+"/"+covering[0].Name, "{pod}", name)
	case len(covering) == 1 && !drain.Allows(covering[0]):
		e.budget(covering[0], name)
	default:
		e.Why(evictionPending, "Pod "+name, time.Time{})
	}
}

// podLeaves explains a pod that was evicted or deleted. Its deletion timestamp is when its grace
// is over.
func (e *explainer) podLeaves(pod *corev1.Pod, object string) {
	switch due := pod.DeletionTimestamp.Time; {
	case !e.now.After(due):
		began := due
		if grace := pod.DeletionGracePeriodSeconds; grace != nil {
			began = due.Add(-time.Duration(*grace) * time.Second)
		}
		e.Why(podTerminating, object, began, "{until}", report.Clock(due, e.now))
	case len(pod.Finalizers) > 0:
		e.Why(podHeld, object, due, "{finalizers}", strings.Join(pod.Finalizers, ", "))
	default:
		e.Why(podStuck, object, due)
	}
}

// budget explains a budget that allows no eviction.
func (e *explainer) budget(pdb *policyv1.PodDisruptionBudget, pod string) {
	object, status := "PodDisruptionBudget "+pdb.Namespace+"/"+pdb.Name, pdb.Status
	since, all := time.Time{}, fmt.Sprintf("all %d pods are", status.CurrentHealthy)
	if c := meta.FindStatusCondition(status.Conditions, policyv1.DisruptionAllowedCondition); c != nil && c.Status == metav1.ConditionFalse {
		since = c.LastTransitionTime.Time
	}
	if status.CurrentHealthy == 1 {
		all = "the only pod is"
	}
	statement := budgetAllows0
	switch {
	case !drain.Settled(pdb):
		statement = budgetUnsettled
	case drain.Misconfigured(pdb):
		statement = budgetForbids
	}
	e.Why(statement, object, since, "{pod}", pod, "{budget}", object, "{all}", all, "{are}", messages.Are(status.CurrentHealthy),
		"{healthy}", number(status.CurrentHealthy), "{expected}", number(status.ExpectedPods), "{desired}", number(status.DesiredHealthy))
}

func number(n int32) string { return strconv.Itoa(int(n)) }

// attachments lists volumes of the node that no pod there holds any more, or that cannot
// be detached.
func (e *explainer) attachments() {
	for i := range e.Target.Attachments {
		attachment := &e.Target.Attachments[i]
		statement, since, text, volume := attached, attachment.CreationTimestamp.Time, "", ""
		if name := attachment.Spec.Source.PersistentVolumeName; name != nil {
			volume = *name
		}
		switch failed := attachment.Status.DetachError; {
		case failed != nil:
			statement, since, text = detachFailed, failed.Time.Time, failed.Message
		case !attachment.DeletionTimestamp.IsZero():
			statement, since = detaching, attachment.DeletionTimestamp.Time
		}
		e.Why(statement, "VolumeAttachment "+attachment.Name, since, "{volume}", volume, "{attacher}", attachment.Spec.Attacher, "{text}", text)
	}
}
