package scarcity

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func deployment(annotation string, listed ...string) *v1alpha1.MachineDeployment {
	d := &v1alpha1.MachineDeployment{}
	d.Spec.FallbackClasses = listed
	if annotation != "" {
		d.Annotations = map[string]string{v1alpha1.AnnotationKeyFallbackClasses: annotation}
	}
	return d
}

func set(class string, kind string) *v1alpha1.MachineSet {
	s := &v1alpha1.MachineSet{}
	s.Spec.Template.Spec.Class = v1alpha1.ClassSpec{Kind: kind, Name: class}
	return s
}

// TestMachineSet_Choices checks the choices of a set, from the field or the annotation of its deployment, without
// duplicates.
func TestMachineSet_Choices(t *testing.T) {
	const machineClass = v1alpha1.MachineClassKind
	for name, test := range map[string]struct {
		deployment *v1alpha1.MachineDeployment
		set        *v1alpha1.MachineSet
		want       []string
	}{
		"none":                         {deployment(""), set("a", machineClass), []string{"a"}},
		"a field":                      {deployment("", "b", "c"), set("a", machineClass), []string{"a", "b", "c"}},
		"an annotation":                {deployment("b, c,"), set("a", machineClass), []string{"a", "b", "c"}},
		"the field precedes":           {deployment("c", "b"), set("a", machineClass), []string{"a", "b"}},
		"an old set of a listed class": {deployment("b,c"), set("b", machineClass), []string{"b", "c"}},
		"a legacy kind":                {deployment("b"), set("a", "AWSMachineClass"), []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			Assign(test.set, test.deployment)
			if diff := cmp.Diff(test.want, OfSet(test.set)); diff != "" {
				t.Errorf("choices (-want +got):\n%s", diff)
			}
			Assign(test.set, deployment(""))
			if len(test.set.Annotations) > 0 {
				t.Errorf("without a list, the set has %v", test.set.Annotations)
			}
		})
	}
}

// TestMachine_GetsChoicesUntilItHasVM checks that a Machine gets its choices until it has a VM, and that it records
// why it has its class.
func TestMachine_GetsChoicesUntilItHasVM(t *testing.T) {
	s, m := set("a", v1alpha1.MachineClassKind), &v1alpha1.Machine{}
	m.Spec.Class = s.Spec.Template.Spec.Class
	if Outdated(s, m) {
		t.Error("a machine without a choice is outdated")
	}
	Assign(s, deployment("b"))
	if !Outdated(s, m) {
		t.Error("the machine does not get the list")
	}
	TakeOver(s, m)
	Give(m, "b", v1alpha1.CauseNoCapacity)
	if Outdated(s, m) || Rank(m) != 1 || m.Spec.Class.Name != "b" || m.Annotations[v1alpha1.AnnotationKeyClassReason] != v1alpha1.CauseNoCapacity {
		t.Errorf("the machine is %+v", m)
	}
	Give(m, "a", v1alpha1.CauseNoCapacity)
	if _, noted := m.Annotations[v1alpha1.AnnotationKeyClassReason]; noted || Rank(m) != 0 {
		t.Errorf("with its first choice, the machine is %+v", m)
	}
	m.Spec.ProviderID = "sim:///m"
	Assign(s, deployment("c"))
	if Outdated(s, m) {
		t.Error("a machine with a VM is changed")
	}
}

func inZone(name, zone string) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Name: name}, NodeTemplate: &v1alpha1.NodeTemplate{Zone: zone}}
}

// TestSpread_KeepsSkewBetweenZones checks that Machines never exceed the allowed skew between zones unless a zone has an outage, and
// that new Machines go to that zone first after it has recovered.
func TestSpread_KeepsSkewBetweenZones(t *testing.T) {
	tier.Check(t, func(t *rapid.T) {
		skew := rapid.IntRange(1, 3).Draw(t, "skew")
		choices := []Choice{{Class: inZone("a", "za")}, {Class: inZone("b", "zb")}, {Class: inZone("c", "zc")}}
		out := map[string]bool{}
		for range rapid.IntRange(1, 40).Draw(t, "machines") {
			if rapid.IntRange(0, 9).Draw(t, "event") == 0 {
				zone := rapid.SampledFrom([]string{"za", "zb"}).Draw(t, "zone")
				out[zone] = !out[zone]
			}
			fewest := min(choices[0].Machines, choices[1].Machines, choices[2].Machines)
			for _, choice := range Order(choices, skew, true) {
				if out[Zone(choice.Class)] {
					continue
				}
				if choice.Machines+1-fewest > skew && len(open(choices, out, fewest, skew)) > 0 {
					t.Fatalf("a zone with %d machines gets another one although one with %d is available", choice.Machines, fewest)
				}
				Placed(choices, choice.Class)
				break
			}
		}
	})
	if got := Order([]Choice{{Class: inZone("a", "za"), Machines: 5}, {Class: inZone("b", "zb")}}, 1, false); got[0].Class.Name != "a" {
		t.Error("the order of the list is ignored without a limit")
	}
}

// open returns the zones without an outage that may get one more machine.
func open(choices []Choice, out map[string]bool, fewest, skew int) []string {
	var zones []string
	for _, choice := range choices {
		if zone := Zone(choice.Class); !out[zone] && choice.Machines+1-fewest <= skew {
			zones = append(zones, zone)
		}
	}
	return zones
}

// TestUnfit checks which classes cannot be used as a fallback.
func TestUnfit(t *testing.T) {
	class, other := inZone("a", "za"), inZone("b", "zb")
	class.Provider, other.Provider = "sim", "sim"
	if why := Unfit(class, other); why != "" {
		t.Error(why)
	}
	other.Provider = "vm"
	if why := Unfit(class, other); why == "" {
		t.Error("a class of another provider is accepted")
	}
	now := metav1.Now()
	other.Provider, other.DeletionTimestamp = "sim", &now
	if why := Unfit(class, other); why == "" {
		t.Error("a class that is being deleted is accepted")
	}
}

// TestChoices_LongListsAreCut checks that long lists are cut: an annotation can contain thousands of names, and each of
// them costs reads in every pass.
func TestChoices_LongListsAreCut(t *testing.T) {
	for name, text := range map[string]string{
		"one name": strings.Repeat("b,", 100_000),
		"others":   strings.Join(slices.Collect(maps.Keys(numbers(20_000))), ","),
	} {
		t.Run(name, func(t *testing.T) {
			m, s := &v1alpha1.Machine{}, set("a", v1alpha1.MachineClassKind)
			m.Spec.Class = s.Spec.Template.Spec.Class
			m.Annotations = map[string]string{v1alpha1.AnnotationKeyClassChoices: text}
			s.Annotations = map[string]string{v1alpha1.AnnotationKeyFallbackClasses: text}
			want := map[string]int{"one name": 1, "others": 17}[name]
			if machines, sets := len(OfMachine(m)), len(OfSet(s)); machines != want || sets != want+1 {
				t.Errorf("a machine has %d choices, a set %d, want %d, and one more", machines, sets, want)
			}
		})
	}
}

func numbers(n int) map[string]bool {
	all := map[string]bool{}
	for i := range n {
		all[strconv.Itoa(i)] = true
	}
	return all
}
