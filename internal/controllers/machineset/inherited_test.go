package machineset

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestWhatIsInheritedIsComparedOnce: and again when the set or the Machine has changed.
func TestWhatIsInheritedIsComparedOnce(t *testing.T) {
	c := &Controller{}
	set := newSet(1)
	set.UID, set.Generation = "set", 1
	owned := machine("m", func(m *v1alpha1.Machine) {
		m.UID, m.Generation = "m", 1
		m.Spec = *set.Spec.Template.Spec.DeepCopy()
	})
	planned := func() int {
		return len(propagate(facts{set: set, owned: []*v1alpha1.Machine{owned}, inherited: c.inheritedBy(set, 1)}))
	}
	if planned() != 0 || !c.inheritedBy(set, 1).has(owned) {
		t.Error("what has been compared is not known")
	}
	owned.Spec.NodeTemplateSpec.Labels = map[string]string{"other": "value"}
	if planned() != 0 {
		t.Error("a Machine of the same generation is compared again")
	}
	owned.Generation++
	for range 2 {
		if planned() != 1 {
			t.Error("a Machine that has changed is not compared, or counts as done")
		}
	}
	owned.Spec = *set.Spec.Template.Spec.DeepCopy()
	if planned() != 0 {
		t.Error("a Machine that is right again is changed")
	}
	set.Spec.Template.Spec.Class.Kind, set.Generation = "Other", 2
	if planned() != 1 {
		t.Error("the Machines of a set that has changed are not compared")
	}
	for _, uid := range []types.UID{"a", "b", "c"} {
		c.inheritedBy(set, 1).note(machine("gone", func(m *v1alpha1.Machine) { m.UID, m.Generation = uid, 1 }))
	}
	if known := c.inheritedBy(set, 1); len(known.generations) != 0 {
		t.Errorf("%d Machines that are gone are remembered", len(known.generations))
	}
	if known, _ := c.inherited.Load(client.ObjectKeyFromObject(set)); known == nil {
		t.Error("it is kept under another key")
	}
}
