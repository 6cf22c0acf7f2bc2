package security

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestMachine_WithoutFinalizerLeavesNoVM checks that if a user removes the finalizer of a Machine that is being deleted,
// its orphaned VM is deleted.
func TestMachine_WithoutFinalizerLeavesNoVM(t *testing.T) {
	tier.All(t)
	t.Parallel()
	m := guests(t)
	machine, kept := m.machine("robbed", pool), m.machine("kept", pool)
	m.create(m.admin, machine, kept)
	m.running(machine)
	m.running(kept)
	m.cloud.Fail(sim.Fault{Method: sim.DeleteMachine, Codes: []codes.Code{codes.Unavailable}, Times: -1}) // so that the test is first
	m.delete(machine)
	m.patch(machine, `{"metadata":{"finalizers":null}}`)
	m.gone(m.admin, machine)
	has := func(name string) bool {
		vms, err := m.cloud.VMs()
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(vms, func(vm sim.VM) bool { return vm.Machine == name })
	}
	if !has("robbed") {
		t.Fatal("its VM is gone with it")
	}
	m.cloud.ClearFaults()
	m.eventually("the VM is removed", func() bool { return !has("robbed") })
	m.running(kept)
	if !has("kept") {
		t.Error("the VM of another Machine is removed")
	}
}

// TestFinalizers_OfOthersAreKept checks that the manager removes only its own finalizers, for every kind that has
// them, and that the object exists until others remove theirs.
func TestFinalizers_OfOthersAreKept(t *testing.T) {
	tier.All(t)
	t.Parallel()
	m := guests(t)
	const foreign = "example.com/backup"
	labels := map[string]string{"name": pool}
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: m.meta(pool)}
	deployment.Spec = v1alpha1.MachineDeploymentSpec{Replicas: 1, Selector: &metav1.LabelSelector{MatchLabels: labels}}
	deployment.Spec.Template = v1alpha1.MachineTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: m.machine("", pool).Spec}
	m.create(m.admin, deployment)
	sets, machines := &v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}
	m.eventually("there is a Machine that runs", func() bool {
		for _, list := range []client.ObjectList{sets, machines} {
			if err := m.admin.List(t.Context(), list, client.InNamespace(m.Namespace)); err != nil {
				return false
			}
		}
		return len(sets.Items) == 1 && len(machines.Items) == 1 && machines.Items[0].Status.CurrentStatus.Phase == v1alpha1.MachineRunning
	})
	machine := &machines.Items[0]
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: machine.Labels[v1alpha1.NodeLabelKey]}}
	class, secret := &v1alpha1.MachineClass{ObjectMeta: m.meta(pool)}, &corev1.Secret{ObjectMeta: m.meta(pool)}
	// In the order of their deletion.
	all := []client.Object{node, machine, &sets.Items[0], deployment, class, secret}
	for _, object := range all {
		m.eventually("the manager holds it, and so do others", func() bool {
			if m.admin.Get(t.Context(), client.ObjectKeyFromObject(object), object) != nil || len(object.GetFinalizers()) == 0 {
				return false
			}
			before := object.DeepCopyObject().(client.Object)
			controllerutil.AddFinalizer(object, foreign)
			return m.admin.Patch(t.Context(), object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})) == nil
		})
	}
	m.delete(deployment)
	for _, object := range all {
		if object == client.Object(class) || object == client.Object(secret) {
			m.delete(object)
		}
		m.eventually(object.GetName()+" is held by others only", func() bool {
			err := m.admin.Get(t.Context(), client.ObjectKeyFromObject(object), object)
			return err == nil && !object.GetDeletionTimestamp().IsZero() && slices.Equal(object.GetFinalizers(), []string{foreign})
		})
		before := object.DeepCopyObject().(client.Object)
		object.SetFinalizers(nil)
		if err := m.admin.Patch(t.Context(), object, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
		m.gone(m.admin, object)
	}
}
