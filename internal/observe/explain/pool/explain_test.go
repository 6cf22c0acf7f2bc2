package pool

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
	"github.com/millwright-dev/millwright/test/support/explained"
)

// given changes the facts about a healthy pool.
type given func(f *Facts)

// situation is the input and the expected outcome of an explanation.
type situation struct {
	kind    string
	given   given
	verdict report.Verdict
	// cause is the expected cause of the first finding. It is empty if there is no finding.
	cause report.Cause
}

var pools = map[string]situation{
	"set-complete": {explain.KindSet, allOf(), report.Healthy, ""},
	"set-empty": {explain.KindSet, func(f *Facts) {
		f.Sets[0].Spec.Replicas, f.Sets[0].Status.AvailableReplicas, f.Machines = 0, 0, nil
	}, report.Healthy, ""},
	"set-not-observed": {explain.KindSet, func(f *Facts) { f.Sets[0].Generation = 4; f.Sets[0].Spec.Replicas = 5 }, report.Incomplete, report.NotStarted},
	"set-growing":      {explain.KindSet, func(f *Facts) { f.Sets[0].Spec.Replicas = 5 }, report.Incomplete, report.Scaling},
	"set-shrinking":    {explain.KindSet, func(f *Facts) { f.Sets[0].Spec.Replicas = 2 }, report.Incomplete, report.Scaling},
	"set-no-manager":   {explain.KindSet, func(f *Facts) { poolLease(f, "", 40*time.Minute) }, report.Healthy, report.ManagerNotRunning},
	"set-invalid":      {explain.KindSet, allOf(setCondition(v1alpha1.MachineSetReplicaFailure, "InvalidSpec", "spec.selector: Required value: which machines are the set's"), func(f *Facts) { f.Sets[0].Generation = 4 }), report.Healthy, v1alpha1.CauseInvalidSpec},
	"set-quota":        {explain.KindSet, allOf(setCondition(v1alpha1.MachineSetReplicaFailure, "FailedCreate", `creating machines: machines.machine.sapcloud.io "pool-a-*" is forbidden: exceeded quota`), withoutMachines(1)), report.Incomplete, report.ReplicaFailure},
	"set-blocked":      {explain.KindSet, allOf(setCondition(v1alpha1.MachineSetReplicaFailure, "FailedCreate", "creating machines: metadata.labels: Invalid value"), withoutMachines(3), func(f *Facts) { f.Sets[0].Generation = 4 }), report.Incomplete, report.ReplicaFailure},
	"set-frozen":       {explain.KindSet, allOf(setCondition(v1alpha1.MachineSetFrozen, "OverShootingReplicaCount", "9 machines exist, at least the freeze limit of 6"), withoutMachines(1)), report.Incomplete, report.Frozen},
	"set-label-frozen": {explain.KindSet, allOf(func(f *Facts) {
		f.Sets[0].Labels, f.Deployment = map[string]string{v1alpha1.LabelKeyFreeze: "True"}, nil
	}, withoutMachines(1)), report.Incomplete, report.Frozen},
	"set-scale-up-off": {explain.KindSet, allOf(func(f *Facts) {
		f.Sets[0].Labels = map[string]string{v1alpha1.LabelKeyMachineSetScaleUpDisabled: ""}
	}, withoutMachines(1)), report.Incomplete, report.ScaleUpDisabled},
	"set-back-off":    {explain.KindSet, allOf(backsOff(30*time.Second, "", ""), withoutMachines(1)), report.Incomplete, report.BackOff},
	"set-never-joins": {explain.KindSet, allOf(backsOff(30*time.Second, messages.LastFailed+"pool-a-z: Machine pool-a-z failed to join the cluster in 20 minutes.", ""), withoutMachines(1)), report.Incomplete, report.BackOff},
	"set-no-capacity": {explain.KindSet, allOf(backsOff(30*time.Second, messages.LastFailed+"pool-a-z: "+messages.Provider+"machine codes error: code = [ResourceExhausted] message = [zone-1: is full]", "ResourceExhausted"), withoutMachines(1)), report.Incomplete, report.BackOff},
	"set-backed-off":  {explain.KindSet, allOf(backsOff(50*time.Second, "", ""), withoutMachines(1)), report.Incomplete, report.Scaling},
	"set-restarted":   {explain.KindSet, allOf(backsOff(30*time.Second, "", ""), withoutMachines(1), func(f *Facts) { poolLease(f, "new", 10*time.Second) }), report.Incomplete, report.Scaling},
	"set-min-ready": {explain.KindSet, func(f *Facts) {
		f.Sets[0].Spec.MinReadySeconds, f.Sets[0].Status.AvailableReplicas = 600, 2
		f.Machines[0].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: ago(time.Minute)}}
		f.Machines[0].Status.CurrentStatus.LastUpdateTime = ago(time.Minute)
	}, report.Incomplete, report.MinReadySeconds},
	"set-overlap": {explain.KindSet, setCondition("SelectorOverlap", "SelectorOverlap", "spec.selector: the same machines are selected by other. Give each set a unique label."), report.Healthy, report.SelectorOverlap},
	"set-failing": {explain.KindSet, allOf(failing(0, 3*time.Minute), failing(1, time.Minute)), report.Incomplete, v1alpha1.CauseDriverFailed},
	"set-unread":  {explain.KindSet, allOf(failing(0, 3*time.Minute), func(f *Facts) { f.Examples = nil }), report.Incomplete, v1alpha1.CauseDriverFailed},
	"set-deleting": {explain.KindSet, func(f *Facts) {
		f.Sets[0].DeletionTimestamp, f.Sets[0].Finalizers = ptr.To(ago(time.Minute)), []string{v1alpha1.FinalizerMCM}
		for i := range f.Machines {
			m := f.Machines[i]
			m.DeletionTimestamp, m.Finalizers = ptr.To(ago(time.Minute)), []string{v1alpha1.FinalizerMCM}
			m.Status.CurrentStatus.Phase = v1alpha1.MachineTerminating
			m.Status.LastOperation = v1alpha1.LastOperation{Type: v1alpha1.MachineOperationDelete, State: processing, LastUpdateTime: ago(30 * time.Second), Description: "Drain successful. " + messages.DeleteVM}
		}
	}, report.Deleting, v1alpha1.CauseInstanceExists},
	"set-deleting-starts": {explain.KindSet, allOf(failing(0, time.Minute), func(f *Facts) {
		f.Sets[0].DeletionTimestamp, f.Sets[0].Finalizers = ptr.To(ago(time.Minute)), []string{v1alpha1.FinalizerMCM}
	}), report.Deleting, report.Scaling},
	"set-finalizer": {explain.KindSet, func(f *Facts) {
		f.Sets[0].DeletionTimestamp, f.Sets[0].Finalizers, f.Machines = ptr.To(ago(time.Minute)), []string{"example.com/backup"}, nil
	}, report.Deleting, report.Finalizer},
	"set-orphaning": {explain.KindSet, func(f *Facts) {
		f.Sets[0].DeletionTimestamp, f.Sets[0].Finalizers = ptr.To(ago(time.Minute)), []string{v1alpha1.FinalizerMCM, metav1.FinalizerOrphanDependents}
	}, report.Deleting, report.Finalizer},
	"set-mistyped": {explain.KindSet, func(f *Facts) { f.Sets, f.Machines, f.Names = nil, nil, []string{"pool-b"} }, report.NotFound, ""},
	"set-gone": {explain.KindSet, func(f *Facts) {
		f.Sets, f.Machines = nil, nil
		f.Events = []corev1.Event{poolEvent(explain.KindSet, "pool-a", corev1.EventTypeNormal, "SuccessfulDelete", "Deleted 1 machine (pool-a-1): the machine set is being deleted", time.Minute)}
	}, report.Gone, ""},

	"set-unlisted":                 {explain.KindSet, unlisted("Machine"), report.Unknown, ""},
	"deployment-unlisted":          {explain.KindDeployment, unlisted("Machine"), report.Unknown, ""},
	"deployment-unlisted-lacks":    {explain.KindDeployment, allOf(unlisted("MachineSet"), func(f *Facts) { f.Deployment.Status.AvailableReplicas = 1 }), report.Unknown, ""},
	"deployment-unlisted-paused":   {explain.KindDeployment, allOf(rolls, unlisted("MachineSet"), func(f *Facts) { f.Deployment.Spec.Paused, f.Deployment.Status.UpdatedReplicas = true, 1 }), report.Unknown, report.Paused},
	"deployment-unlisted-deleting": {explain.KindDeployment, allOf(unlisted("MachineSet"), deploymentIsDeleting()), report.Deleting, ""},
	"deployment-other-class": {explain.KindDeployment, func(f *Facts) {
		for _, machine := range f.Machines[:2] {
			machine.Annotations = map[string]string{v1alpha1.AnnotationKeyClassChoices: "pool-v1,pool-b", v1alpha1.AnnotationKeyClassReason: v1alpha1.CauseNoCapacity}
			machine.Spec.Class.Name = "pool-b"
		}
	}, report.Healthy, v1alpha1.CauseNoCapacity},
	"deployment-preserved": {explain.KindDeployment, allOf(rolled, preserves(0)), report.Healthy, ""},
	"deployment-preserved-and-old": {explain.KindDeployment, allOf(rolled, preserves(0), func(f *Facts) {
		f.Sets[0].Spec.Replicas, f.Machines = 0, append(f.Machines, member(f.Sets[0], "pool-a-2"))
	}), report.Incomplete, report.RolloutInProgress},
	"deployment-preserved-instead": {explain.KindDeployment, allOf(rolled, preserves(0), func(f *Facts) { f.Sets[1].Status.AvailableReplicas = 2 }), report.Incomplete, report.Scaling},
	"set-preserved":                {explain.KindSet, allOf(preserves(0), preserves(1), preserves(2), func(f *Facts) { f.Sets[0].Spec.Replicas = 2 }), report.Healthy, ""},
	"set-node-not-ready": {explain.KindSet, func(f *Facts) {
		f.Machines[0].Status.CurrentStatus = v1alpha1.CurrentStatus{Phase: v1alpha1.MachinePending, LastUpdateTime: ago(time.Minute)}
		f.Machines[0].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "no network", LastTransitionTime: ago(time.Minute)}}
	}, report.Incomplete, v1alpha1.CauseNodeUnhealthy},
	"deployment-deleting": {explain.KindDeployment, allOf(deploymentIsDeleting(metav1.FinalizerDeleteDependents), func(f *Facts) {
		f.Sets[0].DeletionTimestamp, f.Sets[0].Finalizers, f.Machines = ptr.To(ago(time.Minute)), []string{v1alpha1.FinalizerMCM}, nil
	}), report.Deleting, report.Other},
	"deployment-set-finalizer": {explain.KindDeployment, allOf(deploymentIsDeleting(), func(f *Facts) {
		f.Sets[0].DeletionTimestamp, f.Sets[0].Finalizers, f.Machines = ptr.To(ago(time.Minute)), []string{"example.com/backup"}, nil
	}), report.Deleting, report.Finalizer},
	"deployment-orphaning": {explain.KindDeployment, deploymentIsDeleting(metav1.FinalizerOrphanDependents), report.Deleting, report.Finalizer},
	"deployment-complete":  {explain.KindDeployment, allOf(), report.Healthy, ""},
	"deployment-invalid":   {explain.KindDeployment, deploymentCondition(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "InvalidSpec", "spec.selector: Required value: which machines are the deployment's"), report.Healthy, v1alpha1.CauseInvalidSpec},
	"deployment-all":       {explain.KindDeployment, deploymentCondition(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "SelectingAll", "spec.selector: the empty selector selects all machines; add labels to it."), report.Healthy, v1alpha1.CauseInvalidSpec},
	"deployment-in-place":  {explain.KindDeployment, allOf(rolls, deploymentCondition(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "NotSupported", "The template changed, but in-place updates need a target cluster and none is configured. Machines are not updated; scaling still works.")), report.Incomplete, report.NotSupported},
	"deployment-updating": {explain.KindDeployment, allOf(rolls, inPlace, updates(0, v1alpha1.MachineRunning, v1alpha1.SelectedForUpdate), updates(1, v1alpha1.MachineInPlaceUpdating, v1alpha1.ReadyForUpdate),
		deploymentCondition(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionTrue, "MachineSetUpdated", `MachineSet "pool-b" is progressing.`)), report.Incomplete, report.InPlaceUpdate},
	"deployment-update-blocked": {explain.KindDeployment, allOf(rolls, inPlace, updates(0, v1alpha1.MachineInPlaceUpdateFailed, v1alpha1.UpdateFailed),
		deploymentCondition(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionTrue, "NodeUpdateBlocked", `MachineSet "pool-b" is progressing, but: machine pool-a-1: the update of its node failed: no space left on device.`)), report.Incomplete, report.InPlaceUpdate},
	"deployment-named-kept":   {explain.KindDeployment, named(0), report.Healthy, v1alpha1.CauseNamedForDeletion},
	"deployment-named-unread": {explain.KindDeployment, allOf(named(0), named(1), func(f *Facts) { f.Examples = nil }), report.Healthy, v1alpha1.CauseNamedForDeletion},
	"deployment-named-deleting": {explain.KindDeployment, allOf(named(0), func(f *Facts) {
		f.Sets[0].Annotations[v1alpha1.AnnotationKeyLastReplicaChange] = ago(time.Minute).UTC().Format(time.RFC3339)
	}), report.Healthy, ""},
	"set-updated-in-place":         {explain.KindSet, allOf(inPlace, func(f *Facts) { f.Deployment.Spec.Template.Spec.Class.Name = "pool-v2" }, withoutMachines(1)), report.Incomplete, report.InPlaceUpdate},
	"deployment-overlap":           {explain.KindDeployment, deploymentCondition("SelectorOverlap", v1alpha1.ConditionTrue, "SelectorOverlap", "spec.selector: the same machines are selected by other. Give each deployment a label of its own."), report.Healthy, report.SelectorOverlap},
	"deployment-released":          {explain.KindDeployment, deploymentCondition("SetReleased", v1alpha1.ConditionTrue, "SetReleased", "spec.selector: no longer matches machine sets of this deployment: pool-0 (machines: 3). Their machines are neither counted nor updated; delete these machine sets or select them again."), report.Healthy, report.SetReleased},
	"deployment-rollback-rejected": {explain.KindDeployment, allOf(rolls, failing(3, time.Minute), deploymentCondition("RollbackRefused", v1alpha1.ConditionTrue, "DeploymentRollbackRevisionNotFound", "spec.rollbackTo.revision: no machine set has revision 7; the template remains that of revision 2.")), report.Incomplete, v1alpha1.CauseDriverFailed},
	"deployment-set-overlap":       {explain.KindDeployment, setCondition("SelectorOverlap", "SelectorOverlap", "spec.selector: the same machines are selected by other. Give each set a unique label."), report.Healthy, report.SelectorOverlap},
	"deployment-rolling":           {explain.KindDeployment, allOf(rolls, deploymentCondition(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionTrue, "MachineSetUpdated", `MachineSet "pool-b" is progressing.`)), report.Incomplete, report.RolloutInProgress},
	"deployment-class-querying":    {explain.KindDeployment, otherClassNamed(liveupdate.Update), report.Incomplete, report.RolloutInProgress},
	"deployment-class-dry-run":     {explain.KindDeployment, allOf(otherClassNamed(liveupdate.DryRun), driverReports(0, nil), driverReports(1, []string{"zone"})), report.Incomplete, report.RolloutInProgress},
	"deployment-class-followed": {explain.KindDeployment, allOf(otherClassNamed(liveupdate.Update), driverReports(0, nil), driverReports(1, []string{"zone"}), func(f *Facts) {
		f.Sets[0].Spec.Template.Spec.Class.Name, f.Machines[2].Spec.Class.Name = "pool-v2", "pool-v2"
	}), report.Incomplete, report.RolloutInProgress},
	"deployment-stalled":       {explain.KindDeployment, allOf(rolls, deploymentCondition(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "ProgressDeadlineExceeded", `MachineSet "pool-b" has timed out progressing.`), failing(3, time.Minute)), report.Incomplete, v1alpha1.CauseDriverFailed},
	"deployment-stalled-why":   {explain.KindDeployment, allOf(rolls, deploymentCondition(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "ProgressDeadlineExceeded", `MachineSet "pool-b" has timed out progressing.`)), report.Incomplete, report.ProgressDeadlineExceeded},
	"deployment-old-backs-off": {explain.KindDeployment, allOf(rolls, backsOff(30*time.Second, "", ""), failing(3, time.Minute)), report.Incomplete, v1alpha1.CauseDriverFailed},
	"deployment-new-first": {explain.KindDeployment, allOf(rolls, failing(3, time.Minute), func(f *Facts) {
		f.Machines[0].Status.CurrentStatus.Phase, f.Machines[1].Status.CurrentStatus.Phase = v1alpha1.MachineUnknown, v1alpha1.MachineUnknown
	}), report.Incomplete, v1alpha1.CauseDriverFailed},
	"deployment-refreshed": {explain.KindDeployment, func(f *Facts) {
		f.Events = []corev1.Event{
			poolEvent(explain.KindDeployment, "pool", corev1.EventTypeNormal, "ScalingMachineSet", "Scaled up machine set pool-a to 3: 3 replicas desired", 2*time.Minute),
			poolEvent(explain.KindDeployment, "pool", corev1.EventTypeNormal, "RefreshedMachineSet", "Refreshed machine set pool-a: its annotations follow those of the deployment", time.Minute),
		}
	}, report.Healthy, ""},
	"deployment-paused": {explain.KindDeployment, allOf(rolls, func(f *Facts) { f.Deployment.Spec.Paused = true }, deploymentCondition(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionUnknown, "DeploymentPaused", "explain.KindDeployment is paused")), report.Incomplete, report.Paused},
	"deployment-restored": {explain.KindDeployment, func(f *Facts) {
		f.Sets, f.Machines = nil, nil
		metav1.SetMetaDataAnnotation(&f.Deployment.ObjectMeta, v1alpha1.AnnotationKeyAwaitsRestoreUntil, now.Add(14*time.Minute).Format(time.RFC3339))
	}, report.Incomplete, report.AwaitingRestore},
	"set-restored": {explain.KindSet, allOf(withoutMachines(2), func(f *Facts) {
		f.Sets[0].Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: "1", v1alpha1.AnnotationKeyAwaitsRestoreUntil: now.Add(14 * time.Minute).Format(time.RFC3339)}
	}), report.Incomplete, report.AwaitingRestore},
	"deployment-idle":      {explain.KindDeployment, func(f *Facts) { f.Deployment.Spec.Paused = true }, report.Healthy, ""},
	"deployment-frozen":    {explain.KindDeployment, allOf(setCondition(v1alpha1.MachineSetFrozen, "OverShootingReplicaCount", "9 machines exist, at least the freeze limit of 6"), withoutMachines(1)), report.Incomplete, report.Frozen},
	"deployment-no-set":    {explain.KindDeployment, func(f *Facts) { f.Sets, f.Machines = nil, nil }, report.Incomplete, report.Scaling},
	"deployment-set-fails": {explain.KindDeployment, allOf(func(f *Facts) { f.Sets, f.Machines = nil, nil }, deploymentCondition(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "MachineSetCreateError", "creating a machine set: forbidden")), report.Incomplete, report.ReplicaFailure},
	"deployment-mutated":   {explain.KindDeployment, allOf(func(f *Facts) { f.Sets, f.Machines = nil, nil }, deploymentCondition(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "TemplateMutated", "spec.template: the API server changes the template of a new machine set (labels)")), report.Incomplete, report.ReplicaFailure},
	"deployment-unmarked":  {explain.KindDeployment, deploymentCondition(v1alpha1.MachineDeploymentReplicaFailure, v1alpha1.ConditionTrue, "MachineMarkError", "marking machine pool-b-1: forbidden"), report.Healthy, report.ReplicaFailure},
}

