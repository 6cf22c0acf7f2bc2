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

// budgetOf finds the budget that keeps a pod with these labels; nil if none covers it. Of
// several it is the first that allows nothing, in the order given.
func budgetOf(podLabels map[string]string, budgets []policyv1.PodDisruptionBudget) *budget {
	var found *budget
	for i := range budgets {
		pdb := &budgets[i]
		selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(podLabels)) {
			continue // the API server matches nothing with it either
		}
		judged := judge(pdb)
		if found == nil || found.allows && !judged.allows {
			found = &judged
		}
	}
	return found
}

func judge(pdb *policyv1.PodDisruptionBudget) budget {
	settled := pdb.Status.ObservedGeneration == pdb.Generation
	return budget{
		key:    types.NamespacedName{Namespace: pdb.Namespace, Name: pdb.Name},
		allows: settled && pdb.Status.DisruptionsAllowed > 0,
		misconfigured: settled && pdb.Status.DisruptionsAllowed == 0 && pdb.Status.ExpectedPods > 0 &&
			pdb.Status.CurrentHealthy >= pdb.Status.ExpectedPods && len(pdb.Status.DisruptedPods) == 0,
	}
}
