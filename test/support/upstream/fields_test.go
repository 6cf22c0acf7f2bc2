package upstream

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestDifference checks the description of a write, in the format of writes.txt.
func TestDifference(t *testing.T) {
	machine := func(change func(*v1alpha1.Machine)) client.Object {
		return fixture.Named("pool-0a1b2-x7k2p", fixture.Machine(change))
	}
	plainMachine := machine(func(*v1alpha1.Machine) {})
	for name, test := range map[string]struct {
		before, after client.Object
		status        bool
		want          []string
	}{
		"nothing":        {plainMachine, plainMachine, false, nil},
		"the other part": {plainMachine, machine(func(m *v1alpha1.Machine) { m.Spec.ProviderID = "a" }), true, nil},
		"times":          {plainMachine, machine(func(m *v1alpha1.Machine) { m.Status.LastOperation.LastUpdateTime = metav1.Now() }), true, nil},
		"a field":        {plainMachine, machine(func(m *v1alpha1.Machine) { m.Spec.ProviderID = "a" }), false, []string{".spec.providerID"}},
		"a field less":   {machine(func(m *v1alpha1.Machine) { m.Finalizers = []string{"a"} }), plainMachine, false, []string{".metadata.finalizers gone"}},
		"a sentence": {plainMachine, machine(func(m *v1alpha1.Machine) {
			m.Status.LastOperation.Description = "Machine pool-0a1b2-x7k2p successfully joined the cluster in 3.8s"
		}), true, []string{".status.lastOperation.description=Machine # successfully joined the cluster in T"}},
		"a condition": {fixture.Node(), fixture.Node(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }), true,
			[]string{".status.conditions[Ready].status=Unknown"}},
		"a taint": {fixture.Node(), fixture.Node(func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
		}), false, []string{".spec.taints[k].effect"}},
	} {
		t.Run(name, func(t *testing.T) {
			before, err := flatten(test.before)
			if err != nil {
				t.Fatal(err)
			}
			after, err := flatten(test.after)
			if err != nil {
				t.Fatal(err)
			}
			got := difference(before, after, test.status)
			slices.Sort(got)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

// TestFields_Recorded checks which writes count as recorded of MCM.
func TestFields_Recorded(t *testing.T) {
	writes := Recorded()
	for write, want := range map[string]bool{
		"machine-controller update machines/status .status.currentStatus.phase=Running":         true,
		"machine-controller-manager update machines/status .status.currentStatus.phase=Running": false,
		"machine-controller-manager delete machines":                                            true,
		"machine-controller delete machines":                                                    false,
	} {
		if writes[write] != want {
			t.Errorf("%s: %t", write, writes[write])
		}
	}
}

// TestDifference_IgnoresUnknownFields checks that a field that MCM's types lack makes no difference.
func TestDifference_IgnoresUnknownFields(t *testing.T) {
	set := fixture.MachineSet(func(s *v1alpha1.MachineSet) { s.Status.Selector = "name=pool" })
	process := NewControllerManager(nil, set.Namespace) // a write would use the nil client
	wrote, err := process.updateStatus(t.Context(), set, func() { set.Status.Selector = "" })
	if wrote || err != nil {
		t.Errorf("wrote %t, %v", wrote, err)
	}
}
