package explain

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// givenPool changes the facts of a pool that is well.
type givenPool func(f *PoolFacts)

// poolSituation is one that an operator may ask about.
type poolSituation struct {
	kind    string
	given   givenPool
	verdict Verdict
	// cause of the first finding; empty if there is none.
	cause Cause
}

var poolSituations = map[string]poolSituation{
	"set-complete": {kindSet, allOf(), Healthy, ""},
	"set-empty": {kindSet, func(f *PoolFacts) {
		f.Sets[0].Spec.Replicas, f.Sets[0].Status.AvailableReplicas, f.Machines = 0, 0, nil
	}, Healthy, ""},
	"set-unseen":     {kindSet, func(f *PoolFacts) { f.Sets[0].Generation = 4; f.Sets[0].Spec.Replicas = 5 }, Incomplete, NotLookedAt},
	"set-growing":    {kindSet, func(f *PoolFacts) { f.Sets[0].Spec.Replicas = 5 }, Incomplete, Scaling},
	"set-shrinking":  {kindSet, func(f *PoolFacts) { f.Sets[0].Spec.Replicas = 2 }, Incomplete, Scaling},
	"set-no-manager": {kindSet, func(f *PoolFacts) { ofLease(f, "", 40*time.Minute) }, Healthy, NoManager},
	"set-invalid":    {kindSet, allOf(setSays(v1alpha1.MachineSetReplicaFailure, "InvalidSpec", "spec.selector: Required value: which machines are the set's"), func(f *PoolFacts) { f.Sets[0].Generation = 4 }), Healthy, InvalidSpec},
	"set-quota":      {kindSet, allOf(setSays(v1alpha1.MachineSetReplicaFailure, "FailedCreate", `creating machines: machines.machine.sapcloud.io "pool-a-*" is forbidden: exceeded quota`), lacks(1)), Incomplete, SetBlocked},
	"set-blocked":    {kindSet, allOf(setSays(v1alpha1.MachineSetReplicaFailure, "FailedCreate", "creating machines: metadata.labels: Invalid value"), lacks(3), func(f *PoolFacts) { f.Sets[0].Generation = 4 }), Incomplete, SetBlocked},
	"set-frozen":     {kindSet, allOf(setSays(v1alpha1.MachineSetFrozen, "OverShootingReplicaCount", "9 machines exist, which is no less than the limit of 6"), lacks(1)), Incomplete, Frozen},
	"set-label-frozen": {kindSet, allOf(func(f *PoolFacts) {
		f.Sets[0].Labels, f.Deployment = map[string]string{v1alpha1.LabelKeyFreeze: "True"}, nil
	}, lacks(1)), Incomplete, Frozen},
	"set-scale-up-off": {kindSet, allOf(func(f *PoolFacts) {
		f.Sets[0].Labels = map[string]string{v1alpha1.LabelKeyMachineSetScaleUpDisabled: ""}
	}, lacks(1)), Incomplete, ScaleUpDisabled},
	"set-back-off":    {kindSet, allOf(backsOff(30*time.Second), lacks(1)), Incomplete, BackOff},
	"set-never-joins": {kindSet, allOf(backsOff(30*time.Second, messages.LastFailed+"pool-a-z: Machine pool-a-z failed to join the cluster in 20 minutes."), lacks(1)), Incomplete, BackOff},
	"set-no-credit":   {kindSet, allOf(backsOff(30*time.Second, messages.LastFailed+"pool-a-z: "+messages.Provider+"machine codes error: code = [ResourceExhausted] message = [zone-1: is full]"), lacks(1)), Incomplete, BackOff},
	"set-backed-off":  {kindSet, allOf(backsOff(50*time.Second), lacks(1)), Incomplete, Scaling},
	"set-restarted":   {kindSet, allOf(backsOff(30*time.Second), lacks(1), func(f *PoolFacts) { ofLease(f, "new", 10*time.Second) }), Incomplete, Scaling},
	"set-min-ready": {kindSet, func(f *PoolFacts) {
		f.Sets[0].Spec.MinReadySeconds, f.Sets[0].Status.AvailableReplicas = 600, 2
		f.Machines[0].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: ago(time.Minute)}}
		f.Machines[0].Status.CurrentStatus.LastUpdateTime = ago(time.Minute)
	}, Incomplete, MinReady},
	"set-overlap": {kindSet, setSays("SelectorOverlap", "SelectorOverlap", "spec.selector: the same machines are selected by other. Give each set a label of its own."), Healthy, Overlap},
	"set-failing": {kindSet, allOf(failing(0, 3*time.Minute), failing(1, time.Minute)), Incomplete, DriverError},
	"set-unread":  {kindSet, allOf(failing(0, 3*time.Minute), func(f *PoolFacts) { f.Examples = nil }), Incomplete, DriverError},
	"set-deleting": {kindSet, func(f *PoolFacts) {
		f.Sets[0].DeletionTimestamp, f.Sets[0].Finalizers = ptr.To(ago(time.Minute)), []string{v1alpha1.FinalizerMCM}
		for i := range f.Machines {
			m := &f.Machines[i]
			m.DeletionTimestamp, m.Finalizers = ptr.To(ago(time.Minute)), []string{v1alpha1.FinalizerMCM}
			m.Status.CurrentStatus.Phase = v1alpha1.MachineTerminating
			m.Status.LastOperation = v1alpha1.LastOperation{Type: v1alpha1.MachineOperationDelete, State: works, LastUpdateTime: ago(30 * time.Second), Description: "Drain successful. " + messages.DeleteVM}
		}
	}, Deleting, VMRemains},
	"set-deleting-begins": {kindSet, allOf(failing(0, time.Minute), func(f *PoolFacts) {
		f.Sets[0].DeletionTimestamp, f.Sets[0].Finalizers = ptr.To(ago(time.Minute)), []string{v1alpha1.FinalizerMCM}
	}), Deleting, Scaling},
	"set-held": {kindSet, func(f *PoolFacts) {
		f.Sets[0].DeletionTimestamp, f.Sets[0].Finalizers, f.Machines = ptr.To(ago(time.Minute)), []string{"example.com/backup"}, nil
	}, Deleting, Finalizer},
	"set-orphaning": {kindSet, func(f *PoolFacts) {
		f.Sets[0].DeletionTimestamp, f.Sets[0].Finalizers = ptr.To(ago(time.Minute)), []string{v1alpha1.FinalizerMCM, metav1.FinalizerOrphanDependents}
	}, Deleting, Finalizer},
	"set-mistyped": {kindSet, func(f *PoolFacts) { f.Sets, f.Machines, f.Names = nil, nil, []string{"pool-b"} }, NotFound, ""},
	"set-gone": {kindSet, func(f *PoolFacts) {
		f.Sets, f.Machines = nil, nil
		f.Events = []corev1.Event{poolEvent(kindSet, "pool-a", corev1.EventTypeNormal, "SuccessfulDelete", "Deleted 1 machine (pool-a-1): the machine set is being deleted", time.Minute)}
	}, Gone, ""},

	"set-unlisted":                {kindSet, unlisted("Machine"), Unknown, ""},
	"deployment-unlisted":         {kindDeployment, unlisted("Machine"), Unknown, ""},
	"deployment-unlisted-lacks":   {kindDeployment, allOf(unlisted("MachineSet"), func(f *PoolFacts) { f.Deployment.Status.AvailableReplicas = 1 }), Unknown, ""},
	"deployment-unlisted-paused":  {kindDeployment, allOf(rolls, unlisted("MachineSet"), func(f *PoolFacts) { f.Deployment.Spec.Paused, f.Deployment.Status.UpdatedReplicas = true, 1 }), Unknown, Paused},
	"deployment-unlisted-leaving": {kindDeployment, allOf(unlisted("MachineSet"), deploymentLeaves()), Deleting, ""},
	"deployment-preserved":        {kindDeployment, allOf(rolled, keeps(0)), Healthy, ""},
	"deployment-preserved-and-old": {kindDeployment, allOf(rolled, keeps(0), func(f *PoolFacts) {
		f.Sets[0].Spec.Replicas, f.Machines = 1, append(f.Machines, member(&f.Sets[0], "pool-a-2"))
	}), Incomplete, Rollout},
	"deployment-preserved-instead": {kindDeployment, allOf(rolled, keeps(0), func(f *PoolFacts) { f.Sets[1].Status.AvailableReplicas = 2 }), Incomplete, Scaling},
	"set-preserved":                {kindSet, allOf(keeps(2), func(f *PoolFacts) { f.Sets[0].Spec.Replicas = 2 }), Healthy, ""},
	"set-node-not-ready": {kindSet, func(f *PoolFacts) {
		f.Machines[0].Status.CurrentStatus = v1alpha1.CurrentStatus{Phase: v1alpha1.MachinePending, LastUpdateTime: ago(time.Minute)}
		f.Machines[0].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "no network", LastTransitionTime: ago(time.Minute)}}
	}, Incomplete, NodeUnhealthy},
	"deployment-leaving": {kindDeployment, allOf(deploymentLeaves(metav1.FinalizerDeleteDependents), func(f *PoolFacts) {
		f.Sets[0].DeletionTimestamp, f.Sets[0].Finalizers, f.Machines = ptr.To(ago(time.Minute)), []string{v1alpha1.FinalizerMCM}, nil
	}), Deleting, Other},
	"deployment-set-held": {kindDeployment, allOf(deploymentLeaves(), func(f *PoolFacts) {
		f.Sets[0].DeletionTimestamp, f.Sets[0].Finalizers, f.Machines = ptr.To(ago(time.Minute)), []string{"example.com/backup"}, nil
	}), Deleting, Finalizer},
	"deployment-orphaning":     {kindDeployment, deploymentLeaves(metav1.FinalizerOrphanDependents), Deleting, Finalizer},
	"deployment-complete":      {kindDeployment, allOf(), Healthy, ""},
	"deployment-invalid":       {kindDeployment, deploymentSays(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "InvalidSpec", "spec.selector: Required value: which machines are the deployment's"), Healthy, InvalidSpec},
	"deployment-all":           {kindDeployment, deploymentSays(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "SelectingAll", "spec.selector: the empty selector selects all machines; nothing is done until it names labels."), Healthy, InvalidSpec},
	"deployment-in-place":      {kindDeployment, allOf(rolls, deploymentSays(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "NotSupported", "The template changed, and the strategy InPlaceUpdate is not supported yet.")), Incomplete, NotSupported},
	"deployment-overlap":       {kindDeployment, deploymentSays("SelectorOverlap", v1alpha1.ConditionTrue, "SelectorOverlap", "spec.selector: the same machines are selected by other. Give each deployment a label of its own."), Healthy, Overlap},
	"deployment-released":      {kindDeployment, deploymentSays("SetReleased", v1alpha1.ConditionTrue, "SetReleased", "spec.selector: it does not match machine sets that were the deployment's: pool-0 (machines: 3). They keep their machines, which are neither counted nor updated here. Delete them, or select them again."), Healthy, Released},
	"deployment-no-way-back":   {kindDeployment, allOf(rolls, failing(3, time.Minute), deploymentSays("RollbackRefused", v1alpha1.ConditionTrue, "DeploymentRollbackRevisionNotFound", "spec.rollbackTo.revision: there is no machine set of revision 7; the template stays that of revision 2.")), Incomplete, DriverError},
	"deployment-set-overlap":   {kindDeployment, setSays("SelectorOverlap", "SelectorOverlap", "spec.selector: the same machines are selected by other. Give each set a label of its own."), Healthy, Overlap},
	"deployment-rolling":       {kindDeployment, allOf(rolls, deploymentSays(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionTrue, "MachineSetUpdated", `MachineSet "pool-b" is progressing.`)), Incomplete, Rollout},
	"deployment-stalled":       {kindDeployment, allOf(rolls, deploymentSays(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "ProgressDeadlineExceeded", `MachineSet "pool-b" has timed out progressing.`), failing(3, time.Minute)), Incomplete, DriverError},
	"deployment-stalled-why":   {kindDeployment, allOf(rolls, deploymentSays(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "ProgressDeadlineExceeded", `MachineSet "pool-b" has timed out progressing.`)), Incomplete, Stalled},
	"deployment-old-backs-off": {kindDeployment, allOf(rolls, backsOff(30*time.Second), failing(3, time.Minute)), Incomplete, DriverError},
	"deployment-new-first": {kindDeployment, allOf(rolls, failing(3, time.Minute), func(f *PoolFacts) {
		f.Machines[0].Status.CurrentStatus.Phase, f.Machines[1].Status.CurrentStatus.Phase = v1alpha1.MachineUnknown, v1alpha1.MachineUnknown
	}), Incomplete, DriverError},
	"deployment-refreshed": {kindDeployment, func(f *PoolFacts) {
		f.Events = []corev1.Event{
			poolEvent(kindDeployment, "pool", corev1.EventTypeNormal, "ScalingMachineSet", "Scaled up machine set pool-a to 3: the deployment wants 3 machines", 2*time.Minute),
			poolEvent(kindDeployment, "pool", corev1.EventTypeNormal, "RefreshedMachineSet", "Refreshed machine set pool-a: its annotations follow those of the deployment", time.Minute),
		}
	}, Healthy, ""},
	"deployment-paused":    {kindDeployment, allOf(rolls, func(f *PoolFacts) { f.Deployment.Spec.Paused = true }, deploymentSays(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionUnknown, "DeploymentPaused", "Deployment is paused")), Incomplete, Paused},
	"deployment-idle":      {kindDeployment, func(f *PoolFacts) { f.Deployment.Spec.Paused = true }, Healthy, ""},
	"deployment-frozen":    {kindDeployment, allOf(setSays(v1alpha1.MachineSetFrozen, "OverShootingReplicaCount", "9 machines exist, which is no less than the limit of 6"), lacks(1)), Incomplete, Frozen},
	"deployment-no-set":    {kindDeployment, func(f *PoolFacts) { f.Sets, f.Machines = nil, nil }, Incomplete, Scaling},
	"deployment-set-fails": {kindDeployment, allOf(func(f *PoolFacts) { f.Sets, f.Machines = nil, nil }, deploymentSays(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "MachineSetCreateError", "creating a machine set: forbidden")), Incomplete, SetBlocked},
	"deployment-mutated":   {kindDeployment, allOf(func(f *PoolFacts) { f.Sets, f.Machines = nil, nil }, deploymentSays(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "TemplateMutated", "spec.template: the API server changes the template of a new machine set (labels)")), Incomplete, SetBlocked},
	"deployment-unmarked":  {kindDeployment, deploymentSays(v1alpha1.MachineDeploymentReplicaFailure, v1alpha1.ConditionTrue, "MachineMarkError", "marking machine pool-b-1: forbidden"), Healthy, SetBlocked},
}

