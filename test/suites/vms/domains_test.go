package vms

import (
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestVirtualMachine_StaysInFailureDomain checks that a failure domain is a zone of hosts, or a single host without a
// zone. The name of a host in a zone is not a failure domain.
func TestVirtualMachine_StaysInFailureDomain(t *testing.T) {
	tier.All(t)
	c := up(t, "--hosts", "2")
	zone := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"topology.kubernetes.io/zone":"rack-7"}}}`))
	host := &corev1.Node{}
	host.Name = "host-1"
	c.eventually(joining, func(g gomega.Gomega) { // hosts register when the control plane is ready
		g.Expect(c.client.Patch(t.Context(), host, zone)).To(gomega.Succeed())
	})
	hosts := map[string]string{"rack-7": "host-1", "host-2": "host-2"}
	for domain := range hosts {
		c.pool("in-"+domain, 2, c.kernelBoot()+`,"failureDomain":"`+domain+`"`)
	}
	c.pool("in-host-1", 1, c.kernelBoot()+`,"failureDomain":"host-1"`)

	c.eventually(joining, func(g gomega.Gomega) {
		vms := &vmv1alpha1.VirtualMachineList{}
		g.Expect(c.client.List(t.Context(), vms)).To(gomega.Succeed())
		placed := map[string]int{}
		for _, vm := range vms.Items {
			want, known := hosts[vm.Spec.FailureDomain]
			if !known {
				continue // it is rejected, see below
			}
			pod := &corev1.Pod{}
			g.Expect(c.client.Get(t.Context(), client.ObjectKey{Namespace: vm.Namespace, Name: vm.Status.ActivePodName}, pod)).To(gomega.Succeed())
			g.Expect(pod.Spec.NodeName).To(gomega.Equal(want), "host of a VM in "+vm.Spec.FailureDomain)
			placed[vm.Spec.FailureDomain]++
		}
		g.Expect(placed).To(gomega.Equal(map[string]int{"rack-7": 2, "host-2": 2}))

		machines := &v1alpha1.MachineList{}
		g.Expect(c.client.List(t.Context(), machines, client.MatchingLabels{"name": "in-host-1"})).To(gomega.Succeed())
		g.Expect(machines.Items).To(gomega.HaveLen(1))
		last := machines.Items[0].Status.LastOperation
		g.Expect(last.ErrorCode).To(gomega.Equal(codes.ResourceExhausted.String()), last.Description)
		g.Expect(last.Description).To(gomega.ContainSubstring("affinity"))
	})
}
