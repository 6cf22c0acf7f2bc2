package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestStories checks the availability of a service, and what users observe, while its machines are replaced. The
// stories share one cluster, because its nodes take longest.
func TestStories(t *testing.T) {
	tier.All(t)
	c := up(t, "--machine-health-timeout", "3m")
	c.awaitSettled()
	for _, story := range []struct {
		name string
		play func(*cluster)
	}{
		{"names of Services", names},
		{"rolling update", rollingUpdate},
		{"live migration", liveMigration},
		{"a budget blocks a drain", budgetBlocks},
		{"the virtual machine is killed", killedHard},
		{"the kubelet hangs", kubeletHangs},
		{"a StatefulSet with local volumes", statefulSet},
		{"to zero and back", toZeroAndBack},
	} {
		if !t.Run(story.name, func(t *testing.T) { story.play(c.in(t)) }) {
			break // the next one would start in an undefined state
		}
	}
}

// rollingUpdate replaces all machines while requests are sent. No request fails.
func rollingUpdate(c *cluster) {
	before := c.awaitSettled()
	end := c.requests()
	c.run("rollout", "restart", "pool")
	c.eventually(late, func(g gomega.Gomega) {
		for _, name := range c.settled(g) {
			g.Expect(before).NotTo(gomega.ContainElement(name))
		}
	})
	c.wantAll(end())
}

// liveMigration migrates the VM of a node to the other host while requests are sent. The node stays Ready, and no
// request fails.
func liveMigration(c *cluster) {
	name := c.awaitSettled()[0]
	node := c.node(gomega.NewWithT(c.t), name)
	end := c.requests()
	c.t.Log(c.run("vm", "migrate", c.vmOf(name).Name, "--timeout", late.String()))
	// Its kubelet continues on the new host.
	renewed := c.renewed(gomega.NewWithT(c.t), name)
	c.eventually(late, func(g gomega.Gomega) { g.Expect(c.renewed(g, name)).NotTo(gomega.Equal(renewed)) })
	c.wantAll(end())
	after := c.node(gomega.NewWithT(c.t), name)
	if !ready(after) || !since(after).Equal(since(node)) {
		c.t.Errorf("node %s was not Ready all the time: since %s, and before since %s", name, since(after), since(node))
	}
	if after.Status.NodeInfo.BootID != node.Status.NodeInfo.BootID {
		c.t.Errorf("the guest of %s booted again", name)
	}
}

// renewed returns the time of the last heartbeat of a node's kubelet.
func (c *cluster) renewed(g gomega.Gomega, name string) time.Time {
	lease := &coordinationv1.Lease{}
	g.Expect(c.client.Get(c.t.Context(), client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: name}, lease)).To(gomega.Succeed())
	return lease.Spec.RenewTime.Time
}

// since returns when a node's Ready condition last changed.
func since(node *corev1.Node) time.Time { return readyCondition(node).LastTransitionTime.Time }

// budgetBlocks deletes a machine whose Pods may not be evicted. The drain waits, "explain" names the disruption
// budget, and the label force-deletion ignores the budget.
func budgetBlocks(c *cluster) {
	name := c.withPods()
	c.patch(&policyv1.PodDisruptionBudget{}, "web", `{"spec":{"maxUnavailable":0}}`)
	c.eventually(soon, func(g gomega.Gomega) {
		budget := &policyv1.PodDisruptionBudget{}
		g.Expect(c.client.Get(c.t.Context(), client.ObjectKey{Namespace: namespace, Name: "web"}, budget)).To(gomega.Succeed())
		g.Expect(budget.Status.ObservedGeneration).To(gomega.Equal(budget.Generation))
		g.Expect(budget.Status.DisruptionsAllowed).To(gomega.BeZero())
	})
	if err := c.client.Delete(c.t.Context(), &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}); err != nil {
		c.t.Fatal(err)
	}
	c.eventually(soon, func(g gomega.Gomega) {
		text, _ := program.Run(c.t, "explain", "machine", name, "--dir", c.dir)
		g.Expect(text).To(gomega.ContainSubstring("PodDisruptionBudget"))
		g.Expect(text).To(gomega.ContainSubstring("default/web"))
		g.Expect(text).To(gomega.ContainSubstring("force-deletion=True"))
	})
	if _, there := c.machines(gomega.NewWithT(c.t))[name]; !there {
		c.t.Fatalf("%s is gone in spite of the budget", name)
	}
	c.patch(&v1alpha1.Machine{}, name, `{"metadata":{"labels":{"force-deletion":"True"}}}`)
	c.eventually(late, func(g gomega.Gomega) { g.Expect(c.machines(g)).NotTo(gomega.HaveKey(name)) })
	c.patch(&policyv1.PodDisruptionBudget{}, "web", `{"spec":{"maxUnavailable":1}}`)
	c.awaitSettled()
}