// unlisted has a kind not be readable. What is seen of it is in the status of the others.
func unlisted(kind string) givenPool {
	return func(f *PoolFacts) {
		if kind == kindSet {
			f.Sets, f.SetsUnread = nil, true
		}
		f.Machines, f.MachinesUnread = nil, true
		f.Deployment.Status.Replicas, f.Deployment.Status.UpdatedReplicas, f.Deployment.Status.ReadyReplicas, f.Deployment.Status.AvailableReplicas = 3, 3, 3, 3
		f.Unread = []string{kind + "List: forbidden"}
	}
}

// rolled ends a rollout, but for the first Machine of the old set.
func rolled(f *PoolFacts) {
	rolls(f)
	next := &f.Sets[1]
	f.Sets[0].Spec.Replicas, f.Sets[0].Status.AvailableReplicas, next.Spec.Replicas, next.Status.AvailableReplicas = 0, 1, 3, 3
	f.Machines = []v1alpha1.Machine{f.Machines[0], member(next, "pool-b-1"), member(next, "pool-b-2"), member(next, "pool-b-3")}
}

// keeps preserves a Machine.
func keeps(i int) givenPool {
	return func(f *PoolFacts) { f.Machines[i].Status.CurrentStatus.PreserveExpiryTime = ptr.To(ago(-time.Hour)) }
}