// unlisted makes a kind unreadable. The status of other objects still contains its numbers.
func unlisted(kind string) given {
	return func(f *Facts) {
		if kind == explain.KindSet {
			f.Sets, f.SetsUnread = nil, true
		}
		f.Machines, f.MachinesUnread = nil, true
		f.Deployment.Status.Replicas, f.Deployment.Status.UpdatedReplicas, f.Deployment.Status.ReadyReplicas, f.Deployment.Status.AvailableReplicas = 3, 3, 3, 3
		f.Unread = []string{kind + "List: forbidden"}
	}
}

// rolled completes a rollout except for the first Machine of the old set.
func rolled(f *Facts) {
	rolls(f)
	next := f.Sets[1]
	f.Sets[0].Spec.Replicas, f.Sets[0].Status.AvailableReplicas, next.Spec.Replicas, next.Status.AvailableReplicas = 0, 1, 3, 3
	f.Machines = []*v1alpha1.Machine{f.Machines[0], member(next, "pool-b-1"), member(next, "pool-b-2"), member(next, "pool-b-3")}
}

// preserves preserves a Machine.
func preserves(i int) given {
	return func(f *Facts) { f.Machines[i].Status.CurrentStatus.PreserveExpiryTime = ptr.To(ago(-time.Hour)) }
}