// withPods returns a machine whose node runs Pods of "web".
func (c *cluster) withPods() (name string) {
	c.t.Helper()
	machines := c.awaitSettled()
	pods := &corev1.PodList{}
	if err := c.client.List(c.t.Context(), pods, client.MatchingLabels{"app": "web"}); err != nil {
		c.t.Fatal(err)
	}
	for i := range pods.Items {
		for _, name := range machines {
			if pods.Items[i].Spec.NodeName == name {
				return name
			}
		}
	}
	c.t.Fatal("no machine has a Pod")
	return ""
}

// killedHard kills the process of a VM. It boots again with its disk, and the Machine is kept.
func killedHard(c *cluster) {
	name := c.withPods()
	boot := c.node(gomega.NewWithT(c.t), name).Status.NodeInfo.BootID
	killed, uuid := 0, c.vmOf(name).Spec.UUID
	for _, process := range program.Processes(c.t, c.dir, "qemu-system") {
		if strings.Contains(process.Args, uuid) {
			killed++
			if err := syscall.Kill(process.PID, syscall.SIGKILL); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	if killed != 1 {
		c.t.Fatalf("%d processes run the VM of %s", killed, name)
	}
	c.eventually(late, func(g gomega.Gomega) {
		g.Expect(c.settled(g)).To(gomega.ContainElement(name))
		g.Expect(c.node(g, name).Status.NodeInfo.BootID).NotTo(gomega.Equal(boot))
	})
}

// kubeletHangs stops the kubelet of a node. Its Machine becomes Unknown, then Failed, and is replaced. Its Pods
// are recreated on other nodes.
func kubeletHangs(c *cluster) {
	name := c.withPods()
	privileged := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "stop-kubelet"},
		Spec: corev1.PodSpec{
			NodeName: name, HostPID: true, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: "stop", Image: image, ImagePullPolicy: corev1.PullNever, Args: []string{"stop", "kubelet"},
				SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true), RunAsUser: ptr.To[int64](0)},
			}},
		},
	}
	if err := c.client.Create(c.t.Context(), privileged); err != nil {
		c.t.Fatal(err)
	}
	c.eventually(late, func(g gomega.Gomega) {
		g.Expect(c.machines(g)[name].Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineUnknown))
	})
	failed := ""
	c.eventually(late, func(g gomega.Gomega) {
		machine := c.machines(g)[name]
		if machine != nil {
			failed = string(machine.Status.CurrentStatus.Phase)
		}
		g.Expect(machine == nil || failed == string(v1alpha1.MachineFailed) || failed == string(v1alpha1.MachineTerminating)).To(gomega.BeTrue(), failed)
	})
	c.eventually(late, func(g gomega.Gomega) { g.Expect(c.settled(g)).NotTo(gomega.ContainElement(name)) })
}

// toZeroAndBack scales the pool to zero and back. The disruption budget would protect the last Pods, so the
// Deployment is deleted first.
func toZeroAndBack(c *cluster) {
	c.awaitSettled()
	c.scaleWeb(0)
	c.scale(0)
	c.eventually(late, func(g gomega.Gomega) {
		g.Expect(c.machines(g)).To(gomega.BeEmpty())
		vms := &vmv1alpha1.VirtualMachineList{}
		g.Expect(c.client.List(c.t.Context(), vms)).To(gomega.Succeed())
		g.Expect(vms.Items).To(gomega.BeEmpty())
	})
	c.scale(2)
	c.scaleWeb(2)
	c.awaitSettled()
}

func (c *cluster) scaleWeb(replicas int) {
	c.t.Helper()
	c.patch(&appsv1.Deployment{}, "web", fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
}

func (c *cluster) scale(replicas int) {
	c.t.Helper()
	c.patch(&v1alpha1.MachineDeployment{}, "pool", fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
}
