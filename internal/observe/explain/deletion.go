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
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

func (e *explainer) deleting() {
	e.Since = e.begin
	e.replaced()
	switch finalizers := e.Machine.Finalizers; {
	case !slices.Contains(finalizers, v1alpha1.FinalizerMCM) && !slices.Contains(finalizers, v1alpha1.FinalizerLegacy):
		e.Held(finalizers, "", "the machine", e.Machine)
	case e.last.Type != v1alpha1.MachineOperationDelete:
		e.Why(notBegun, "", e.Since)
	case e.failedFor(v1alpha1.CauseInstanceShared):
		e.Why(instanceShared, "", e.reported, "{text}", e.message)
	default:
		e.waiting()
	}
	e.Conclude(report.Deleting, "is being deleted", e.Report.Why)
	e.WhyDeleted()
}

// failedFor reports whether the last operation failed with the given cause.
func (e *explainer) failedFor(cause string) bool {
	return e.lastFailed() && report.CauseOf(&e.note) == cause
}

func (e *explainer) waiting() {
	switch e.step() {
	case v1alpha1.StepDrain:
		if e.Target.Problem == "" && e.Target.Node != nil {
			e.nodeConditions()
		}
		e.drain(drained{e.begin, v1alpha1.LabelKeyForceDeletion, ", and then the VM"})
	case v1alpha1.StepDeleteAttachments:
		e.attachments()
		e.Why(drainQuoted, "", e.reported, "{text}", e.message)
		e.Next(time.Time{}, detachesFirst)
	case v1alpha1.StepDeleteInstance:
		e.deletingInstance()
	case v1alpha1.StepDeleteNode:
		e.deletingNode()
	default:
		if f, ok := e.failure(); ok {
			e.notDeleted(f)
			return
		}
		e.Why(quoted, "", e.reported, "{text}", e.message)
	}
}

// step returns the current step of the deletion. If the step fails, it is in the manager's event; otherwise, it
// follows from the objects that still exist.
func (e *explainer) step() string {
	noted := e.note.Annotations[v1alpha1.EventAnnotationStep]
	switch {
	case e.lastFailed() && noted != "":
		return noted
	case e.lastFailed() && e.Target.Problem != "":
		return v1alpha1.StepDrain
	}
	return e.stepLeft(noted == v1alpha1.StepDeleteInstance || noted == v1alpha1.StepDeleteNode)
}

// stepLeft derives the step from the objects that still exist. It checks the steps in their order.
func (e *explainer) stepLeft(drained bool) string {
	node := e.Target.Node
	switch {
	case e.Target.Problem != "" || e.nodeIsDeleting():
		return v1alpha1.StepDeleteNode
	case !drained && (e.podsLeft() || len(e.Target.Attachments) > 0):
		return e.drainStep()
	case e.Identity.ProviderID == "" || !drained && node != nil && !node.Spec.Unschedulable:
		return v1alpha1.StepIdentify
	}
	return v1alpha1.StepDeleteInstance
}

// nodeIsDeleting reports whether the node is being deleted and no longer has the manager's finalizer.
func (e *explainer) nodeIsDeleting() bool {
	n := e.Target.Node
	return n != nil && report.IsDeleting(n) && !slices.Contains(n.Finalizers, v1alpha1.FinalizerNode)
}

func (e *explainer) podsLeft() bool {
	return slices.ContainsFunc(e.Target.Pods, func(pod corev1.Pod) bool { return drain.MustLeave(&pod) && !e.comesBack(&pod) })
}

// comesBack reports whether the drain does not wait for a pod, since it came to the cordoned node.
func (e *explainer) comesBack(pod *corev1.Pod) bool {
	var cordoned time.Time
	for _, kind := range []corev1.NodeConditionType{v1alpha1.NodeTerminationCondition, v1alpha1.NodeInPlaceUpdate} {
		if c := noderef.Condition(e.conditions(), kind); c != nil && c.Status == corev1.ConditionTrue && cordoned.IsZero() {
			cordoned = c.LastTransitionTime.Time
		}
	}
	return drain.ComesBack(pod, cordoned)
}