// pool are the facts of three Machines that run.
func pool(kind string, change givenPool) PoolFacts {
	f := facts()
	deployment, set := f.Owners.Deployment, f.Owners.Set
	deployment.UID, deployment.Generation, deployment.CreationTimestamp = "deployment", 3, ago(time.Hour)
	deployment.Spec.Replicas, deployment.Status.ObservedGeneration = 3, 3
	deployment.Spec.ProgressDeadlineSeconds = ptr.To[int32](600)
	set.Generation, set.CreationTimestamp = 3, ago(time.Hour)
	set.Status = v1alpha1.MachineSetStatus{ObservedGeneration: 3, Replicas: 3, ReadyReplicas: 3, AvailableReplicas: 3}
	for _, spec := range []*v1alpha1.MachineSpec{&set.Spec.Template.Spec, &deployment.Spec.Template.Spec} {
		spec.Class = v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "pool-v1"}
	}
	made := PoolFacts{Kind: kind, Key: types.NamespacedName{Namespace: "machines", Name: deployment.Name}, Deployment: deployment, Sets: []v1alpha1.MachineSet{*set}, Examples: map[string]Facts{}}
	if kind == kindSet {
		made.Key.Name = set.Name
	}
	for _, suffix := range []string{"1", "2", "3"} {
		made.Machines = append(made.Machines, member(set, "pool-a-"+suffix))
	}
	change(&made)
	return made
}

