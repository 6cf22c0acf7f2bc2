package drain

import (
	"fmt"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// budget is what a drain has to know of a PodDisruptionBudget.
type budget struct {
	key types.NamespacedName
	// allows reports whether the budget lets a pod go now.
	allows bool
	// misconfigured tells that it never will: everything that it covers is well, and
	// still nothing may go.
	misconfigured bool
}

// sentence is what Gardener looks for in a Machine's last operation.
func (b budget) sentence() string {
	return fmt.Sprintf("pod disruption budget %s is misconfigured and requires zero voluntary evictions", b.key)
}

// Covering returns the budgets, of the pod's namespace, that select a pod with these labels.
func Covering(podLabels map[string]string, budgets []policyv1.PodDisruptionBudget) []*policyv1.PodDisruptionBudget {
	var covering []*policyv1.PodDisruptionBudget
	for i := range budgets {
		selector, err := metav1.LabelSelectorAsSelector(budgets[i].Spec.Selector)
		if err == nil && selector.Matches(labels.Set(podLabels)) { // the API server matches nothing with an invalid one either
			covering = append(covering, &budgets[i])
		}
	}
	return covering
}

// Settled reports whether the disruption controller has seen the budget as it is.
func Settled(pdb *policyv1.PodDisruptionBudget) bool {
	return pdb.Status.ObservedGeneration == pdb.Generation
}

// Allows reports whether the budget lets a pod go now.
func Allows(pdb *policyv1.PodDisruptionBudget) bool {
	return Settled(pdb) && pdb.Status.DisruptionsAllowed > 0
}

// Misconfigured reports whether the budget never lets a pod go: all that it covers is well, and
// still nothing may go.
func Misconfigured(pdb *policyv1.PodDisruptionBudget) bool {
	return Settled(pdb) && pdb.Status.DisruptionsAllowed == 0 && pdb.Status.ExpectedPods > 0 &&
		pdb.Status.CurrentHealthy >= pdb.Status.ExpectedPods && len(pdb.Status.DisruptedPods) == 0
}

// budgetOf finds the budget that keeps a pod with these labels; nil if none covers it. Of
// several it is the first that allows nothing, in the order given.
func budgetOf(podLabels map[string]string, budgets []policyv1.PodDisruptionBudget) *budget {
	var found *budget
	for _, pdb := range Covering(podLabels, budgets) {
		if found == nil || found.allows && !Allows(pdb) {
			found = &budget{
				key:           types.NamespacedName{Namespace: pdb.Namespace, Name: pdb.Name},
				allows:        Allows(pdb),
				misconfigured: Misconfigured(pdb),
			}
		}
	}
	return found
}
