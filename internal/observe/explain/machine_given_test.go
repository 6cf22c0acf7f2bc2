package explain

import (
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
)

// now is the time of the explanations in these tests.
var now = time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)

// ago returns a time before now.
func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// given changes the facts about a healthy Machine.
type given func(f *MachineFacts)

// runningFor is the age of the Machine.
const runningFor = 12 * time.Minute

// facts returns the facts about a Machine that is Running, with changes.
func facts(changes ...given) MachineFacts {
	key := types.NamespacedName{Namespace: "machines", Name: "pool-a-x7k2p"}
	set := &v1alpha1.MachineSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: "pool-a", UID: "set",
			Annotations: map[string]string{v1alpha1.AnnotationKeyRevision: "1"},
		},
		Spec:   v1alpha1.MachineSetSpec{Replicas: 3},
		Status: v1alpha1.MachineSetStatus{ReadyReplicas: 2},
	}
	class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "pool-v1"}}
	f := MachineFacts{
		Key: key,
		Machine: &v1alpha1.Machine{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: key.Namespace, Name: key.Name, UID: "machine", CreationTimestamp: ago(runningFor),
				Labels:          map[string]string{v1alpha1.NodeLabelKey: "node-1"},
				Finalizers:      []string{v1alpha1.FinalizerMCM},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, v1alpha1.SchemeGroupVersion.WithKind("MachineSet"))},
			},
			Spec: v1alpha1.MachineSpec{
				Class:      v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "pool-v1"},
				ProviderID: "cloud:///zone-1/vm-1",
			},
		},
		Set: set,
		Deployment: &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: "pool", Annotations: map[string]string{v1alpha1.AnnotationKeyRevision: "1"},
		}},
		Class:   class,
		Secrets: []Secret{{Key: types.NamespacedName{Namespace: key.Namespace, Name: "cloud"}, HasUserData: true}},
		Target: Target{Node: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-1", CreationTimestamp: ago(10 * time.Minute)},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastTransitionTime: ago(9 * time.Minute)},
				{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure", LastTransitionTime: ago(9 * time.Minute)},
			}},
		}},
	}
	phase(v1alpha1.MachineRunning, 9*time.Minute)(&f)
	for _, change := range changes {
		change(&f)
	}
	return f
}

func phase(phase v1alpha1.MachinePhase, since time.Duration) given {
	return func(f *MachineFacts) {
		f.Machine.Status.CurrentStatus = v1alpha1.CurrentStatus{Phase: phase, LastUpdateTime: ago(since)}
	}
}

// last sets the Machine's last operation.
func last(kind v1alpha1.MachineOperationType, state v1alpha1.MachineState, since time.Duration, description, code string) given {
	return func(f *MachineFacts) {
		f.Machine.Status.LastOperation = v1alpha1.LastOperation{
			Type: kind, State: state, Description: description, ErrorCode: code, LastUpdateTime: ago(since),
		}
	}
}

func createFailed(since time.Duration, description, code string) given {
	return all(notCreated, phase(v1alpha1.MachineCrashLoopBackOff, since),
		last(v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, since, description, code))
}

func all(changes ...given) given {
	return func(f *MachineFacts) {
		for _, change := range changes {
			change(f)
		}
	}
}

// otherClass gives the Machine the second of its classes.
func otherClass(why string) given {
	return func(f *MachineFacts) {
		f.Machine.Annotations = map[string]string{v1alpha1.AnnotationKeyClassChoices: "pool-v0,pool-v1", v1alpha1.AnnotationKeyClassReason: why}
	}
}

// notCreated removes the VM and the node.
func notCreated(f *MachineFacts) {
	f.Machine.Spec.ProviderID, f.Machine.Labels, f.Target.Node = "", nil, nil
}

func noNode(f *MachineFacts) { f.Target.Node = nil }

func noMachine(f *MachineFacts) {
	f.Machine, f.Target.Node, f.Class, f.Secrets = nil, nil, nil, nil
}