// member is a Machine of a set that runs.
func member(set *v1alpha1.MachineSet, name string) v1alpha1.Machine {
	machine := *facts().Machine
	machine.Name, machine.UID, machine.Spec.ProviderID = name, types.UID(name), "cloud:///"+name
	machine.Labels = map[string]string{v1alpha1.NodeLabelKey: name}
	machine.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, v1alpha1.SchemeGroupVersion.WithKind(kindSet))}
	return machine
}

func allOf(changes ...givenPool) givenPool {
	return func(f *PoolFacts) {
		for _, change := range changes {
			change(f)
		}
	}
}

// lacks takes Machines away.
func lacks(n int) givenPool {
	return func(f *PoolFacts) { f.Machines = f.Machines[n:] }
}

func setSays(kind v1alpha1.MachineSetConditionType, reason, message string) givenPool {
	return func(f *PoolFacts) {
		f.Sets[0].Status.Conditions = []v1alpha1.MachineSetCondition{{Type: kind, Status: v1alpha1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: ago(time.Hour)}}
	}
}

func deploymentSays(kind v1alpha1.MachineDeploymentConditionType, status v1alpha1.ConditionStatus, reason, message string) givenPool {
	return func(f *PoolFacts) {
		f.Deployment.Status.Conditions = []v1alpha1.MachineDeploymentCondition{{
			Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: ago(time.Hour), LastUpdateTime: ago(5 * time.Minute),
		}}
	}
}

