package vms

import (
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// updateInPlace changes the class of two MachineDeployments with one machine each, whose nodes are updated in
// place. The guest of one restarts as its update: the Machine, VM and node are kept and belong to the new
// MachineSet. The guest of the other stops responding: its update fails, and another Machine replaces it.
func updateInPlace(c *cluster) {
	updated, lame := c.pool("updated", 1, c.kernelBoot(), inPlace), c.pool("lame", 1, c.kernelBoot(), inPlace, hasty)
	stays, goes := c.awaitMachines(updated)[0], c.awaitMachines(lame)[0]
	staysPhases, goesPhases := c.phasesOf(updated, stays), c.phasesOf(lame, goes)
	before, boot := c.vm(c.vmNamed(stays)).UID, c.bootOf(stays)
	c.change(c.vmNamed(goes), func(spec *vmv1alpha1.VirtualMachineSpec) { spec.Mode = vmv1alpha1.ModePause })
	c.renewClass(updated)
	c.renewClass(lame)

	c.eventually(joining, func(g gomega.Gomega) {
		g.Expect(c.settled(g, updated)).To(gomega.ConsistOf(stays))
		g.Expect(updated.Status.UpdatedReplicas).To(gomega.BeEquivalentTo(1))
		node := &corev1.Node{}
		g.Expect(c.client.Get(c.t.Context(), client.ObjectKey{Name: stays}, node)).To(gomega.Succeed())
		g.Expect(node.Spec.Unschedulable).To(gomega.BeFalse())
		g.Expect(node.Labels).NotTo(gomega.HaveKey(v1alpha1.LabelKeyNodeUpdateResult))
		g.Expect(staysPhases()).To(gomega.HaveLen(4))
	})
	if c.bootOf(stays) == boot || c.vm(c.vmNamed(stays)).UID != before {
		c.t.Error("the guest was not restarted, or its VM is another one")
	}
	if diff := cmp.Diff([]v1alpha1.MachinePhase{
		v1alpha1.MachineRunning, v1alpha1.MachineInPlaceUpdating, v1alpha1.MachineInPlaceUpdateSuccessful, v1alpha1.MachineRunning,
	}, staysPhases()); diff != "" {
		c.t.Errorf("phases of the Machine that was updated (-want +got)\n%s", diff)
	}

	c.eventually(joining, func(g gomega.Gomega) {
		g.Expect(c.settled(g, lame)).NotTo(gomega.ContainElement(goes))
		g.Expect(lame.Status.UpdatedReplicas).To(gomega.BeEquivalentTo(1))
		g.Expect(c.vmsOf(g, goes)).To(gomega.BeEmpty())
	})
	failed := []v1alpha1.MachinePhase{
		v1alpha1.MachineRunning, v1alpha1.MachineInPlaceUpdating, v1alpha1.MachineInPlaceUpdateFailed, v1alpha1.MachineFailed, v1alpha1.MachineTerminating,
	}
	if diff := cmp.Diff(failed, goesPhases()); diff != "" {
		c.t.Errorf("phases of the Machine whose update failed (-want +got)\n%s", diff)
	}
	c.delete(updated)
	c.delete(lame)
}

// inPlace makes the MachineDeployment update its nodes in place.
func inPlace(d *v1alpha1.MachineDeployment) {
	d.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{
		Type: v1alpha1.InPlaceUpdateMachineDeploymentStrategyType,
		InPlaceUpdate: &v1alpha1.InPlaceUpdateMachineDeployment{
			OrchestrationType: v1alpha1.OrchestrationTypeAuto, UpdateConfiguration: v1alpha1.UpdateConfiguration{MaxSurge: ptr.To(intstr.FromInt32(0))},
		},
	}
}

// hasty shortens the timeouts of an update to seconds.
func hasty(d *v1alpha1.MachineDeployment) {
	d.Spec.Template.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{
		MachineInPlaceUpdateTimeout: &metav1.Duration{Duration: 2 * time.Second}, MachineHealthTimeout: &metav1.Duration{Duration: time.Second},
	}
}

// bootOf returns the boot ID of a Machine's guest.
func (c *cluster) bootOf(machine string) string {
	c.t.Helper()
	node := &corev1.Node{}
	if err := c.client.Get(c.t.Context(), client.ObjectKey{Name: machine}, node); err != nil {
		c.t.Fatal(err)
	}
	return node.Status.NodeInfo.BootID
}

// renewClass switches a MachineDeployment to a copy of its class with another name.
func (c *cluster) renewClass(pool *v1alpha1.MachineDeployment) {
	c.t.Helper()
	next := &v1alpha1.MachineClass{}
	if err := c.client.Get(c.t.Context(), client.ObjectKey{Namespace: pool.Namespace, Name: pool.Spec.Template.Spec.Class.Name}, next); err != nil {
		c.t.Fatal(err)
	}
	next.ObjectMeta = metav1.ObjectMeta{Namespace: pool.Namespace, Name: pool.Name + "-v2"}
	c.create(next)
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"template":{"spec":{"class":{"name":"`+next.Name+`"}}}}}`))
	if err := c.client.Patch(c.t.Context(), pool, patch); err != nil {
		c.t.Fatal(err)
	}
}