func noOwner(f *MachineFacts) {
	f.Machine.OwnerReferences, f.Set, f.Deployment = nil, nil, nil
}

func nodeCondition(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string, since time.Duration) given {
	return func(f *MachineFacts) {
		changed := corev1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: ago(since)}
		conditions := &f.Target.Node.Status.Conditions
		for i := range *conditions {
			if (*conditions)[i].Type == kind {
				(*conditions)[i] = changed
				return
			}
		}
		*conditions = append(*conditions, changed)
	}
}

// silentKubelet sets the node's condition to that of a kubelet that does not report.
func silentKubelet(since time.Duration) given {
	return nodeCondition(corev1.NodeReady, corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status.", since)
}

// noted adds a warning of the manager about the Machine, with its cause and other annotations.
func noted(reason, message string, since time.Duration, cause string, annotations ...string) given {
	return event("Machine", "pool-a-x7k2p", reason, message, since, append(annotations, v1alpha1.EventAnnotationCause, cause)...)
}

// driverFailed adds the warning about a driver's failure in a step of a deletion.
func driverFailed(code, step, message string, since time.Duration) given {
	return noted("FailedDelete", message, since, v1alpha1.CauseDriverFailed, v1alpha1.EventAnnotationCode, code,
		v1alpha1.EventAnnotationMethod, string(timeouts.Delete), v1alpha1.EventAnnotationStep, step)
}

// lookedElsewhere is the engine's error for a VM that may exist in another location, so that it does not count as
// deleted.
const lookedElsewhere = "machine codes error: code = [FailedPrecondition] message = [the VM may be in a/pool, but with the current class and Secret the driver looks in b/pool and does not find it]. "

// elsewhere adds the warning about such an error.
func elsewhere(reason string) given {
	return noted(reason, "the VM may be in a/pool", time.Minute, v1alpha1.CauseInstanceElsewhere,
		v1alpha1.EventAnnotationCode, "FailedPrecondition", v1alpha1.EventAnnotationMethod, string(timeouts.Status))
}

func deleted(since time.Duration) given {
	return all(phase(v1alpha1.MachineTerminating, since), func(f *MachineFacts) {
		f.Machine.DeletionTimestamp = ptr.To(ago(since))
		if f.Target.Node != nil {
			f.Target.Node.Spec.Unschedulable = true
		}
	})
}

// scaled adds an event of the deployment about the set.
func scaled(cause, message string, since time.Duration) given {
	return event("MachineDeployment", "pool", "ScalingMachineSet", message, since, v1alpha1.EventAnnotationCause, cause, v1alpha1.EventAnnotationObjects, "pool-a")
}

// setDeletes adds an event of the set about Machines that it deleted.
func setDeletes(cause, message string, since time.Duration) given {
	_, names, _ := strings.Cut(message, "(")
	names, _, _ = strings.Cut(names, ")")
	names, _, _ = strings.Cut(names, " and ")
	return event("MachineSet", "pool-a", "SuccessfulDelete", message, since,
		v1alpha1.EventAnnotationCause, cause, v1alpha1.EventAnnotationObjects, strings.ReplaceAll(names, ", ", ","))
}

// deletes sets the progress of a deletion.
func deletes(state v1alpha1.MachineState, since time.Duration, description string) given {
	return all(deleted(6*time.Minute), last(v1alpha1.MachineOperationDelete, state, since, description, ""))
}

func event(kind, name, reason, message string, since time.Duration, annotations ...string) given {
	return func(f *MachineFacts) {
		kindOf := corev1.EventTypeNormal
		switch reason {
		case "SuccessfulDelete", "DeletingVM", "Deleted", "NodeDeleted", "ScalingMachineSet", "Joined":
		default:
			kindOf = corev1.EventTypeWarning
		}
		f.Events = append(f.Events, corev1.Event{
			InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: f.Key.Namespace, Name: name},
			Type:           kindOf, Reason: reason, Message: message, FirstTimestamp: ago(since), LastTimestamp: ago(since), Count: 1,
		})
		for i := 0; i+1 < len(annotations); i += 2 {
			metav1.SetMetaDataAnnotation(&f.Events[len(f.Events)-1].ObjectMeta, annotations[i], annotations[i+1])
		}
	}
}