// deploymentLeaves has the deployment be deleted, and held by those finalizers too.
func deploymentLeaves(finalizers ...string) givenPool {
	return func(f *PoolFacts) {
		f.Deployment.DeletionTimestamp, f.Deployment.Finalizers = ptr.To(ago(time.Minute)), append([]string{v1alpha1.FinalizerMCM}, finalizers...)
	}
}

func poolEvent(kind, name, of, reason, message string, since time.Duration) corev1.Event {
	return corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: "machines", Name: name},
		Type:           of, Reason: reason, Message: message, LastTimestamp: ago(since), Count: 1,
	}
}

func backsOff(since time.Duration, last ...string) givenPool {
	return func(f *PoolFacts) {
		f.Events = append(f.Events, poolEvent(kindSet, "pool-a", corev1.EventTypeWarning, "BackOff",
			"Machines failed before they joined, 5 times in a row: the next are made in 40s at the earliest"+strings.Join(last, ""), since))
	}
}

func ofLease(f *PoolFacts, holder string, acquired time.Duration) {
	var machine Facts
	lease(holder, min(acquired, time.Second), acquired)(&machine)
	f.Lease = machine.Lease
}

// failing has a Machine lack capacity.
func failing(i int, since time.Duration) givenPool {
	return func(f *PoolFacts) {
		machine := &f.Machines[i]
		machine.Spec.ProviderID, machine.Labels = "", nil
		machine.Status.CurrentStatus = v1alpha1.CurrentStatus{Phase: v1alpha1.MachineCrashLoopBackOff, LastUpdateTime: ago(since)}
		machine.Status.LastOperation = v1alpha1.LastOperation{
			Type: create, State: failed, ErrorCode: "ResourceExhausted", LastUpdateTime: ago(since),
			Description: messages.Provider + "machine codes error: code = [ResourceExhausted] message = [no room for " + machine.Name + "]",
		}
		known := facts()
		known.Machine, known.Key.Name, known.Target = machine, machine.Name, Target{}
		known.Owners.Set = &f.Sets[0]
		f.Examples[machine.Name] = known
	}
}

