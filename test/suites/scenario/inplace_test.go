package scenario

import (
	"maps"
	"slices"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// updated is a MachineDeployment whose Machines are updated in place.
type updated struct {
	*scenario
	deployment *v1alpha1.MachineDeployment
	first      map[string]v1alpha1.Machine
}

// updatedInPlace creates a MachineDeployment of three Machines with such agents on their nodes, waits until they
// are Running, and changes their class.
func updatedInPlace(t *testing.T, pool, agent string, by v1alpha1.OrchestrationType, flags ...string) *updated {
	t.Helper()
	w := newScenario(t)
	w.create(secret(w.Namespace, pool), class(w.Namespace, pool, `{"agent":"`+agent+`","updateTime":"0s"}`), class(w.Namespace, pool+"-v2", `{}`))
	w.patch(class(w.Namespace, pool+"-v2", ""), `{"secretRef":{"name":"`+pool+`"}}`)
	u := &updated{scenario: w, deployment: deploymentOf(w.Namespace, pool, 3)}
	none, one := intstr.FromInt32(0), intstr.FromInt32(1)
	u.deployment.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{
		Type: v1alpha1.InPlaceUpdateMachineDeploymentStrategyType,
		InPlaceUpdate: &v1alpha1.InPlaceUpdateMachineDeployment{
			UpdateConfiguration: v1alpha1.UpdateConfiguration{MaxUnavailable: &one, MaxSurge: &none}, OrchestrationType: by,
		},
	}
	w.create(u.deployment)
	w.manager(flags...)
	w.eventually(func(g gomega.Gomega) { w.settled(t.Context(), g, u.deployment) })
	u.first = u.machines(gomega.NewWithT(t))
	w.patch(u.deployment, `{"spec":{"template":{"spec":{"class":{"name":"`+pool+`-v2"}}}}}`)
	return u
}

func (u *updated) machines(g gomega.Gomega) map[string]v1alpha1.Machine {
	list := &v1alpha1.MachineList{}
	g.Expect(u.Client.List(u.t.Context(), list, client.InNamespace(u.Namespace))).To(gomega.Succeed())
	machines := map[string]v1alpha1.Machine{}
	for i := range list.Items {
		machines[list.Items[i].Name] = list.Items[i]
	}
	return machines
}

// progressing waits until the condition Progressing of the MachineDeployment has a reason and contains a text.
func (u *updated) progressing(reason, text string) {
	u.t.Helper()
	u.eventually(func(g gomega.Gomega) {
		g.Expect(u.Client.Get(u.t.Context(), client.ObjectKeyFromObject(u.deployment), u.deployment)).To(gomega.Succeed())
		for _, condition := range u.deployment.Status.Conditions {
			if condition.Type == v1alpha1.MachineDeploymentProgressing {
				g.Expect(condition.Reason).To(gomega.Equal(reason))
				g.Expect(condition.Message).To(gomega.ContainSubstring(text))
			}
		}
	})
}

// done waits until all Machines belong to the current MachineSet, and checks that no trace of the update remains.
func (u *updated) done() map[string]v1alpha1.Machine {
	u.t.Helper()
	var machines map[string]v1alpha1.Machine
	u.eventually(func(g gomega.Gomega) {
		u.settled(u.t.Context(), g, u.deployment)
		g.Expect(u.deployment.Status.UpdatedReplicas).To(gomega.Equal(int32(3)), "updated replicas")
		for _, node := range u.nodesOf(u.t.Context(), g, u.deployment.Name) {
			g.Expect(node.Spec.Unschedulable).To(gomega.BeFalse(), node.Name)
			g.Expect(node.Labels).NotTo(gomega.Or(gomega.HaveKey(v1alpha1.LabelKeyNodeCandidateForUpdate),
				gomega.HaveKey(v1alpha1.LabelKeyNodeSelectedForUpdate), gomega.HaveKey(v1alpha1.LabelKeyNodeUpdateResult)), node.Name)
			g.Expect(node.Annotations).NotTo(gomega.Or(gomega.HaveKey(v1alpha1.AnnotationKeyScaleDownDisabled),
				gomega.HaveKey(v1alpha1.AnnotationKeyMachineUpdateFailedReason)), node.Name)
		}
		machines = u.machines(g)
		for name := range machines {
			g.Expect(machines[name].Labels).NotTo(gomega.HaveKey(v1alpha1.LabelKeyNodeUpdateResult), name)
		}
	})
	u.progressing(v1alpha1.DeploymentReasonComplete, "")
	return machines
}

// nodeWith waits for a node that satisfies a condition.
func (u *updated) nodeWith(what string, is func(*corev1.Node) bool) *corev1.Node {
	u.t.Helper()
	var found *corev1.Node
	u.eventually(func(g gomega.Gomega) {
		nodes := u.nodesOf(u.t.Context(), g, u.deployment.Name)
		at := slices.IndexFunc(nodes, func(node corev1.Node) bool { return is(&node) })
		g.Expect(at).To(gomega.BeNumerically(">=", 0), what)
		found = &nodes[at]
	})
	return found
}

func (u *updated) patchNode(node *corev1.Node, patch string) {
	u.t.Helper()
	if err := u.Target.Client.Patch(u.t.Context(), node, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		u.t.Fatal(err)
	}
}

// TestInPlaceUpdate_NodeIsUpdated checks that the nodes are updated one after another, and that their Machines and VMs are
// kept.
func TestInPlaceUpdate_NodeIsUpdated(t *testing.T) {
	tier.All(t)
	u := updatedInPlace(t, "plate", "succeed", v1alpha1.OrchestrationTypeAuto)
	after := u.done()
	u.same(after)
	for name := range after {
		if after[name].OwnerReferences[0].UID == u.first[name].OwnerReferences[0].UID {
			t.Errorf("machine %s is still of the old set", name)
		}
	}
}

// same checks that the Machines are the original ones.
func (u *updated) same(after map[string]v1alpha1.Machine) {
	u.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(u.first)) {
		if after[name].UID != u.first[name].UID || after[name].Spec.ProviderID != u.first[name].Spec.ProviderID {
			u.t.Errorf("machine %s was replaced", name)
		}
	}
}