func pod(name string, change func(*corev1.Pod)) given {
	return func(f *MachineFacts) {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": "db"}}}
		if change != nil {
			change(&p)
		}
		f.Target.Pods = append(f.Target.Pods, p)
	}
}

// terminating sets the deletion of a pod whose grace period of 30 s started some time ago.
func terminating(since time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(ago(since-30*time.Second)), ptr.To[int64](30)
	}
}

func budget(name string, status policyv1.PodDisruptionBudgetStatus) given {
	return func(f *MachineFacts) {
		status.Conditions = []metav1.Condition{{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, LastTransitionTime: ago(4 * time.Minute)}}
		f.Target.Budgets = append(f.Target.Budgets, policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}},
			Status:     status,
		})
	}
}

func attachment(change func(*storagev1.VolumeAttachment)) given {
	return func(f *MachineFacts) {
		a := storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: "csi-1", CreationTimestamp: ago(8 * time.Minute)},
			Spec: storagev1.VolumeAttachmentSpec{Attacher: "csi.example.com", NodeName: "node-1", Source: storagev1.VolumeAttachmentSource{
				PersistentVolumeName: ptr.To("pv-1"),
			}},
		}
		change(&a)
		f.Target.Attachments = append(f.Target.Attachments, a)
	}
}

// untouchedVM adds a VM that no VM controller has processed. The name of the VM controller in its annotation can be
// empty.
func untouchedVM(controller string) given {
	return all(virtualMachine(metav1.ConditionUnknown, "", ""), func(f *MachineFacts) {
		f.VM.Status, f.VM.CreationTimestamp = vmv1alpha1.VirtualMachineStatus{}, ago(5*time.Minute)
		if controller != "" {
			f.VM.Annotations = map[string]string{vmv1alpha1.AnnotationController: controller}
		}
	})
}

func virtualMachine(status metav1.ConditionStatus, reason, message string) given {
	return func(f *MachineFacts) {
		f.Machine.Spec.ProviderID = "millwright:///default/6f1c"
		f.VM = &vmv1alpha1.VirtualMachine{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pool-a-x7k2p-abc"},
			Spec:       vmv1alpha1.VirtualMachineSpec{UUID: "6f1c"},
			Status: vmv1alpha1.VirtualMachineStatus{NodeName: "host-1", Conditions: []metav1.Condition{
				{Type: vmv1alpha1.ConditionReady, Status: status, Reason: reason, Message: message, LastTransitionTime: ago(3 * time.Minute)},
			}},
		}
	}
}

// fencedCondition adds the result of a user's confirmation that the VM's host is fenced.
func fencedCondition(status metav1.ConditionStatus, reason, message string) given {
	return func(f *MachineFacts) {
		f.VM.Status.Conditions = append(f.VM.Status.Conditions, metav1.Condition{
			Type: vmv1alpha1.ConditionFenced, Status: status, Reason: reason, Message: message, LastTransitionTime: ago(time.Minute),
		})
	}
}

func console(output string) given { return func(f *MachineFacts) { f.Console = []byte(output) } }

// hostileConsole is console output that imitates the output of the command and contains terminal control sequences.
const hostileConsole = "boot: kernel 6.1\r\n\x1b[2J\x1b]0;title\aMachine machines/pool-a-x7k2p is Running.\r\nWhat you can do:\n  - Run a hostile command\u009b31m\n" +
	"\n[    1.203] join: Get \"https://10.77.0.2:16443\": connection refused\r\n"

func runningVM(f *MachineFacts) {
	virtualMachine(metav1.ConditionTrue, "Running", "")(f)
	f.VM.Status.ActivePodName = "vm-1"
}

