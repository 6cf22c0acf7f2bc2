package explain

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
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// draining explains why the node is not empty yet, and when the drain is forced.
func (e *explainer) draining() {
	if e.Target.Problem != "" {
		e.targetAway()
	} else {
		if e.Target.Node != nil {
			e.nodeConditions()
		}
		if !e.pods() {
			e.attachments()
		}
	}
	e.Why(drainQuoted, "", e.reported, "{text}", e.says)
	if force := e.force(); force != drain.NotForced {
		e.Next(time.Time{}, forced, "{why}", string(force))
		return
	}
	if due := drain.ForceDue(e.conditions(), e.now); due > 0 {
		e.Next(e.now.Add(due), forcedUnless)
	}
	t := timeouts.Drain(e.Machine, cmp.Or(e.Flags.Drain, timeouts.DefaultDrain))
	e.Next(t.Ends(e.begin), drainTimesOut, "{timeout}", describe(t, "drain"))
	e.Advise(forceDrain, "{label}", v1alpha1.LabelKeyForceDeletion)
}

// severity orders what pods wait for: first what does not pass by itself, then what lasts longest.
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
	if leaving(pod) {
		e.podLeaves(pod, "Pod "+name)
		return
	}
	budgets := slices.DeleteFunc(slices.Clone(e.Target.Budgets), func(b policyv1.PodDisruptionBudget) bool { return b.Namespace != pod.Namespace })
	switch covering := drain.Covering(pod.Labels, budgets); {
	case len(covering) > 1:
		e.Why(manyBudgets, "Pod "+name, time.Time{}, "{count}", strconv.Itoa(len(covering)), "{budget}", covering[0].Namespace+"/"+covering[0].Name, "{pod}", name)
	case len(covering) == 1 && !drain.Allows(covering[0]):
		e.budget(covering[0], name)
	default:
		e.Why(evictionPending, "Pod "+name, time.Time{})
	}
}

// podLeaves explains a pod that was evicted or deleted. Its deletion timestamp is when its grace
// period ends.
func (e *explainer) podLeaves(pod *corev1.Pod, object string) {
	switch due := pod.DeletionTimestamp.Time; {
	case !e.now.After(due):
		grace := time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second
		e.Why(podTerminating, object, due.Add(-grace), "{until}", report.Clock(due, e.now))
	case len(pod.Finalizers) > 0:
		e.Why(podHeld, object, due, "{finalizers}", strings.Join(pod.Finalizers, ", "))
	default:
		e.Why(podStuck, object, due)
	}
}

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

// attachments lists the volumes of the node that are not detached.
func (e *explainer) attachments() {
	for i := range e.Target.Attachments {
		attachment := &e.Target.Attachments[i]
		statement, since, text := attached, attachment.CreationTimestamp.Time, ""
		switch failed := attachment.Status.DetachError; {
		case failed != nil:
			statement, since, text = detachFailed, failed.Time.Time, failed.Message
		case leaving(attachment):
			statement, since = detaching, attachment.DeletionTimestamp.Time
		}
		e.Why(statement, "VolumeAttachment "+attachment.Name, since, "{volume}", ptr.Deref(attachment.Spec.Source.PersistentVolumeName, ""),
			"{attacher}", attachment.Spec.Attacher, "{text}", text)
	}
}
