package planner

import (
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Outdated is a Machine that has yet to take over a change of the template.
type Outdated struct {
	Machine *v1alpha1.Machine
	// Differences names what differs.
	Differences []string
}

// Differences names what a Machine has yet to take over from a template: the node template, the
// configuration and the kind of the class change without a new Machine.
func Differences(template, spec *v1alpha1.MachineSpec) []string {
	var differing []string
	if !equality.Semantic.DeepEqual(&template.NodeTemplateSpec, &spec.NodeTemplateSpec) {
		differing = append(differing, "node template")
	}
	if template.MachineConfiguration != spec.MachineConfiguration && !equality.Semantic.DeepEqual(configuration(template), configuration(spec)) {
		differing = append(differing, "configuration")
	}
	if template.Class.Kind != spec.Class.Kind {
		differing = append(differing, "kind of class")
	}
	return differing
}

// TakeOver copies the differences from a template to the spec of a Machine.
func TakeOver(template, spec *v1alpha1.MachineSpec) {
	if !equality.Semantic.DeepEqual(&template.NodeTemplateSpec, &spec.NodeTemplateSpec) {
		template.NodeTemplateSpec.DeepCopyInto(&spec.NodeTemplateSpec)
	}
	if !equality.Semantic.DeepEqual(configuration(template), configuration(spec)) {
		spec.MachineConfiguration = template.MachineConfiguration.DeepCopy()
	}
	spec.Class.Kind = template.Class.Kind
}

// configuration returns the configuration of a Machine. A missing one equals an empty one.
func configuration(spec *v1alpha1.MachineSpec) v1alpha1.MachineConfiguration {
	if spec.MachineConfiguration == nil {
		return v1alpha1.MachineConfiguration{}
	}
	return *spec.MachineConfiguration
}
