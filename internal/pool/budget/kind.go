package budget

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Kind contains all properties of a Machine on which verdicts about other Machines depend. Members of the same kind can be
// counted instead of listed; see Member.Others.
type Kind struct {
	role     Role
	deleting bool
	phase    v1alpha1.MachinePhase
	class    v1alpha1.ClassSpec
	labels   string
}

// Kind returns the kind of the member for policies whose budgets apply to groups by these labels.
func (m Member) Kind(labels []string) Kind {
	machine := m.Machine
	values := []string{explicitZone(machine)}
	for _, label := range labels {
		values = append(values, ownValue(machine, label))
	}
	return Kind{
		role: m.Role, deleting: !machine.DeletionTimestamp.IsZero(), phase: machine.Status.CurrentStatus.Phase,
		class: machine.Spec.Class, labels: fmt.Sprintf("%q", values),
	}
}

// Labels returns the sorted labels by which the budgets of a policy group Machines.
func Labels(policy *v1alpha1.ReplacementPolicy) []string {
	var labels []string
	for _, budget := range policy.Budgets {
		if budget.Per != "" {
			labels = append(labels, budget.Per)
		}
	}
	slices.Sort(labels)
	return slices.Compact(labels)
}

// ownValue returns the value of a label of a Machine. If the Machine does not have the label, it returns the value in the node
// template.
func ownValue(machine *v1alpha1.Machine, label string) string {
	return cmp.Or(machine.Labels[label], machine.Spec.NodeTemplateSpec.Labels[label])
}

// explicitZone returns the zone of a Machine, regardless of the zone of its class.
func explicitZone(machine *v1alpha1.Machine) string {
	return cmp.Or(ownValue(machine, corev1.LabelTopologyZone), machine.Annotations[v1alpha1.AnnotationKeyFailureDomain])
}