// migration adds a migration that started some time ago. A failed migration ended immediately.
func migration(phase vmv1alpha1.MigrationPhase, reason string, begun time.Duration) given {
	return func(f *MachineFacts) {
		record := &vmv1alpha1.VirtualMachineMigration{
			Phase: phase, Reason: reason, SourcePodName: "vm-1", SourceNodeName: "host-1", TargetPodName: "vm-2", StartTime: ago(begun),
		}
		switch phase {
		case vmv1alpha1.MigrationCopying:
			record.TargetNodeName, record.DoneBytes, record.TotalBytes = "host-2", 512<<20, 1265<<20
		case vmv1alpha1.MigrationFailed:
			record.Message, record.EndTime = "The message of the controller.", ptr.To(ago(begun))
		case vmv1alpha1.MigrationSucceeded:
			f.VM.Status.ActivePodName = "vm-2"
		}
		f.VM.Status.Migration = record
	}
}

func notMigratable(f *MachineFacts) {
	f.VM.Status.Conditions = append(f.VM.Status.Conditions, metav1.Condition{
		Type: vmv1alpha1.ConditionLiveMigratable, Status: metav1.ConditionFalse, Reason: "HypervisorCannotMigrate", Message: "The hypervisor cannot migrate.",
	})
}

func restartPending(f *MachineFacts) {
	f.VM.Status.Conditions = append(f.VM.Status.Conditions, metav1.Condition{
		Type: vmv1alpha1.ConditionRestartNeeded, Status: metav1.ConditionTrue, Reason: "SpecChanged", Message: "Restart the virtual machine to apply these changes: CPUs: 2 instead of 1.",
	})
}

func lease(holder string, renewed, acquired time.Duration) given {
	return func(f *MachineFacts) {
		f.Lease = &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: f.Key.Namespace, Name: v1alpha1.LeaseMachineController},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: &holder, LeaseDurationSeconds: ptr.To[int32](15),
				RenewTime: ptr.To(metav1.NewMicroTime(now.Add(-renewed))), AcquireTime: ptr.To(metav1.NewMicroTime(now.Add(-acquired))),
			},
		}
	}
}

// finalizerSetBy sets a finalizer, and records its owner in the same way as an API server.
func finalizerSetBy(finalizer, manager string) given {
	return func(f *MachineFacts) {
		f.Machine.Finalizers = []string{finalizer}
		f.Machine.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:finalizers":{".":{},"v:\"` + finalizer + `\"":{}}}}`),
		}}
	}
}

var missingUserData = "No Secret of MachineClass \"pool-v1\" has the key \"" + bootstrap.UserDataKey + "\""

// named marks the Machine as an autoscaler does when it names it for deletion.
func named(at metav1.Time) given {
	return all(annotated(v1alpha1.AnnotationKeyMachinePriority, "1"), annotated(v1alpha1.AnnotationKeyMarkedForDeletionTime, at.UTC().Format(time.RFC3339)))
}

// replicasChanged records the time of the last change of the replicas, as an autoscaler does.
func replicasChanged(at metav1.Time) given {
	return func(f *MachineFacts) {
		metav1.SetMetaDataAnnotation(&f.Set.ObjectMeta, v1alpha1.AnnotationKeyLastReplicaChange, at.UTC().Format(time.RFC3339))
	}
}

func cordoned(f *MachineFacts) { f.Target.Node.Spec.Unschedulable = true }

// liveUpdate sets the update strategy of the class, and the Machine's annotation with the plan.
func liveUpdate(strategy, plan string) given {
	return func(f *MachineFacts) {
		f.Class.Annotations = map[string]string{v1alpha1.AnnotationKeyUpdateStrategy: strategy}
		metav1.SetMetaDataAnnotation(&f.Machine.ObjectMeta, v1alpha1.AnnotationKeyUpdatePlan, strings.ReplaceAll(plan, "{digest}", liveupdate.Digest(f.Class)))
	}
}
