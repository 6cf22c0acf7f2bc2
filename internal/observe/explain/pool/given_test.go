package pool

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
)

// now is the time of the explanations in these tests.
var now = time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)

// ago returns a time before now.
func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

const (
	create     = v1alpha1.MachineOperationCreate
	failed     = v1alpha1.MachineStateFailed
	processing = v1alpha1.MachineStateProcessing
)

// facts returns the facts about a pool of three Machines that are Running.
func facts(kind string, change given) Facts {
	template := v1alpha1.MachineTemplateSpec{Spec: v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "pool-v1"}}}
	revision := map[string]string{v1alpha1.AnnotationKeyRevision: "1"}
	deployment := &v1alpha1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "machines", Name: "pool", UID: "deployment", Generation: 3, CreationTimestamp: ago(time.Hour), Annotations: revision},
		Spec:       v1alpha1.MachineDeploymentSpec{Replicas: 3, Template: template, ProgressDeadlineSeconds: ptr.To[int32](600)},
		Status:     v1alpha1.MachineDeploymentStatus{ObservedGeneration: 3},
	}
	set := &v1alpha1.MachineSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "machines", Name: "pool-a", UID: "set", Generation: 3, CreationTimestamp: ago(time.Hour), Annotations: revision},
		Spec:       v1alpha1.MachineSetSpec{Replicas: 3, Template: template},
		Status:     v1alpha1.MachineSetStatus{ObservedGeneration: 3, Replicas: 3, ReadyReplicas: 3, AvailableReplicas: 3},
	}
	f := Facts{
		Kind: kind, Key: types.NamespacedName{Namespace: "machines", Name: deployment.Name}, Deployment: deployment,
		Sets: []*v1alpha1.MachineSet{set}, Examples: map[string]explain.MachineFacts{},
	}
	if kind == explain.KindSet {
		f.Key.Name = set.Name
	}
	for _, suffix := range []string{"1", "2", "3"} {
		f.Machines = append(f.Machines, member(set, "pool-a-"+suffix))
	}
	change(&f)
	return f
}

// member returns a Machine of a set that is Running.
func member(set *v1alpha1.MachineSet, name string) *v1alpha1.Machine {
	return &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "machines", Name: name, UID: types.UID(name), CreationTimestamp: ago(12 * time.Minute),
			Labels: map[string]string{v1alpha1.NodeLabelKey: name}, Finalizers: []string{v1alpha1.FinalizerMCM},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, v1alpha1.SchemeGroupVersion.WithKind(explain.KindSet))},
		},
		Spec:   v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "pool-v1"}, ProviderID: "cloud:///" + name},
		Status: v1alpha1.MachineStatus{CurrentStatus: v1alpha1.CurrentStatus{Phase: v1alpha1.MachineRunning, LastUpdateTime: ago(9 * time.Minute)}},
	}
}

// poolLease sets the lease of the manager of sets and deployments, which was acquired some time ago.
func poolLease(f *Facts, holder string, acquired time.Duration) {
	f.Lease = &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "", Name: v1alpha1.LeaseMachineController},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: ptr.To[int32](15),
			RenewTime: ptr.To(metav1.NewMicroTime(now.Add(-min(acquired, time.Second)))), AcquireTime: ptr.To(metav1.NewMicroTime(now.Add(-acquired))),
		},
	}
}
