package machineset

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestMachineSet_ComparesMachinesOnce checks that a Machine is compared with the template once, and again after the set or
// the Machine changed.
func TestMachineSet_ComparesMachinesOnce(t *testing.T) {
	t.Parallel()
	var known upToDate
	set := newSet(1)
	set.UID, set.Generation = "set", 1
	owned := machine("m", func(m *v1alpha1.Machine) {
		m.UID, m.Generation = "m", 1
		m.Spec = *set.Spec.Template.Spec.DeepCopy()
	})
	planned := func() int { return len(known.updates(set, []*v1alpha1.Machine{owned})) }
	if planned() != 0 || known.generations["m"] != 1 {
		t.Error("the comparison was not recorded")
	}
	owned.Spec.NodeTemplateSpec.Labels = map[string]string{"other": "value"}
	if planned() != 0 {
		t.Error("an unchanged Machine was compared again")
	}
	owned.Generation++
	for range 2 {
		if planned() != 1 {
			t.Error("a changed Machine was not compared")
		}
	}
	owned.Spec = *set.Spec.Template.Spec.DeepCopy()
	if planned() != 0 {
		t.Error("a Machine that matches again is to be changed")
	}
	set.Spec.Template.Spec.Class.Kind, set.Generation = "Other", 2
	if planned() != 1 {
		t.Error("the Machines of a changed set were not compared")
	}
	set.Spec.Template.Spec.Class.Kind = owned.Spec.Class.Kind
	known = upToDate{set.UID, set.Generation, map[types.UID]int64{"a": 1, "b": 1, "c": 1}}
	if planned() != 0 || len(known.generations) != 1 {
		t.Errorf("%d Machines are recorded for a set with one", len(known.generations))
	}
}