func allOf(changes ...given) given {
	return func(f *Facts) {
		for _, change := range changes {
			change(f)
		}
	}
}

// withoutMachines removes the first n Machines.
func withoutMachines(n int) given {
	return func(f *Facts) { f.Machines = f.Machines[n:] }
}

// inPlace sets the strategy for in-place updates. The first set creates no Machines.
func inPlace(f *Facts) {
	f.Deployment.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{
		Type: v1alpha1.InPlaceUpdateMachineDeploymentStrategyType,
		InPlaceUpdate: &v1alpha1.InPlaceUpdateMachineDeployment{
			UpdateConfiguration: v1alpha1.UpdateConfiguration{MaxSurge: ptr.To(intstr.FromInt32(0))}, OrchestrationType: v1alpha1.OrchestrationTypeAuto,
		},
	}
	f.Sets[0].Labels = map[string]string{v1alpha1.LabelKeyMachineSetScaleUpDisabled: "true"}
}

// updates sets the state of the in-place update of a Machine's node.
func updates(i int, phase v1alpha1.MachinePhase, reason string) given {
	return func(f *Facts) {
		status := &f.Machines[i].Status
		status.CurrentStatus = v1alpha1.CurrentStatus{Phase: phase, LastUpdateTime: ago(time.Minute)}
		status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
			{Type: v1alpha1.NodeInPlaceUpdate, Status: corev1.ConditionTrue, Reason: reason, LastTransitionTime: ago(time.Minute)},
		}
	}
}

