package revision

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// set returns a set whose age, class and revision are given by its name: "a1" is older than "b7".
func set(name string, changes ...func(*v1alpha1.MachineSet)) *v1alpha1.MachineSet {
	made := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC).Add(time.Duration(name[0]-'a') * time.Hour)
	of := &v1alpha1.MachineSet{ObjectMeta: metav1.ObjectMeta{
		Name: name, CreationTimestamp: metav1.NewTime(made), Annotations: map[string]string{v1alpha1.AnnotationKeyRevision: name[1:]},
	}}
	of.Spec.Template.Spec.Class.Name = name[:1]
	for _, change := range changes {
		change(of)
	}
	return of
}

func leaving(of *v1alpha1.MachineSet) {
	of.DeletionTimestamp = &metav1.Time{Time: of.CreationTimestamp.Time}
}

// TestEqual_ComparesEveryField checks that a change of any template field, with three exceptions, makes a different
// template. New fields must be added to the test explicitly.
func TestEqual_ComparesEveryField(t *testing.T) {
	free := []string{"NodeTemplateSpec", "MachineConfiguration"}
	fields := reflect.TypeFor[v1alpha1.MachineSpec]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		given, changed := &v1alpha1.MachineTemplateSpec{}, &v1alpha1.MachineTemplateSpec{}
		switch name {
		case "Class":
			changed.Spec.Class.Name = "other"
		case "ProviderID":
			changed.Spec.ProviderID = "other"
		case "NodeTemplateSpec":
			changed.Spec.NodeTemplateSpec.Labels = map[string]string{"other": "yes"}
		case "MachineConfiguration":
			changed.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{DisableHealthTimeout: new(bool)}
		default:
			t.Fatalf("the field %s is new: decide whether a change of it must start a rollout", name)
		}
		if got, want := Same(given, changed), slices.Contains(free, name); got != want {
			t.Errorf("%s: the same: %t, want %t", name, got, want)
		}
	}
	given, changed := &v1alpha1.MachineTemplateSpec{}, &v1alpha1.MachineTemplateSpec{}
	changed.Spec.Class.Kind = "AWSMachineClass"
	changed.Labels = map[string]string{v1alpha1.DefaultMachineDeploymentUniqueLabelKey: "1"}
	if !Same(given, changed) || changed.Spec.Class.Kind == "" || len(changed.Labels) != 1 {
		t.Errorf("a migrated class: the same: %t; changed: %+v", Same(given, changed), changed)
	}
}

func TestCurrent(t *testing.T) {
	sets := []*v1alpha1.MachineSet{set("a1", leaving), set("a2"), set("b3"), set("a2", func(of *v1alpha1.MachineSet) { of.Name = "a2-twin" }), set("c4")}
	slices.Reverse(sets)
	slices.SortFunc(sets, Older)
	for class, want := range map[string]string{"a": "a2", "b": "b3", "c": "c4", "d": ""} {
		template := &v1alpha1.MachineTemplateSpec{}
		template.Spec.Class.Name = class
		if got := name(Current(sets, template)); got != want {
			t.Errorf("class %s: %q, want %q", class, got, want)
		}
	}
}

func TestPick(t *testing.T) {
	unnumbered := set("d0", func(of *v1alpha1.MachineSet) { of.Annotations = nil })
	garbled := set("e5", func(of *v1alpha1.MachineSet) { of.Annotations[v1alpha1.AnnotationKeyRevision] = "five" })
	for reason, test := range map[string]struct {
		sets   []*v1alpha1.MachineSet
		number int64
		want   string
	}{
		"by number":                            {[]*v1alpha1.MachineSet{set("a1"), set("b2")}, 1, "a1"},
		"the last":                             {[]*v1alpha1.MachineSet{set("a1"), set("b2")}, 2, "b2"},
		"the one before":                       {[]*v1alpha1.MachineSet{set("a1"), set("b2"), set("c3")}, 0, "b2"},
		"an old set that became current again": {[]*v1alpha1.MachineSet{set("a3"), set("b2")}, 0, "b2"},
		"nothing before":                       {[]*v1alpha1.MachineSet{set("a1")}, 0, ""},
		"none at all":                          {nil, 0, ""},
		"never was":                            {[]*v1alpha1.MachineSet{set("a1"), set("b2")}, 7, ""},
		"below":                                {[]*v1alpha1.MachineSet{set("a1"), set("b2")}, -1, ""},
		"it is being deleted":                  {[]*v1alpha1.MachineSet{set("a1", leaving), set("b2")}, 1, ""},
		"before one that is being deleted":     {[]*v1alpha1.MachineSet{set("a1"), set("b2", leaving), set("c3")}, 0, "a1"},
		"without a number":                     {[]*v1alpha1.MachineSet{unnumbered, garbled, set("b2")}, 0, ""},
		"far apart":                            {[]*v1alpha1.MachineSet{set("b9223372036854775807"), set("a-9223372036854775807"), set("c3")}, 0, "c3"},
	} {
		t.Run(reason, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 0))
			for range 5 {
				shuffled := make([]*v1alpha1.MachineSet, len(test.sets))
				for to, from := range random.Perm(len(shuffled)) {
					shuffled[to] = test.sets[from]
				}
				before := slices.Clone(shuffled)
				if got := name(Pick(shuffled, test.number)); got != test.want {
					t.Errorf("%q, want %q", got, test.want)
				}
				if !slices.Equal(before, shuffled) {
					t.Error("the order of the sets changed")
				}
			}
		})
	}
}

func TestNumber(t *testing.T) {
	for text, want := range map[string]int64{"": 0, "7": 7, "seven": 0, "9223372036854775808": 0} {
		deployment := &v1alpha1.MachineDeployment{}
		deployment.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: text}
		if got := Number(deployment); got != want {
			t.Errorf("%s: %s, want %d", strconv.Quote(text), strconv.FormatInt(got, 10), want)
		}
	}
}

// TestHistory_IsBounded checks that the oldest revisions are removed from the history.
func TestHistory_IsBounded(t *testing.T) {
	of := set("a77")
	of.Annotations[v1alpha1.AnnotationKeyRevisionHistory] = "1,2," + strings.Repeat("300,", 600) + "76"
	Give(of, 100)
	got := of.Annotations[v1alpha1.AnnotationKeyRevisionHistory]
	if len(got) > longestHistory || len(got) < longestHistory-4 || !strings.HasPrefix(got, "300,") || !strings.HasSuffix(got, ",300,76,77") {
		t.Errorf("%d characters: %.20s…%s", len(got), got, got[max(0, len(got)-20):])
	}
	of.Annotations[v1alpha1.AnnotationKeyRevision] = strings.Repeat("x", longestHistory+1)
	Give(of, 101)
	if got := of.Annotations[v1alpha1.AnnotationKeyRevisionHistory]; len(got) > longestHistory {
		t.Errorf("%d characters", len(got))
	}
}

func name(of *v1alpha1.MachineSet) string {
	if of == nil {
		return ""
	}
	return of.Name
}