func (e *explainer) drainStep() string {
	if !e.podsLeft() && e.force(v1alpha1.LabelKeyForceDeletion) != drain.NotForced {
		return v1alpha1.StepDeleteAttachments
	}
	return v1alpha1.StepDrain
}

// force returns why the drain is forced. Users force it with the given label on the Machine.
func (e *explainer) force(label string) drain.Force {
	requested, _ := strconv.ParseBool(e.Machine.Labels[label])
	return drain.ForceFor(requested, e.conditions(), e.now)
}

// conditions returns the node's conditions, or those that the manager copied to the Machine's status.
func (e *explainer) conditions() []corev1.NodeCondition {
	if e.Target.Node != nil {
		return e.Target.Node.Status.Conditions
	}
	return e.Machine.Status.Conditions
}

func (e *explainer) deletingInstance() {
	// Millwright records in an event that the provider still has the VM. MCM records nothing, and checks again
	// within a minute.
	ours := e.note.Annotations[v1alpha1.EventAnnotationStep] != ""
	remains := report.CauseOf(&e.note) == v1alpha1.CauseInstanceExists || !ours && e.now.Sub(e.reported) > time.Minute
	f, isFailure := e.failure()
	switch missing := e.missing(); {
	case isFailure && missing == "":
		e.notDeleted(f)
	case missing != "" && e.Identity.ProviderID != "":
		e.Why(undeletable, "", e.reported, "{text}", missing)
	case e.failedFor(v1alpha1.CauseDriverSilent):
		e.Why(driverSilent, "", e.reported, "{text}", e.message)
	case e.lastFailed():
		e.Quote(report.Other, "", e.reported, e.message)
	case remains:
		e.Why(instanceRemains, "", e.reported)
		e.Next(time.Time{}, askedAgain)
	default:
		e.Why(instanceDeleted, "", e.reported)
	}
	e.virtualMachine()
	if vm := e.VM; vm != nil && report.IsDeleting(vm) {
		object := "VirtualMachine " + vm.Namespace + "/" + vm.Name
		e.Held(vm.Finalizers, object, object, vm)
	}
}

// notDeleted adds why the driver does not delete the VM. If the VM may never have existed, it also advises how to
// complete the deletion.
func (e *explainer) notDeleted(f failure) {
	e.driverFailed(f)
	if e.Identity.ProviderID != "" || e.Target.Node != nil || e.elsewhere() {
		return
	}
	switch f.code {
	case codes.InvalidArgument, codes.OutOfRange, codes.PermissionDenied, codes.FailedPrecondition, codes.Unauthenticated, codes.Unimplemented:
		e.Advise(fixClass)
		e.Advise(noInstance)
	}
}

func (e *explainer) deletingNode() {
	switch n := e.Target.Node; {
	case e.Target.Problem != "":
		e.targetAway()
		e.Next(time.Time{}, nodeGoesLater)
	case n != nil && report.IsDeleting(n):
		e.Held(n.Finalizers, "Node "+n.Name, "Node "+n.Name, n)
	default:
		e.Quote(report.Other, "", e.reported, e.message)
	}
}

// drained describes a drain of the Machine's node.
type drained struct {
	begun time.Time
	// label is the Machine's label that forces the drain. then is appended to the sentence about the drain timeout,
	// and names what else is deleted.
	label, then string
}

