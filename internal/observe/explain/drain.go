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
	"k8s.io/apimachinery/pkg/labels"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// severity orders what pods wait for: what does not pass by itself comes first, then what
// lasts longest.
var severity = []Cause{PodStuck, BudgetNever, Budget, PodEnding, PodWaits}

// pods says of each pod that has to leave what keeps it; false if there is none.
func (e *explainer) pods() bool {
	from := len(e.report.Why)
	for i := range e.Target.Pods {
		if pod := &e.Target.Pods[i]; mustLeave(pod) {
			e.pod(pod)
		}
	}
	slices.SortStableFunc(e.report.Why[from:], func(a, b Finding) int {
		return cmp.Or(slices.Index(severity, a.Cause)-slices.Index(severity, b.Cause), a.Since.Compare(b.Since))
	})
	return len(e.report.Why) > from
}

// mustLeave reports whether a drain has to do with a pod, as in internal/lifecycle/drain.
func mustLeave(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	owner := metav1.GetControllerOfNoCopy(pod)
	return !mirror && (owner == nil || owner.Kind != "DaemonSet" || !strings.HasPrefix(owner.APIVersion, "apps/"))
}

func (e *explainer) pod(pod *corev1.Pod) {
	name := pod.Namespace + "/" + pod.Name
	if !pod.DeletionTimestamp.IsZero() {
		e.leaving(pod, name)
		return
	}
	covering := e.budgetsOf(pod)
	if len(covering) > 1 {
		e.why(BudgetNever, "Pod "+name, time.Time{}, "%d pod disruption budgets cover it, %s among them: the API server evicts no such pod", len(covering), nameOf(covering[0]))
		e.advise("Change the selectors of the budgets, so that one of them covers pod %s", name)
		return
	}
	for _, pdb := range covering {
		if e.budget(pdb, name) {
			return
		}
	}
	e.why(PodWaits, "Pod "+name, time.Time{}, "it is still on the node, and waits for its eviction or for its turn")
}

// leaving explains a pod that was evicted or deleted. Its deletion timestamp is when its
// grace is over.
func (e *explainer) leaving(pod *corev1.Pod, name string) {
	object, due := "Pod "+name, pod.DeletionTimestamp.Time
	if !e.now.After(due) {
		began := due.Add(-time.Duration(deref(pod.DeletionGracePeriodSeconds)) * time.Second)
		e.why(PodEnding, object, began, "it is ending, for which it may take until %s", clockOf(due, e.now))
		return
	}
	if len(pod.Finalizers) > 0 {
		e.why(PodStuck, object, due, "it should have ended; finalizer %s holds it", strings.Join(pod.Finalizers, ", "))
		e.advise("Ask whoever owns the finalizers of such pods")
		return
	}
	e.why(PodStuck, object, due, "it should have ended: its grace period is over, and the kubelet has not removed it")
	e.advise("Look at the pods that should have ended: a hanging volume, or a kubelet that does not answer")
}

func (e *explainer) budgetsOf(pod *corev1.Pod) []*policyv1.PodDisruptionBudget {
	var covering []*policyv1.PodDisruptionBudget
	for i := range e.Target.Budgets {
		pdb := &e.Target.Budgets[i]
		selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
		if err == nil && pdb.Namespace == pod.Namespace && selector.Matches(labels.Set(pod.Labels)) {
			covering = append(covering, pdb)
		}
	}
	return covering
}

func nameOf(pdb *policyv1.PodDisruptionBudget) string { return pdb.Namespace + "/" + pdb.Name }

// budget explains a budget that keeps a pod; false if it does not.
func (e *explainer) budget(pdb *policyv1.PodDisruptionBudget, pod string) bool {
	object, status := "PodDisruptionBudget "+nameOf(pdb), pdb.Status
	since := time.Time{}
	if c := meta.FindStatusCondition(status.Conditions, policyv1.DisruptionAllowedCondition); c != nil && c.Status == metav1.ConditionFalse {
		since = c.LastTransitionTime.Time
	}
	switch {
	case status.ObservedGeneration != pdb.Generation:
		e.why(Budget, object, since, "it allows no eviction of pod %s: the disruption controller has not looked at it since it changed", pod)
	case status.DisruptionsAllowed > 0:
		return false
	case status.ExpectedPods > 0 && status.CurrentHealthy >= status.ExpectedPods && len(status.DisruptedPods) == 0:
		e.why(BudgetNever, object, since, "it never allows an eviction of pod %s: %s healthy, and it wants %d", pod, allPods(status.CurrentHealthy), status.DesiredHealthy)
		e.advise("Have the owner of %s allow one pod to be missing, or add a pod", object)
	default:
		e.why(Budget, object, since, "it allows no eviction of pod %s now: %d of %d pods %s healthy, and it wants %d", pod, status.CurrentHealthy, status.ExpectedPods, messages.Are(status.CurrentHealthy), status.DesiredHealthy)
		e.advise("Look why pods that %s covers are not healthy", object)
	}
	return true
}

func allPods(n int32) string {
	if n == 1 {
		return "the only pod is"
	}
	return fmt.Sprintf("all %d pods are", n)
}

// attachments lists volumes of the node that no pod there holds any more, or that cannot
// be detached.
func (e *explainer) attachments() {
	for i := range e.Target.Attachments {
		attachment := &e.Target.Attachments[i]
		volume := deref(attachment.Spec.Source.PersistentVolumeName)
		object := "VolumeAttachment " + attachment.Name
		switch failed := attachment.Status.DetachError; {
		case failed != nil:
			e.why(VolumeAttached, object, failed.Time.Time, "volume %s cannot be detached; %s says: %s", volume, attachment.Spec.Attacher, deref(&failed.Message))
			e.advise("Look at the CSI driver %s and at its provider", attachment.Spec.Attacher)
		case !attachment.DeletionTimestamp.IsZero():
			e.why(VolumeAttached, object, attachment.DeletionTimestamp.Time, "volume %s is being detached by %s", volume, attachment.Spec.Attacher)
		default:
			e.why(VolumeAttached, object, attachment.CreationTimestamp.Time, "volume %s is attached to the node", volume)
		}
	}
}

// force says when the drain goes on without regard to what holds it up.
func (e *explainer) force() {
	requested, _ := strconv.ParseBool(e.Machine.Labels[v1alpha1.LabelKeyForceDeletion])
	conditions := e.Machine.Status.Conditions
	if e.Target.Node != nil {
		conditions = e.Target.Node.Status.Conditions
	}
	if force := drain.ForceFor(requested, conditions, e.now); force != drain.NotForced {
		e.next(time.Time{}, "Pods are deleted without regard to budgets and grace: %s", force)
		return
	}
	if due := drain.ForceDue(conditions, e.now); due > 0 {
		e.next(e.now.Add(due), "Pods are deleted without regard to budgets and grace, unless the node recovers before")
	}
	t := e.drainTimeout()
	e.next(e.Machine.DeletionTimestamp.Add(t.Duration), "What is left then is deleted without regard to budgets and grace, and the VM with it: the drain timeout is %v", t)
	e.advise("To go on at once, at the price of pods that end without grace: kubectl -n %s label %s %s %s=True", e.Key.Namespace, machineResource, e.Key.Name, v1alpha1.LabelKeyForceDeletion)
}