// rolls adds a set of a newer template, with one Machine.
func rolls(f *PoolFacts) {
	next := *f.Sets[0].DeepCopy()
	next.Name, next.UID, next.Annotations = "pool-b", "next", map[string]string{v1alpha1.AnnotationKeyRevision: "2"}
	next.Spec.Replicas, next.Spec.Template.Spec.Class.Name = 1, "pool-v2"
	next.Status.AvailableReplicas = 1
	f.Deployment.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: "2"}
	f.Deployment.Spec.Template.Spec.Class.Name = "pool-v2"
	f.Sets = append(f.Sets, next)
	f.Machines = append(f.Machines, member(&next, "pool-b-1"))
}

// TestExplainPool: what an operator reads in each situation. Golden files hold it; -update
// writes them.
func TestExplainPool(t *testing.T) {
	files := map[string]bool{}
	for name, s := range poolSituations {
		files[name+".txt"] = true
		t.Run(name, func(t *testing.T) {
			report := ExplainPool(pool(s.kind, s.given), now)
			if report.Verdict != s.verdict {
				t.Errorf("verdict %s, want %s", report.Verdict, s.verdict)
			}
			cause := Cause("")
			if len(report.Why) > 0 {
				cause = report.Why[0].Cause
			}
			if cause != s.cause {
				t.Errorf("the first finding is %q, want %q: %v", cause, s.cause, report.Why)
			}
			var text bytes.Buffer
			if err := Print(&text, report); err != nil {
				t.Fatal(err)
			}
			isGolden(t, filepath.Join("testdata/pools", name+".txt"), text.String())
		})
	}
	onlyThese(t, "testdata/pools", files)
}

// isGolden compares a text with a golden file, or writes it.
func isGolden(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("text (-want +got; -update writes it):\n%s", diff)
	}
}

// onlyThese fails if a folder has a golden file that belongs to no situation.
func onlyThese(t *testing.T, folder string, files map[string]bool) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !files[entry.Name()] && !entry.IsDir() {
			t.Errorf("%s/%s belongs to no situation", folder, entry.Name())
		}
	}
}
