package liveupdate

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func class(spec string) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{Provider: "fake", ProviderSpec: runtime.RawExtension{Raw: []byte(spec)}}
}

func TestState_Strategies(t *testing.T) {
	annotated := func(text string) map[string]string {
		return map[string]string{v1alpha1.AnnotationKeyUpdateStrategy: text}
	}
	for name, tc := range map[string]struct {
		ofMachine, ofClass map[string]string
		want               Strategy
		wrong              bool
	}{
		"none":                      {nil, nil, Keep, false},
		"of the class":              {nil, annotated("Update"), Update, false},
		"the Machine's comes first": {annotated("DryRun"), annotated("Update"), DryRun, false},
		"a Machine that is exempt":  {annotated(""), annotated("Update"), Keep, false},
		"nonsense":                  {nil, annotated("update please"), Keep, true},
	} {
		t.Run(name, func(t *testing.T) {
			machine, class := &v1alpha1.Machine{}, class("{}")
			machine.Annotations, class.Annotations = tc.ofMachine, tc.ofClass
			got, wrong := Of(machine, class)
			if got != tc.want || (wrong != "") != tc.wrong {
				t.Errorf("got %q, error %q; want %q", got, wrong, tc.want)
			}
		})
	}
}

func TestDigest(t *testing.T) {
	is := Digest(class(`{"a": 1, "b": {"c": "d"}}`))
	if same := Digest(class(`{"b":{"c":"d"},"a":1}`)); same != is {
		t.Error("the order of fields makes a difference")
	}
	other := class(`{"a": 1, "b": {"c": "d"}}`)
	other.Provider = "another"
	if Digest(other) == is || Digest(class(`{"a": 2, "b": {"c": "d"}}`)) == is || Digest(class(`no JSON`)) == is {
		t.Error("other classes have the same digest")
	}
}

func TestRead_InvalidAnnotations(t *testing.T) {
	for _, text := range []string{"", "null", "[]", "{", `{"digest": 7}`, strings.Repeat("[", 10_000)} {
		state := Read(map[string]string{v1alpha1.AnnotationKeyMadeFrom: text, v1alpha1.AnnotationKeyUpdatePlan: text})
		if step, _ := state.Next(class("{}"), Update); step != Ask {
			t.Errorf("after %.20q, the step is %d, want a query of the driver", text, step)
		}
	}
}

func TestState_LongSpecIsNotStored(t *testing.T) {
	long := class(fmt.Sprintf(`{"a":%q}`, strings.Repeat("x", longestSpec)))
	if made := MadeFrom(long); made.Spec != nil || made.Digest == "" {
		t.Errorf("%d bytes of it are kept", len(made.Spec))
	}
}

// vm is a VM with tags that can change and a size that cannot, as "TAGS/SIZE".
type vm struct{ tags, size string }

func (v vm) differences(want vm) (updates, replacements []string) {
	if v.tags != want.tags {
		updates = []string{"tags"}
	}
	if v.size != want.size {
		replacements = []string{"size"}
	}
	return updates, replacements
}

// TestState_VMReachesClass checks that the last class applies in the end, however class and strategy change
// meanwhile and wherever a process crashes: properties that can change are updated, and the others are
// reported.
func TestState_VMReachesClass(t *testing.T) {
	tier.Check(t, func(t *rapid.T) {
		values := rapid.SampledFrom([]string{"a", "b"})
		draw := func() vm { return vm{values.Draw(t, "tags"), values.Draw(t, "size")} }
		is, want := draw(), draw()
		stored := &v1alpha1.Machine{}
		step := func(strategy Strategy, dies bool) Step {
			desired := class(fmt.Sprintf(`{"tags":%q,"size":%q}`, want.tags, want.size))
			state := Read(stored.Annotations)
			todo, next := state.Next(desired, strategy)
			updates, replacements := is.differences(want)
			switch todo {
			case Ask:
				next = state.Planned(desired, strategy, updates, nil, replacements)
			case Change:
				if strategy != Update {
					t.Fatalf("with strategy %q, a VM was changed", strategy)
				}
				is.tags = want.tags
				next = state.Updated(desired, updates, nil, replacements)
			}
			if todo != Nothing && !dies {
				next.Write(stored)
			}
			return todo
		}
		for range rapid.IntRange(0, 12).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "edit") {
				want = draw()
			}
			step(rapid.SampledFrom([]Strategy{Keep, DryRun, Update}).Draw(t, "strategy"), rapid.Bool().Draw(t, "dies"))
		}
		for i := 0; step(Update, false) != Nothing; i++ {
			if i > 4 {
				t.Fatalf("the update does not complete: %v", stored.Annotations)
			}
		}
		desired := class(fmt.Sprintf(`{"tags":%q,"size":%q}`, want.tags, want.size))
		replaces := Read(stored.Annotations).Effect(desired) == Replaces
		if is.tags != want.tags || replaces != (is.size != want.size) {
			t.Fatalf("the VM is %v, the class %v, and the annotations are %v", is, want, stored.Annotations)
		}
	})
}
