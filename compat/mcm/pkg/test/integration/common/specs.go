package common

import (
	"context"
	"fmt"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"github.com/gardener/machine-controller-manager/pkg/test/integration/common/helpers"
)

// ControllerTests adds MCM's specs. Each continues with the state that the previous one left.
func (f *IntegrationTestFramework) ControllerTests() {
	ginkgo.Describe("machines", ginkgo.Ordered, func() {
		ginkgo.It("adds a node for a Machine", f.addsANode)
		ginkgo.It("removes the node of a Machine that is deleted", f.removesTheNode)
		ginkgo.It("returns NotFound when a Machine that does not exist is deleted", f.deletesNothing)
		ginkgo.It("makes a MachineDeployment available, first without Machines, then with one", f.becomesAvailable)
		ginkgo.It("scales up to 6", func() { f.scale(6); f.hasNodes(6) })
		ginkgo.It("scales down to 2", func() { f.scale(2); f.hasNodes(2) })
		ginkgo.It("freezes and unfreezes a MachineSet with too many Machines", f.freezes)
		ginkgo.It("rolls to another class, with 4 replicas", f.rolls)
		ginkgo.It("removes all nodes of a MachineDeployment that is deleted", f.deletesTheDeployment)
		ginkgo.It("leaves nothing at the provider", f.leavesNothing)
	})
}

// ofTheSuite selects the suite's Machines, MachineSets and MachineDeployments.
var ofTheSuite = client.HasLabels{"test-suite"}

func (f *IntegrationTestFramework) labels(name string) map[string]string {
	return map[string]string{"name": name, ofTheSuite[0]: "integration"}
}

// spec returns the specification of a Machine with the first class.
func (f *IntegrationTestFramework) spec() v1alpha1.MachineSpec {
	spec := v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: "MachineClass", Name: firstClass}}
	if f.env.nodeAgentSecret != "" {
		spec.NodeTemplateSpec.Labels = map[string]string{"worker.gardener.cloud/gardener-node-agent-secret-name": f.env.nodeAgentSecret}
	}
	return spec
}

func (f *IntegrationTestFramework) machine() *v1alpha1.Machine {
	return &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{Name: machineName, Namespace: f.env.namespace, Labels: f.labels(machineName)},
		Spec:       f.spec(),
	}
}

func (f *IntegrationTestFramework) deployment() *v1alpha1.MachineDeployment {
	surge, unavailable := intstr.FromInt32(2), intstr.FromInt32(1)
	labels := f.labels(deploymentName)
	deployment := &v1alpha1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Name: deploymentName, Namespace: f.env.namespace, Labels: labels},
		Spec: v1alpha1.MachineDeploymentSpec{
			MinReadySeconds: 500,
			Selector:        &metav1.LabelSelector{MatchLabels: labels},
			Strategy:        v1alpha1.MachineDeploymentStrategy{Type: v1alpha1.RollingUpdateMachineDeploymentStrategyType},
		},
	}
	deployment.Spec.Strategy.RollingUpdate = &v1alpha1.RollingUpdateMachineDeployment{}
	deployment.Spec.Strategy.RollingUpdate.MaxSurge, deployment.Spec.Strategy.RollingUpdate.MaxUnavailable = &surge, &unavailable
	deployment.Spec.Template.Labels, deployment.Spec.Template.Spec = labels, f.spec()
	return deployment
}

func (f *IntegrationTestFramework) addsANode(ctx context.Context) {
	expect(f.control.Create(ctx, f.machine()))
	f.hasNodes(1)
}

func (f *IntegrationTestFramework) removesTheNode(ctx context.Context) {
	expect(f.control.Delete(ctx, f.machine()))
	f.hasNodes(0)
}

func (f *IntegrationTestFramework) deletesNothing(ctx context.Context) {
	missing := f.machine()
	missing.Name = "test-machine-dummy"
	err := f.control.Delete(ctx, missing)
	gomega.Expect(apierrors.IsNotFound(err)).To(gomega.BeTrue(), "got error %v", err)
	f.hasNodes(0)
}

