package vms

import (
	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// drainedMachines deletes two machines whose nodes have Pods. Disruption budgets block both, and Pods of
// DaemonSets are ignored. One drain continues when its budget permits it, the other when a user forces it.
func drainedMachines(c *cluster) {
	pool := c.pool("drain", 2, c.kernelBoot())
	machines := c.awaitMachines(pool)
	patient, forced := c.occupy(machines[0]), c.occupy(machines[1])
	if err := c.client.Delete(c.t.Context(), pool); err != nil {
		c.t.Fatal(err)
	}
	for _, d := range []*drained{patient, forced} {
		d.awaitHeldUp()
	}

	patient.markReady(patient.successor)
	patient.awaitGone()
	c.wantUndisturbed(forced.vm, forced.before)
	forced.wantPods(forced.web)

	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"force-deletion":"True"}}}`))
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: forced.machine}}
	if err := c.client.Patch(c.t.Context(), machine, patch); err != nil {
		c.t.Fatal(err)
	}
	forced.awaitGone()
	c.awaitEvent("Machine", forced.machine, "ForcedDrain", "a label of the machine requests it")
}

// drained is a machine with Pods on its node.
type drained struct {
	*cluster
	machine, vm string
	before      sighting
	// claim and hypervisor are the other objects of the VM.
	claim, hypervisor client.Object
	// web is one of two Pods of which a budget requires one; successor, the other, is not Ready and has no node.
	// No budget protects batch; daemon belongs to a DaemonSet.
	web, successor, batch, daemon *corev1.Pod
}

// occupy puts Pods on a machine's node. The guest does not run them, which the drain does not know.
func (c *cluster) occupy(machine string) *drained {
	c.t.Helper()
	d := &drained{cluster: c, machine: machine, vm: c.vmNamed(machine)}
	d.before = c.sight(d.vm)
	d.claim = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: d.vm}}
	d.hypervisor = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: d.before.Authority.ActivePodName}}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: machine},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: ptr.To(intstr.FromInt32(1)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"web": machine}},
		},
	}
	d.web, d.successor = d.pod("web", machine), d.pod("web", "")
	d.batch = d.pod("batch", machine)
	c.create(budget, d.web, d.successor, d.batch)
	d.daemon = d.daemonPod()
	for _, pod := range []*corev1.Pod{d.web, d.batch} {
		d.awaitDeclined(pod)
		d.markReady(pod)
	}
	c.eventually(soon, func(g gomega.Gomega) {
		g.Expect(c.client.Get(c.t.Context(), client.ObjectKeyFromObject(budget), budget)).To(gomega.Succeed())
		g.Expect(budget.Status.ExpectedPods).To(gomega.BeEquivalentTo(2))
		g.Expect(budget.Status.CurrentHealthy).To(gomega.BeEquivalentTo(1))
	})
	return d
}

// pod returns a Pod that is bound to the node, or kept from all nodes.
func (d *drained) pod(kind, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: kind + "-", Labels: map[string]string{kind: d.machine}},
		Spec:       podSpec(node),
	}
}

func podSpec(node string) corev1.PodSpec {
	return corev1.PodSpec{
		NodeName: node, AutomountServiceAccountToken: ptr.To(false),
		Containers: []corev1.Container{{Name: "main", Image: "none"}},
	}
}

// daemonPod makes a DaemonSet create a Pod for the node, and binds the Pod. The scheduler does not bind it,
// because the node has no capacity for Pods.
func (d *drained) daemonPod() *corev1.Pod {
	d.t.Helper()
	labels := map[string]string{"daemon": d.machine}
	set := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: d.machine},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec("")},
		},
	}
	set.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: d.machine}
	set.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	d.create(set)
	pods := &corev1.PodList{}
	d.eventually(joining, func(g gomega.Gomega) {
		g.Expect(d.client.List(d.t.Context(), pods, client.MatchingLabels(labels))).To(gomega.Succeed())
		g.Expect(pods.Items).To(gomega.HaveLen(1))
	})
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: d.machine}}
	if err := d.client.SubResource("binding").Create(d.t.Context(), &pods.Items[0], binding); err != nil {
		d.t.Fatal(err)
	}
	return &pods.Items[0]
}

// awaitDeclined waits until the guest has reported that it does not run Pods.
func (d *drained) awaitDeclined(pod *corev1.Pod) {
	d.t.Helper()
	d.eventually(joining, func(g gomega.Gomega) {
		g.Expect(d.client.Get(d.t.Context(), client.ObjectKeyFromObject(pod), pod)).To(gomega.Succeed())
		g.Expect(pod.Status.Reason).To(gomega.Equal("GuestRunsNoPods"))
	})
}

// markReady sets a Pod's condition Ready, which no guest does.
func (d *drained) markReady(pod *corev1.Pod) {
	d.t.Helper()
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`))
	if err := d.client.Status().Patch(d.t.Context(), pod, patch); err != nil {
		d.t.Fatal(err)
	}
}

// awaitHeldUp waits until the Pods that can be evicted are gone, and the machine reports what it waits for.
func (d *drained) awaitHeldUp() {
	d.t.Helper()
	machine := &v1alpha1.Machine{}
	texts := "pod disruption budget default/" + d.machine + " to allow the eviction of pod default/" + d.web.Name
	d.eventually(joining, func(g gomega.Gomega) {
		g.Expect(d.client.Get(d.t.Context(), client.ObjectKey{Namespace: "default", Name: d.machine}, machine)).To(gomega.Succeed())
		g.Expect(machine.Status.LastOperation.Description).To(gomega.ContainSubstring(texts))
		g.Expect(d.exists(g, d.batch)).To(gomega.BeFalse())
	})
	d.wantPods(d.web, d.daemon)
	d.wantUndisturbed(d.vm, d.before)
}

// wantPods checks that the Pods are not being deleted.
func (d *drained) wantPods(pods ...*corev1.Pod) {
	d.t.Helper()
	for _, pod := range pods {
		now := &corev1.Pod{}
		if err := d.client.Get(d.t.Context(), client.ObjectKeyFromObject(pod), now); err != nil {
			d.t.Fatal(err)
		}
		if now.UID != pod.UID || !now.DeletionTimestamp.IsZero() {
			d.t.Errorf("pod %s was to stay, and is\n%s", pod.Name, cmp.Diff(pod, now))
		}
	}
}

// awaitGone waits until the evicted Pods and the machine are gone.
func (d *drained) awaitGone() {
	d.t.Helper()
	d.eventually(joining, func(g gomega.Gomega) {
		for _, object := range []client.Object{
			d.web,
			&v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: d.machine}},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: d.machine}},
			&vmv1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: d.vm}},
			d.hypervisor, d.claim,
		} {
			g.Expect(d.exists(g, object)).To(gomega.BeFalse(), "%T %s", object, object.GetName())
		}
		for _, pid := range d.before.QEMUs {
			g.Expect(d.pidsOf("qemu-system")).NotTo(gomega.ContainElement(pid))
		}
	})
}

func (d *drained) exists(g gomega.Gomega, object client.Object) bool {
	err := d.client.Get(d.t.Context(), client.ObjectKeyFromObject(object), object.DeepCopyObject().(client.Object))
	if !apierrors.IsNotFound(err) {
		g.Expect(err).NotTo(gomega.HaveOccurred())
	}
	return err == nil
}
