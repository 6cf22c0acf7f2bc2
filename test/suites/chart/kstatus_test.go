package chart

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// TestKstatus_JudgesObjects checks what tools without health checks for Millwright's kinds show, for example kubectl apply
// with an inventory, or Flux without healthCheckExprs: kstatus considers only the deletion, the observed generation, and
// the condition Ready. docs/tasks/gitops.md describes it.
func TestKstatus_JudgesObjects(t *testing.T) {
	t.Parallel()
	deployment := func(observed int64, conditions ...v1alpha1.MachineDeploymentCondition) *v1alpha1.MachineDeployment {
		return &v1alpha1.MachineDeployment{
			ObjectMeta: metav1.ObjectMeta{Name: "pool", Generation: 2}, Spec: v1alpha1.MachineDeploymentSpec{Replicas: 3},
			Status: v1alpha1.MachineDeploymentStatus{ObservedGeneration: observed, Conditions: conditions},
		}
	}
	machine := func(phase v1alpha1.MachinePhase, ready corev1.ConditionStatus) *v1alpha1.Machine {
		m := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "machine", Generation: 1}, Status: v1alpha1.MachineStatus{CurrentStatus: v1alpha1.CurrentStatus{Phase: phase}}}
		if ready != "" {
			m.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		}
		return m
	}
	vm := func(observed int64, ready metav1.ConditionStatus) *vmv1alpha1.VirtualMachine {
		v := &vmv1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm", Generation: 1}, Status: vmv1alpha1.VirtualMachineStatus{ObservedGeneration: observed}}
		if ready != "" {
			v.Status.Conditions = []metav1.Condition{{Type: vmv1alpha1.ConditionReady, Status: ready}}
		}
		return v
	}
	deleted := machine(v1alpha1.MachineRunning, corev1.ConditionTrue)
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	for name, tc := range map[string]struct {
		object any
		want   status.Status
	}{
		// Before the manager has seen it, an object has no status, so kstatus has nothing to wait for.
		"new deployment":              {deployment(0), status.CurrentStatus},
		"changed deployment":          {deployment(1), status.InProgressStatus},
		"rollout":                     {deployment(2, v1alpha1.MachineDeploymentCondition{Type: v1alpha1.MachineDeploymentAvailable, Status: v1alpha1.ConditionFalse}), status.CurrentStatus},
		"rollout without progress":    {deployment(2, v1alpha1.MachineDeploymentCondition{Type: v1alpha1.MachineDeploymentProgressing, Status: v1alpha1.ConditionFalse}), status.CurrentStatus},
		"set without its machines":    {&v1alpha1.MachineSet{ObjectMeta: metav1.ObjectMeta{Generation: 1}, Spec: v1alpha1.MachineSetSpec{Replicas: 3}, Status: v1alpha1.MachineSetStatus{ObservedGeneration: 1}}, status.CurrentStatus},
		"Machine without a node":      {machine(v1alpha1.MachinePending, ""), status.CurrentStatus},
		"Machine without capacity":    {machine(v1alpha1.MachineCrashLoopBackOff, ""), status.CurrentStatus},
		"Machine":                     {machine(v1alpha1.MachineRunning, corev1.ConditionTrue), status.CurrentStatus},
		"Machine of a node not ready": {machine(v1alpha1.MachineUnknown, corev1.ConditionUnknown), status.InProgressStatus},
		"failed Machine":              {machine(v1alpha1.MachineFailed, corev1.ConditionFalse), status.InProgressStatus},
		"deleted Machine":             {deleted, status.TerminatingStatus},
		"new VM":                      {vm(0, ""), status.CurrentStatus},
		"starting VM":                 {vm(1, metav1.ConditionFalse), status.InProgressStatus},
		"VM":                          {vm(1, metav1.ConditionTrue), status.CurrentStatus},
		"lost VM":                     {vm(1, metav1.ConditionUnknown), status.InProgressStatus},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(tc.object)
			if err != nil {
				t.Fatal(err)
			}
			got, err := status.Compute(&unstructured.Unstructured{Object: fields})
			if err != nil || got.Status != tc.want {
				t.Errorf("%+v, %v, want %s", got, err, tc.want)
			}
		})
	}
}