// drain adds what a drain waits for, when it is forced, and how to force it.
func (e *explainer) drain(d drained) {
	switch {
	case e.Target.Problem != "":
		e.targetAway()
	case !e.pods():
		e.attachments()
	}
	switch e.last.Type {
	case v1alpha1.MachineOperationDelete, v1alpha1.MachineOperationDrainNode:
		e.Why(drainQuoted, "", e.reported, "{text}", e.message)
	}
	if force := e.force(d.label); force != drain.NotForced {
		e.Next(time.Time{}, forced, "{why}", string(force))
		return
	}
	if due := drain.ForceDue(e.conditions(), e.now); due > 0 {
		e.Next(e.now.Add(due), forcedUnless)
	}
	t := timeouts.Drain(e.Machine, cmp.Or(e.Flags.Drain, timeouts.DefaultDrain))
	since, _ := timeouts.DrainRestarted(e.Machine, d.begun, e.now)
	e.Next(t.Deadline(since), drainTimesOut, "{timeout}", describe(t, "drain"), "{then}", d.then)
	e.Advise(forceDrain, "{label}", d.label)
}

// severity lists the causes for remaining pods in the order in which they are reported: first those that require an
// action of the user, and then by expected duration.
var severity = []report.Cause{report.PodStuck, report.DisruptionBudgetForbids, report.DisruptionBudget, report.PodTerminating, report.EvictionPending, report.PodReturned}

// pods adds a finding for each pod that must leave the node, and for each that came back. It reports whether there is
// a pod that must leave.
func (e *explainer) pods() bool {
	from, left := len(e.Report.Why), false
	for i := range e.Target.Pods {
		switch pod := &e.Target.Pods[i]; {
		case !drain.MustLeave(pod):
		case e.comesBack(pod):
			e.Why(podReturned, "Pod "+pod.Namespace+"/"+pod.Name, pod.CreationTimestamp.Time)
		default:
			left = true
			e.pod(pod, pod.Namespace+"/"+pod.Name)
		}
	}
	slices.SortStableFunc(e.Report.Why[from:], func(a, b report.Finding) int {
		return cmp.Or(slices.Index(severity, a.Cause)-slices.Index(severity, b.Cause), a.Since.Compare(b.Since))
	})
	return left
}

func (e *explainer) pod(pod *corev1.Pod, name string) {
	if report.IsDeleting(pod) {
		e.podIsDeleting(pod, "Pod "+name)
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

// podIsDeleting explains a pod that was evicted or deleted. Its deletion timestamp is the end of its grace period.
func (e *explainer) podIsDeleting(pod *corev1.Pod, object string) {
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
	failed := ""
	if c := meta.FindStatusCondition(status.Conditions, policyv1.DisruptionAllowedCondition); c != nil && c.Status == metav1.ConditionFalse {
		since = c.LastTransitionTime.Time
		if c.Reason == policyv1.SyncFailedReason {
			failed = c.Message
		}
	}
	if status.CurrentHealthy == 1 {
		all = "the only pod is"
	}
	statement := budgetAllows0
	switch {
	case failed != "":
		statement = budgetFailed
	case !drain.Settled(pdb):
		statement = budgetUnsettled
	case drain.Misconfigured(pdb):
		statement = budgetForbids
	}
	e.Why(statement, object, since, "{pod}", pod, "{budget}", object, "{text}", failed, "{all}", all, "{are}", messages.Are(status.CurrentHealthy),
		"{healthy}", fmt.Sprint(status.CurrentHealthy), "{expected}", fmt.Sprint(status.ExpectedPods), "{desired}", fmt.Sprint(status.DesiredHealthy))
}

func (e *explainer) attachments() {
	for i := range e.Target.Attachments {
		attachment := &e.Target.Attachments[i]
		statement, since, text := attached, attachment.CreationTimestamp.Time, ""
		switch failed := attachment.Status.DetachError; {
		case failed != nil:
			statement, since, text = detachFailed, failed.Time.Time, failed.Message
		case report.IsDeleting(attachment):
			statement, since = detaching, attachment.DeletionTimestamp.Time
		}
		e.Why(statement, "VolumeAttachment "+attachment.Name, since, "{volume}", ptr.Deref(attachment.Spec.Source.PersistentVolumeName, ""),
			"{attacher}", attachment.Spec.Attacher, "{text}", text)
	}
}