func setCondition(kind v1alpha1.MachineSetConditionType, reason, message string) given {
	return func(f *Facts) {
		f.Sets[0].Status.Conditions = []v1alpha1.MachineSetCondition{{Type: kind, Status: v1alpha1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: ago(time.Hour)}}
	}
}

func deploymentCondition(kind v1alpha1.MachineDeploymentConditionType, status v1alpha1.ConditionStatus, reason, message string) given {
	return func(f *Facts) {
		f.Deployment.Status.Conditions = []v1alpha1.MachineDeploymentCondition{{
			Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: ago(time.Hour), LastUpdateTime: ago(5 * time.Minute),
		}}
	}
}

// deploymentIsDeleting sets the deletion of the deployment, and additional finalizers.
func deploymentIsDeleting(finalizers ...string) given {
	return func(f *Facts) {
		f.Deployment.DeletionTimestamp, f.Deployment.Finalizers = ptr.To(ago(time.Minute)), append([]string{v1alpha1.FinalizerMCM}, finalizers...)
	}
}

func poolEvent(kind, name, of, reason, message string, since time.Duration) corev1.Event {
	return corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: "machines", Name: name},
		Type:           of, Reason: reason, Message: message, LastTimestamp: ago(since), Count: 1,
	}
}

// backOffEvent returns the event of a set that started to wait for 40 s some time ago.
func backOffEvent(set string, times int, since time.Duration) corev1.Event {
	event := poolEvent(explain.KindSet, set, corev1.EventTypeWarning, "BackOff",
		fmt.Sprintf("Machines failed before they joined, %d times in a row: the next are created in 40s at the earliest", times), since)
	event.Annotations = map[string]string{v1alpha1.EventAnnotationUntil: now.Add(40*time.Second - since).Format(time.RFC3339)}
	return event
}

