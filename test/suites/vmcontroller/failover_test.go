package vmcontroller

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/millwright-dev/millwright/api/vm/subresources"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/subresources"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestVMController_FailsOver checks that one of two VM controllers leads, and that hypervisors connect to the other one when it
// stops, gracefully or not. No guest is affected, including one that runs with expiring leases.
func TestVMController_FailsOver(t *testing.T) {
	tier.All(t)
	t.Parallel()
	i := newInstallation(t)
	i.startHost()
	leader := i.start()
	i.leads(leader)
	follower := i.start()
	i.leads(leader) // a follower is ready too
	vm := i.run("guest")
	leased := i.run("leased", func(spec *vmv1alpha1.VirtualMachineSpec) { spec.LeaseMode = vmv1alpha1.LeaseFullLeases })
	i.consolesWork(vm)
	qemu := program.Processes(t, i.dir, "qemu-system")
	if len(qemu) != 2 {
		t.Fatalf("the processes are %v", qemu)
	}
	for _, by := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		begin := time.Now()
		i.must(syscall.Kill(leader.PID(), by))
		<-leader.Done()
		i.streamsAreBack(vm, follower, begin, by)
		i.leasesAreRenewed(leased, begin, by)
		i.untouched(vm)
		i.untouched(leased)
		i.consolesWork(vm)
		leader, follower = follower, i.start()
	}
	if diff := cmp.Diff(qemu, program.Processes(t, i.dir, "qemu-system")); diff != "" {
		t.Errorf("the processes of the guests have changed:\n%s", diff)
	}
	i.must(i.client.Delete(t.Context(), leased))
	i.must(i.rest.Delete().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices", subresources.APIService).Do(t.Context()).Error())
	i.consolesWork(vm) // registered again
	// The last leader has everything that it needs for the rest of the VM's lifecycle.
	i.must(i.client.Delete(t.Context(), vm))
	i.eventually(func(g gomega.Gomega) {
		g.Expect(client.IgnoreNotFound(i.client.Get(t.Context(), client.ObjectKeyFromObject(vm), vm))).To(gomega.Succeed())
		g.Expect(program.Processes(t, i.dir, "qemu-system")).To(gomega.BeEmpty())
	})
}

// streamsAreBack waits until the Service leads to the next leader, and the hypervisor has its stream there.
func (i *installation) streamsAreBack(vm *vmv1alpha1.VirtualMachine, next *controller, begin time.Time, by syscall.Signal) {
	i.t.Helper()
	i.leads(next)
	led := time.Since(begin)
	var back time.Time
	i.eventually(func(g gomega.Gomega) {
		all := i.times(vm, opened)
		g.Expect(all).NotTo(gomega.BeEmpty())
		back = all[len(all)-1]
		g.Expect(back.After(begin)).To(gomega.BeTrue())
	})
	i.t.Logf("%v: the Service led to the next leader after %v, the stream was back after %v; %d attempts",
		by, led.Round(time.Millisecond), back.Sub(begin).Round(time.Millisecond), i.count(vm, ended))
}

// leasesAreRenewed waits until the hypervisor of a VM gets its lease from the next leader, and checks that it is
// the same lease, which was never in danger of expiring.
func (i *installation) leasesAreRenewed(before *vmv1alpha1.VirtualMachine, begin time.Time, by syscall.Signal) {
	i.t.Helper()
	var back time.Time
	i.eventually(func(g gomega.Gomega) {
		all := i.times(before, renewed)
		g.Expect(all).NotTo(gomega.BeEmpty())
		back = all[len(all)-1]
		g.Expect(back.After(begin)).To(gomega.BeTrue())
	})
	_, spare, _ := strings.Cut(i.last(before, renewed), "spare=")
	i.t.Logf("%v: the lease was renewed after %v, %s before the guest had ended; %d attempts", by, back.Sub(begin).Round(time.Millisecond), spare, i.count(before, notRenewed))
	now := &vmv1alpha1.VirtualMachine{}
	i.must(i.client.Get(i.t.Context(), client.ObjectKeyFromObject(before), now))
	if diff := cmp.Diff(before.Status.Lease, now.Status.Lease); diff != "" {
		i.t.Errorf("the lease is another one:\n%s", diff)
	}
	events := &corev1.EventList{}
	i.must(i.client.List(i.t.Context(), events, client.InNamespace(before.Namespace)))
	for _, event := range events.Items {
		if event.InvolvedObject.Name == before.Name && event.Type != corev1.EventTypeNormal {
			i.t.Errorf("event %s: %s", event.Reason, event.Message)
		}
	}
}

// consolesWork waits until kube-apiserver proxies requests for the VM to its hypervisor, through the leading
// controller.
func (i *installation) consolesWork(vm *vmv1alpha1.VirtualMachine) {
	i.t.Helper()
	begin := time.Now()
	i.eventually(func(g gomega.Gomega) {
		printed, err := i.rest.Get().AbsPath("/apis", api.Group, api.Version, "namespaces", vm.Namespace, "virtualmachines", vm.Name, "log").DoRaw(i.t.Context())
		g.Expect(err).NotTo(gomega.HaveOccurred(), "%s", printed)
	})
	i.t.Logf("the log of the guest can be read after another %v", time.Since(begin).Round(time.Millisecond))
}

// untouched checks that the VM has the same run in the same Pod, which is not being deleted.
func (i *installation) untouched(before *vmv1alpha1.VirtualMachine) {
	i.t.Helper()
	now, pods := &vmv1alpha1.VirtualMachine{}, &corev1.PodList{}
	i.must(i.client.Get(i.t.Context(), client.ObjectKeyFromObject(before), now))
	if diff := cmp.Diff(before.Status.VirtualMachineAuthority, now.Status.VirtualMachineAuthority); diff != "" {
		i.t.Errorf("another hypervisor may run the VM now:\n%s", diff)
	}
	i.must(i.client.List(i.t.Context(), pods, client.InNamespace(before.Namespace), client.MatchingLabels{vmv1alpha1.LabelVM: before.Name}))
	if len(pods.Items) != 1 || pods.Items[0].DeletionTimestamp != nil || pods.Items[0].Status.Phase != corev1.PodRunning {
		i.t.Errorf("the Pods are %+v", pods.Items)
	}
}