// TestInPlaceUpdate_Manual checks that a node is not updated until a user selects it, and that the
// MachineDeployment reports that.
func TestInPlaceUpdate_Manual(t *testing.T) {
	tier.All(t)
	u := updatedInPlace(t, "byhand", "succeed", v1alpha1.OrchestrationTypeManual)
	u.progressing(v1alpha1.DeploymentReasonUpdateBlocked, "its node is not selected")
	for range 3 {
		candidate := u.nodeWith("a candidate", func(node *corev1.Node) bool {
			return node.Labels[v1alpha1.LabelKeyNodeCandidateForUpdate] == "true" && node.Labels[v1alpha1.LabelKeyNodeSelectedForUpdate] == ""
		})
		u.patchNode(candidate, `{"metadata":{"labels":{"`+v1alpha1.LabelKeyNodeSelectedForUpdate+`":"true"}}}`)
	}
	u.same(u.done())
}

// TestInPlaceUpdate_FailureBlocksOthers checks that a failed update blocks the selection of other nodes, and that the
// MachineDeployment reports why. When the agent finally reports success, the update continues.
func TestInPlaceUpdate_FailureBlocksOthers(t *testing.T) {
	tier.All(t)
	u := updatedInPlace(t, "fails", "fail", v1alpha1.OrchestrationTypeAuto)
	u.progressing(v1alpha1.DeploymentReasonUpdateBlocked, "the simulated agent fails")
	for range 3 {
		failed := u.nodeWith("a failed node", func(node *corev1.Node) bool {
			return node.Labels[v1alpha1.LabelKeyNodeUpdateResult] == v1alpha1.LabelValueNodeUpdateFailed
		})
		selected := 0
		for _, node := range u.nodesOf(t.Context(), gomega.NewWithT(t), u.deployment.Name) {
			if node.Labels[v1alpha1.LabelKeyNodeSelectedForUpdate] != "" && node.Name != failed.Name {
				selected++
			}
		}
		if selected > 0 {
			t.Errorf("%d nodes are selected in addition to %s, whose update failed", selected, failed.Name)
		}
		u.patchNode(failed, `{"metadata":{"labels":{"`+v1alpha1.LabelKeyNodeUpdateResult+`":"successful"}}}`)
	}
	u.same(u.done())
}

// TestInPlaceUpdate_TimeoutReplacesMachine checks that a Machine whose agent never responds, or whose node fails, is eventually
// replaced by one of the current MachineSet.
func TestInPlaceUpdate_TimeoutReplacesMachine(t *testing.T) {
	tier.All(t)
	for _, agent := range []string{"silent", "die"} {
		t.Run(agent, func(t *testing.T) {
			u := updatedInPlace(t, agent, agent, v1alpha1.OrchestrationTypeAuto, "--machine-inplace-update-timeout=3s", "--machine-health-timeout=3s")
			after := u.done()
			for name := range u.first {
				if _, exists := after[name]; exists {
					t.Errorf("machine %s, which was not updated, is still there", name)
				}
			}
		})
	}
}