// backsOff adds such an event. last is the description of the Machine that failed last, and code is its error code.
func backsOff(since time.Duration, last, code string) given {
	return func(f *Facts) {
		event := backOffEvent("pool-a", 5, since)
		event.Message += last
		if last != "" {
			event.Annotations[v1alpha1.EventAnnotationObjects] = "pool-a-z"
		}
		if code != "" {
			event.Annotations[v1alpha1.EventAnnotationCode] = code
		}
		f.Events = append(f.Events, event)
	}
}

// failing makes the creation of a Machine fail because of missing capacity.
func failing(i int, since time.Duration) given {
	return func(f *Facts) {
		failing := f.Machines[i]
		failing.Spec.ProviderID, failing.Labels = "", nil
		failing.Status.CurrentStatus = v1alpha1.CurrentStatus{Phase: v1alpha1.MachineCrashLoopBackOff, LastUpdateTime: ago(since)}
		failing.Status.LastOperation = v1alpha1.LastOperation{
			Type: create, State: failed, ErrorCode: "ResourceExhausted", LastUpdateTime: ago(since),
			Description: messages.Provider + "machine codes error: code = [ResourceExhausted] message = [no capacity for " + failing.Name + "]",
		}
		f.Examples[failing.Name] = explain.MachineFacts{Key: types.NamespacedName{Namespace: "machines", Name: failing.Name}, Machine: failing, Set: f.Sets[0]}
	}
}

