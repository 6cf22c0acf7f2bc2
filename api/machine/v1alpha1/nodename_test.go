package v1alpha1_test

import (
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

func TestMachine_NodeName(t *testing.T) {
	machine := &v1alpha1.Machine{}
	for _, name := range []string{"", "short", strings.Repeat("n", 64), strings.Repeat("n", 63)} {
		machine.SetNodeName(name)
		if got := machine.NodeName(); got != name {
			t.Errorf("the name is %q, want %q", got, name)
		}
		if label := machine.Labels[v1alpha1.NodeLabelKey]; len(name) <= 63 && label != name || len(label) > 63 {
			t.Errorf("the label of node %q is %q", name, label)
		}
	}
	if machine.SetNodeName(""); machine.NodeName() == "" {
		t.Error("an empty name replaced the stored one")
	}
}
