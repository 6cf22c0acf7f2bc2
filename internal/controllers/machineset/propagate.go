package machineset

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// propagate brings into Machines what changes in a template without a new Machine: the node
// template, the configuration, and the kind of the class. A burst at a time is changed; the
// events of those wake the set for the next.
func propagate(f facts) []operation {
	var operations []operation
	selected := f.selected()
	for _, machine := range f.owned {
		if !active(machine) || !selected(machine.Labels) {
			continue
		}
		if f.inherited.has(machine) {
			continue
		}
		differing := differences(&f.set.Spec.Template.Spec, &machine.Spec)
		if len(differing) == 0 {
			f.inherited.note(machine)
		} else {
			operations = append(operations, operation{action: update, machine: machine, reason: "the machine set has another " + strings.Join(differing, ", ")})
		}
	}
	return oneBurst(byName(operations))
}

// differences names what a template has and an existing Machine has yet to take over.
func differences(template, spec *v1alpha1.MachineSpec) []string {
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

// inherit copies from a template what a Machine takes over, if it differs.
func inherit(template, spec *v1alpha1.MachineSpec) {
	if !equality.Semantic.DeepEqual(&template.NodeTemplateSpec, &spec.NodeTemplateSpec) {
		template.NodeTemplateSpec.DeepCopyInto(&spec.NodeTemplateSpec)
	}
	if !equality.Semantic.DeepEqual(configuration(template), configuration(spec)) {
		spec.MachineConfiguration = template.MachineConfiguration.DeepCopy()
	}
	spec.Class.Kind = template.Class.Kind
}

// configuration of a Machine; none is the same as one that says nothing.
func configuration(spec *v1alpha1.MachineSpec) v1alpha1.MachineConfiguration {
	if spec.MachineConfiguration == nil {
		return v1alpha1.MachineConfiguration{}
	}
	return *spec.MachineConfiguration
}

// inherited remembers, for one generation of a set, the generations of Machines that were
// found to have what they take over. Comparing all of a large set in each pass would cost more
// than all else. Losing it costs one comparison.
type inherited struct {
	uid         types.UID
	generation  int64
	generations map[types.UID]int64
}

func (i *inherited) has(machine *v1alpha1.Machine) bool {
	return i != nil && machine.Generation > 0 && i.generations[machine.UID] == machine.Generation
}

func (i *inherited) note(machine *v1alpha1.Machine) {
	if i != nil {
		i.generations[machine.UID] = machine.Generation
	}
}

// inheritedBy is what is known of a set's Machines. Of those that are gone, no more is kept
// than of those that are there.
func (c *Controller) inheritedBy(set *v1alpha1.MachineSet, machines int) *inherited {
	key := client.ObjectKeyFromObject(set)
	if known, ok := c.inherited.Load(key); ok {
		i := known.(*inherited)
		if i.uid == set.UID && i.generation == set.Generation && len(i.generations) <= 2*machines {
			return i
		}
	}
	begun := &inherited{set.UID, set.Generation, make(map[types.UID]int64, machines)}
	c.inherited.Store(key, begun)
	return begun
}