// rolls adds a set with a later template and one Machine.
func rolls(f *Facts) {
	next := f.Sets[0].DeepCopy()
	next.Name, next.UID, next.Annotations = "pool-b", "next", map[string]string{v1alpha1.AnnotationKeyRevision: "2"}
	next.Spec.Replicas, next.Spec.Template.Spec.Class.Name = 1, "pool-v2"
	next.Status.AvailableReplicas = 1
	f.Deployment.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: "2"}
	f.Deployment.Spec.Template.Spec.Class.Name = "pool-v2"
	f.Sets = append(f.Sets, next)
	f.Machines = append(f.Machines, member(next, "pool-b-1"))
}

// otherClassNamed sets another class in the template. Machines get it without being replaced if their VMs can be
// updated.
func otherClassNamed(strategy liveupdate.Strategy) given {
	return func(f *Facts) {
		f.Deployment.Spec.Template.Spec.Class.Name = "pool-v2"
		metav1.SetMetaDataAnnotation(&f.Deployment.ObjectMeta, v1alpha1.AnnotationKeyUpdateStrategy, string(strategy))
	}
}

// driverReports adds the driver's result about an update to that class: tags can be updated, and the replacements
// need a new VM.
func driverReports(i int, replacements []string) given {
	return func(f *Facts) {
		metav1.SetMetaDataAnnotation(&f.Machines[i].ObjectMeta, v1alpha1.AnnotationKeyUpdateClass, "pool-v2")
		class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Name: "pool-v2"}}
		liveupdate.State{}.Queried(class, []string{"tags"}, nil, replacements).Write(f.Machines[i])
	}
}

