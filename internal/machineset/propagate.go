package machineset

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// propagate brings into Machines what changes in a template without a new Machine: the node
// template, the configuration, and the kind of the class. A burst at a time is changed; the
// events of those wake the set for the next.
func propagate(f facts) []operation {
	var operations []operation
	for _, machine := range f.owned {
		if len(operations) == burst {
			break
		}
		if !active(machine) || !selects(f.set.Spec.Selector, machine.Labels) {
			continue
		}
		if differing := inherit(&f.set.Spec.Template.Spec, machine.Spec.DeepCopy()); len(differing) > 0 {
			operations = append(operations, operation{action: update, machine: machine, reason: "the machine set has another " + strings.Join(differing, ", ")})
		}
	}
	return operations
}

// inherit copies from a template what an existing Machine takes over, and names what was
// different.
func inherit(template, spec *v1alpha1.MachineSpec) []string {
	var differing []string
	if !equality.Semantic.DeepEqual(template.NodeTemplateSpec, spec.NodeTemplateSpec) {
		template.NodeTemplateSpec.DeepCopyInto(&spec.NodeTemplateSpec)
		differing = append(differing, "node template")
	}
	if !equality.Semantic.DeepEqual(configuration(template), configuration(spec)) {
		spec.MachineConfiguration = template.MachineConfiguration.DeepCopy()
		differing = append(differing, "configuration")
	}
	if template.Class.Kind != spec.Class.Kind {
		spec.Class.Kind = template.Class.Kind
		differing = append(differing, "kind of class")
	}
	return differing
}

// configuration of a Machine; none is the same as one that says nothing.
func configuration(spec *v1alpha1.MachineSpec) v1alpha1.MachineConfiguration {
	if spec.MachineConfiguration == nil {
		return v1alpha1.MachineConfiguration{}
	}
	return *spec.MachineConfiguration
}
