package vms

import (
	"testing"
	"time"

	"github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// silence is how long a kubelet must be silent for the controller manager to give its node
// up: 50 s, and a look every 5 s.
const silence = time.Minute

// TestSilentMachineIsReplaced: a guest that is held sends no sign of life. Its Machine is
// Unknown first, then Failed, and another one takes its place.
func TestSilentMachineIsReplaced(t *testing.T) {
	c := up(t, "--hosts", "1", "--machine-health-timeout", "5s")
	pool := c.pool("pool", 1, c.kernelBoot())
	before := c.awaitSettled(pool)[0]
	vms := &vmv1alpha1.VirtualMachineList{}
	if err := c.client.List(t.Context(), vms); err != nil {
		t.Fatal(err)
	}
	pause := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"mode":"Pause"}}`))
	if err := c.client.Patch(t.Context(), &vms.Items[0], pause); err != nil {
		t.Fatal(err)
	}
	c.eventually(silence+soon, func(g gomega.Gomega) {
		machine := &v1alpha1.Machine{}
		g.Expect(c.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: before}, machine)).To(gomega.Succeed())
		g.Expect(machine.Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineUnknown))
	})
	c.eventually(joining, func(g gomega.Gomega) {
		after := c.settled(g, pool)
		g.Expect(after).NotTo(gomega.ContainElement(before))
		g.Expect(c.processes("qemu-system")).To(gomega.HaveLen(1), "QEMUs")
	})
}