func (f *IntegrationTestFramework) becomesAvailable(ctx context.Context) {
	expect(f.control.Create(ctx, f.deployment()))
	f.eventually(func(g gomega.Gomega) { g.Expect(f.status(g).ObservedGeneration).NotTo(gomega.BeZero()) })
	f.hasNodes(0)
	f.scale(1)
	f.eventually(func(g gomega.Gomega) {
		status := f.status(g)
		g.Expect(status.AvailableReplicas).To(gomega.BeEquivalentTo(1))
		conditions := map[v1alpha1.MachineDeploymentConditionType]string{}
		for _, c := range status.Conditions {
			conditions[c.Type] = fmt.Sprintf("%s %s", c.Status, c.Reason)
		}
		g.Expect(conditions).To(gomega.HaveKeyWithValue(v1alpha1.MachineDeploymentAvailable, gomega.HavePrefix("True ")))
		g.Expect(conditions).To(gomega.HaveKeyWithValue(v1alpha1.MachineDeploymentProgressing, "True NewMachineSetAvailable"))
	})
	f.hasNodes(1)
}

func (f *IntegrationTestFramework) freezes(ctx context.Context) {
	const many = 10 // more than 2 plus the surge and --safety-up
	f.scale(many)
	f.eventually(func(g gomega.Gomega) { g.Expect(f.machines(g)).To(gomega.HaveLen(many)) })
	f.scale(2)
	for _, reason := range []string{"FrozeMachineSet", "UnfrozeMachineSet"} {
		f.eventually(func(g gomega.Gomega) {
			events := &corev1.EventList{}
			g.Expect(f.control.List(ctx, events, client.InNamespace(f.env.namespace))).To(gomega.Succeed())
			g.Expect(events.Items).To(gomega.ContainElement(gomega.HaveField("Reason", reason)))
		})
	}
	f.hasNodes(2)
}

func (f *IntegrationTestFramework) rolls() {
	f.change(`{"spec":{"replicas":4,"template":{"spec":{"class":{"name":%q}}}}}`, secondClass)
	f.eventually(func(g gomega.Gomega) {
		status := f.status(g)
		g.Expect(status.UpdatedReplicas).To(gomega.BeEquivalentTo(4))
		g.Expect(status.AvailableReplicas).To(gomega.BeEquivalentTo(4))
	})
	f.hasNodes(4)
	f.eventually(func(g gomega.Gomega) {
		for _, machine := range f.machines(g) {
			g.Expect(machine.Spec.Class.Name).To(gomega.Equal(secondClass), machine.Name)
		}
	})
}

func (f *IntegrationTestFramework) deletesTheDeployment(ctx context.Context) {
	expect(f.control.Delete(ctx, f.deployment()))
	f.hasNodes(0)
}

func (f *IntegrationTestFramework) leavesNothing() {
	f.eventually(func(g gomega.Gomega) {
		g.Expect(f.machines(g)).To(gomega.BeEmpty())
		g.Expect(f.tracker.IsOrphanedResourcesAvailable()).To(gomega.BeFalse(), "the provider has orphaned resources")
	})
}

// nodes returns the nodes of the target cluster and whether they are ready.
func (f *IntegrationTestFramework) nodes() (map[string]bool, error) {
	list := &corev1.NodeList{}
	if err := f.target.List(context.Background(), list); err != nil {
		return nil, err
	}
	nodes := map[string]bool{}
	for _, node := range list.Items {
		nodes[node.Name] = helpers.Ready(node)
	}
	return nodes, nil
}

// hasNodes waits until the number of nodes has grown by more since the start, and all are ready.
func (f *IntegrationTestFramework) hasNodes(more int) {
	ginkgo.GinkgoHelper()
	f.eventually(func(g gomega.Gomega) {
		nodes, err := f.nodes()
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(nodes).To(gomega.HaveLen(f.initial + more))
		for name, ready := range nodes {
			g.Expect(ready).To(gomega.BeTrue(), "node %s is not ready", name)
		}
	})
}

// machines returns the Machines of the suite.
func (f *IntegrationTestFramework) machines(g gomega.Gomega) []v1alpha1.Machine {
	list := &v1alpha1.MachineList{}
	g.Expect(f.control.List(context.Background(), list, client.InNamespace(f.env.namespace), ofTheSuite)).To(gomega.Succeed())
	return list.Items
}

func (f *IntegrationTestFramework) status(g gomega.Gomega) v1alpha1.MachineDeploymentStatus {
	deployment := f.deployment()
	g.Expect(f.control.Get(context.Background(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
	return deployment.Status
}

// change patches the deployment as a user would.
func (f *IntegrationTestFramework) change(format string, values ...any) {
	ginkgo.GinkgoHelper()
	expect(f.control.Patch(context.Background(), f.deployment(), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, values...))))
}

func (f *IntegrationTestFramework) scale(replicas int) {
	ginkgo.GinkgoHelper()
	f.change(`{"spec":{"replicas":%d}}`, replicas)
}
