package vms

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// silence is how long a kubelet must be silent until the controller manager marks its node as unreachable: 50 s,
// checked every 5 s.
const silence = time.Minute

// TestMachine_NodeHealthAndExpiry checks machines whose nodes become silent, expire or are drained. The silence takes longest,
// so the other cases run in parallel.
func TestMachine_NodeHealthAndExpiry(t *testing.T) {
	tier.All(t)
	c := up(t)
	outcome := silentMachines(c)
	t.Run("rolling update", func(t *testing.T) { rollingUpdate(c.in(t)) })
	t.Run("update in place", func(t *testing.T) { updateInPlace(c.in(t)) })
	t.Run("drain", func(t *testing.T) { drainedMachines(c.in(t)) })
	t.Run("silence", func(t *testing.T) { outcome(c.in(t)) })
}

// silentMachines stops two guests, so that their nodes become silent and the Machines Unknown. The Machine with
// the short timeout is Failed, and another one replaces it. The Machine whose guest resumes in time is Running
// again, and nothing else happens to it.
func silentMachines(c *cluster) func(*cluster) {
	impatient := func(d *v1alpha1.MachineDeployment) {
		d.Spec.Template.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{
			MachineHealthTimeout: &metav1.Duration{Duration: 5 * time.Second},
		}
	}
	lost, held := c.pool("lost", 1, c.kernelBoot(), impatient), c.pool("held", 1, c.kernelBoot())
	loses, holds := c.awaitMachines(lost)[0], c.awaitMachines(held)[0]
	lostPhases, heldPhases := c.phasesOf(lost, loses), c.phasesOf(held, holds)
	vm := c.vmNamed(holds)
	before := c.sight(vm)
	for _, machine := range []string{loses, holds} {
		c.change(c.vmNamed(machine), func(spec *vmv1alpha1.VirtualMachineSpec) { spec.Mode = vmv1alpha1.ModePause })
	}
	return func(c *cluster) {
		c.eventually(silence+soon, func(g gomega.Gomega) { g.Expect(heldPhases()).To(gomega.HaveLen(2)) })
		c.change(vm, func(spec *vmv1alpha1.VirtualMachineSpec) { spec.Mode = vmv1alpha1.ModeRun })
		c.eventually(soon, func(g gomega.Gomega) {
			g.Expect(c.settled(g, held)).To(gomega.ConsistOf(holds))
			g.Expect(heldPhases()).To(gomega.HaveLen(3))
		})
		if diff := cmp.Diff(before.QEMUs, c.sight(vm).QEMUs); diff != "" {
			c.t.Errorf("other QEMUs run the VM that was held:\n%s", diff)
		}
		if diff := cmp.Diff([]v1alpha1.MachinePhase{v1alpha1.MachineRunning, v1alpha1.MachineUnknown, v1alpha1.MachineRunning}, heldPhases()); diff != "" {
			c.t.Errorf("phases of the Machine that was held (-want +got)\n%s", diff)
		}

		c.eventually(joining, func(g gomega.Gomega) {
			g.Expect(c.settled(g, lost)).NotTo(gomega.ContainElement(loses))
			g.Expect(c.vmsOf(g, loses)).To(gomega.BeEmpty())
		})
		if diff := cmp.Diff([]v1alpha1.MachinePhase{
			v1alpha1.MachineRunning, v1alpha1.MachineUnknown, v1alpha1.MachineFailed, v1alpha1.MachineTerminating,
		}, lostPhases()); diff != "" {
			c.t.Errorf("phases of the Machine that was lost (-want +got)\n%s", diff)
		}
	}
}

// phasesOf records all phases of a Machine from now on.
func (c *cluster) phasesOf(pool *v1alpha1.MachineDeployment, name string) func() []v1alpha1.MachinePhase {
	var seen guarded[[]v1alpha1.MachinePhase]
	c.follow(pool, func(machines map[string]*v1alpha1.Machine) {
		machine := machines[name]
		if machine == nil {
			return
		}
		phase := machine.Status.CurrentStatus.Phase
		seen.change(func(phases []v1alpha1.MachinePhase) []v1alpha1.MachinePhase {
			if len(phases) > 0 && phases[len(phases)-1] == phase {
				return phases
			}
			return append(phases, phase)
		})
	})
	return func() []v1alpha1.MachinePhase { return slices.Clone(seen.get()) }
}
