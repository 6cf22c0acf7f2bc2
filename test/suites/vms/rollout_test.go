package vms

import (
	"fmt"
	"slices"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// rollingUpdate changes the class of three machines. At any time, at most four exist and at least three are
// available. In the end, all VMs and nodes are new.
func rollingUpdate(c *cluster) {
	const desired, surge = 3, 1
	pool := c.pool("roll", desired, c.kernelBoot(), func(d *v1alpha1.MachineDeployment) {
		d.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{
			Type: v1alpha1.RollingUpdateMachineDeploymentStrategyType,
			RollingUpdate: &v1alpha1.RollingUpdateMachineDeployment{UpdateConfiguration: v1alpha1.UpdateConfiguration{
				MaxUnavailable: ptr.To(intstr.FromInt32(0)), MaxSurge: ptr.To(intstr.FromInt32(surge)),
			}},
		}
	})
	old := c.awaitMachines(pool)
	oldVMs := map[string]string{}
	for _, machine := range old {
		oldVMs[machine] = c.vm(c.vmNamed(machine)).Spec.UUID
	}
	var wrong guarded[[]string]
	c.follow(pool, func(machines map[string]*v1alpha1.Machine) {
		available := 0
		for _, machine := range machines {
			if machine.DeletionTimestamp.IsZero() && machine.Status.CurrentStatus.Phase == v1alpha1.MachineRunning {
				available++
			}
		}
		if len(machines) > desired+surge || available < desired {
			wrong.change(func(moments []string) []string { return append(moments, fmt.Sprint(phaseNames(machines))) })
		}
	})

	c.renewClass(pool)
	c.eventually(joining, func(g gomega.Gomega) {
		for _, machine := range c.settled(g, pool) {
			g.Expect(slices.Contains(old, machine)).To(gomega.BeFalse(), machine+" is old")
		}
		nodes := &corev1.NodeList{}
		g.Expect(c.client.List(c.t.Context(), nodes)).To(gomega.Succeed())
		for machine, uuid := range oldVMs {
			g.Expect(c.vmsOf(g, machine)).To(gomega.BeEmpty())
			g.Expect(names(g, nodes)).NotTo(gomega.ContainElement(machine))
			g.Expect(c.processes("-uuid "+uuid)).To(gomega.BeEmpty(), "QEMUs of "+machine)
		}
	})
	for _, moment := range wrong.get() {
		c.t.Errorf("there were more than %d machines, or fewer than %d were available: %s", desired+surge, desired, moment)
	}
	c.delete(pool)
}