// TestDeployment_ExplainsOnlySomeMachines checks that only some Machines with different problems are explained, and that
// the others are counted.
func TestDeployment_ExplainsOnlySomeMachines(t *testing.T) {
	many := Explain(facts(explain.KindDeployment, func(f *Facts) {
		for i := range 2 * MaxExamples {
			machine := member(f.Sets[0], "pool-a-9"+strconv.Itoa(i))
			machine.Status.CurrentStatus.Phase = v1alpha1.MachineFailed
			machine.Status.LastOperation = v1alpha1.LastOperation{State: failed, ErrorCode: codes.Code(i + 1).String()}
			f.Machines = append(f.Machines, machine)
		}
	}), now)
	explained.NamesOurResources(t, many)
	if last := many.Why[MaxExamples]; last.Cause != report.Other || !strings.Contains(last.Text, "4 machines have other problems") {
		t.Errorf("text about the others: %q", last.Text)
	}
}

// named marks a Machine as an autoscaler does when it names it for deletion, and cordons its node.
func named(i int) given {
	return func(f *Facts) {
		machine := f.Machines[i]
		machine.Annotations = map[string]string{
			v1alpha1.AnnotationKeyMachinePriority:       "1",
			v1alpha1.AnnotationKeyMarkedForDeletionTime: ago(5 * time.Minute).UTC().Format(time.RFC3339),
		}
		node := &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}
		node.Name = machine.Name
		f.Examples[machine.Name] = explain.MachineFacts{
			Key: types.NamespacedName{Namespace: machine.Namespace, Name: machine.Name}, Machine: machine, Set: f.Sets[0], Deployment: f.Deployment,
			Target: explain.Target{Node: node},
		}
	}
}
