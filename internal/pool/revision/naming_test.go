package revision

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

func TestLast_IgnoresHighestPossibleRevision(t *testing.T) {
	highest := fmt.Sprint(math.MaxInt64)
	for name, test := range map[string]struct {
		sets []*v1alpha1.MachineSet
		want int64
	}{
		"no sets":              {nil, 0},
		"highest revision":     {[]*v1alpha1.MachineSet{set("a3"), set("b7"), set("c5")}, 7},
		"cannot be followed":   {[]*v1alpha1.MachineSet{set("a" + highest), set("b7")}, 7},
		"can just be followed": {[]*v1alpha1.MachineSet{set("a" + fmt.Sprint(math.MaxInt64-1))}, math.MaxInt64 - 1},
		"negative":             {[]*v1alpha1.MachineSet{set("a-3")}, 0},
	} {
		if got := Last(test.sets); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

func TestGive_WritesNoHistoryForFirstRevision(t *testing.T) {
	of := set("a1", func(of *v1alpha1.MachineSet) { of.Annotations = nil })
	Give(of, 1)
	if got, ok := of.Annotations[v1alpha1.AnnotationKeyRevisionHistory]; ok {
		t.Errorf("the first revision has the history %q", got)
	}
	Give(of, 2)
	if got := of.Annotations[v1alpha1.AnnotationKeyRevisionHistory]; got != "1" || Number(of) != 2 {
		t.Errorf("revision %d has the history %q, want 2 and 1", Number(of), got)
	}
}

func TestHash_DependsOnCollisions(t *testing.T) {
	template := &set("a1").Spec.Template
	encoded, err := json.Marshal(Essence(template))
	if err != nil {
		t.Fatal(err)
	}
	for collisions, suffix := range []string{"", "1", "2"} {
		hash := fnv.New32a()
		_, _ = hash.Write(append(encoded, suffix...))
		if got, want := Hash(template, int32(collisions)), fmt.Sprint(hash.Sum32()); got != want {
			t.Errorf("%d collisions: %s, want %s", collisions, got, want)
		}
	}
}

func TestCreatedFor_ComparesNameWithHash(t *testing.T) {
	deployment := &v1alpha1.MachineDeployment{}
	deployment.Name = "pool"
	for name, test := range map[string]struct {
		set, hash string
		want      bool
	}{
		"name and hash":       {SetName("pool", "123"), "123", true},
		"another deployment":  {SetName("other", "123"), "123", false},
		"another hash":        {SetName("pool", "123"), "456", false},
		"no hash":             {"a1", "", false},
		"no hash in the name": {SetName("pool", ""), "", false},
	} {
		of := set("a1")
		of.Name = test.set
		if test.hash != "" {
			of.Spec.Template.Labels = map[string]string{v1alpha1.DefaultMachineDeploymentUniqueLabelKey: test.hash}
		}
		if got := CreatedFor(deployment, of); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}

// A deployment may have hundreds of old sets, whose templates are compared in each pass.
func TestCurrent_DoesNotAllocateForSetsThatDiffer(t *testing.T) {
	desired := set("a1").Spec.Template.DeepCopy()
	desired.Annotations = map[string]string{"restartedAt": "noon"}
	annotated := func(of *v1alpha1.MachineSet) { of.Spec.Template.Annotations = map[string]string{"restartedAt": "dawn"} }
	for name, old := range map[string]*v1alpha1.MachineSet{
		"class": set("b1", func(of *v1alpha1.MachineSet) { of.Spec.Template.Annotations = desired.Annotations }), "annotations": set("a2", annotated),
	} {
		cost := func(sets ...*v1alpha1.MachineSet) float64 {
			return testing.AllocsPerRun(10, func() { Current(sets, desired) })
		}
		if one, three := cost(old), cost(old, old, old); three > one {
			t.Errorf("different %s: %.0f allocations for one set and %.0f for three", name, one, three)
		}
	}
}

func TestEssence_SharesLabelsWithoutHash(t *testing.T) {
	template := &v1alpha1.MachineTemplateSpec{}
	template.Labels = map[string]string{"name": "pool"}
	cost := func() float64 { return testing.AllocsPerRun(10, func() { essence = Essence(template) }) }
	without := cost()
	template.Labels[v1alpha1.DefaultMachineDeploymentUniqueLabelKey] = "1"
	if with := cost(); without >= with || len(essence.Labels) != 1 || len(template.Labels) != 2 {
		t.Errorf("%.0f allocations without the set's label and %.0f with it; labels %v of %v", without, with, essence.Labels, template.Labels)
	}
}

// essence prevents the compiler from removing a call.
var essence *v1alpha1.MachineTemplateSpec
