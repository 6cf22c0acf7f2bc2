package liveupdate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

func TestMadeFrom_StoresCompactSpec(t *testing.T) {
	longest := fmt.Sprintf(`{"a":%q}`, strings.Repeat("x", longestSpec-len(`{"a":""}`)))
	for given, want := range map[string]string{
		`{ "a": 1 }`: `{"a":1}`, `no JSON`: "", longest: longest, longest + " ": longest, longest[:len(longest)-2] + `x"}`: "",
	} {
		if made := MadeFrom(class(given)); string(made.Spec) != want || want == "" && made.Spec != nil || made.Digest != Digest(class(given)) {
			t.Errorf("%.20s: %d bytes stored, want %d", given, len(made.Spec), len(want))
		}
	}
}

func TestDigest_DiffersForInvalidSpecs(t *testing.T) {
	if Digest(class("a text")) == Digest(class("another text")) {
		t.Error("two invalid specifications have the same digest")
	}
}

func TestRead_IgnoresInvalidAnnotations(t *testing.T) {
	for _, text := range []string{"", "[]", "{", `{"digest": 7}`} {
		state := Read(map[string]string{v1alpha1.AnnotationKeyMadeFrom: text, v1alpha1.AnnotationKeyUpdatePlan: text})
		if state.Made != nil || state.Plan != nil {
			t.Errorf("%q: %+v", text, state)
		}
	}
}

func TestState_WriteRemovesWhatIsUnknown(t *testing.T) {
	machine := &v1alpha1.Machine{}
	made := MadeFrom(class("{}"))
	for _, state := range []State{{Made: &made, Plan: &Plan{Digest: "old"}}, {Plan: &Plan{Digest: "old"}}, {Made: &made}, {}} {
		state.Write(machine)
		if diff := cmp.Diff(state, Read(machine.Annotations)); diff != "" {
			t.Errorf("want - got +\n%s", diff)
		}
	}
	if len(machine.Annotations) > 0 {
		t.Errorf("left: %v", machine.Annotations)
	}
	machine.Annotations = map[string]string{"own": "yes"}
	if (State{Made: &made}).Write(machine); machine.Annotations["own"] != "yes" || len(machine.Annotations) != 2 {
		t.Errorf("written to: %v", machine.Annotations)
	}
}

func TestState_SpecIsUnknownDuringUpdate(t *testing.T) {
	made := MadeFrom(class(`{"tags":"a"}`))
	for name, test := range map[string]struct {
		state State
		want  string
	}{
		"nothing is known": {State{}, ""},
		"no update":        {State{Made: &made}, `{"tags":"a"}`},
		"update planned":   {State{Made: &made, Plan: &Plan{}}, `{"tags":"a"}`},
		"update begun":     {State{Made: &made, Plan: &Plan{Begun: true}}, ""},
	} {
		if got := test.state.Spec(); string(got.Raw) != test.want {
			t.Errorf("%s: %q, want %q", name, got.Raw, test.want)
		}
	}
}

func TestOf_WithoutClass(t *testing.T) {
	machine := &v1alpha1.Machine{}
	machine.Annotations = map[string]string{v1alpha1.AnnotationKeyUpdateStrategy: "Update"}
	if got, wrong := Of(machine, nil); got != Update || wrong != "" {
		t.Errorf("got %q and %q", got, wrong)
	}
	if got, wrong := Of(&v1alpha1.Machine{}, nil); got != Keep || wrong != "" {
		t.Errorf("without an annotation: %q and %q", got, wrong)
	}
}

func TestState_QueryComparesWithPlan(t *testing.T) {
	subject := class(`{"tags":"b"}`)
	subject.Name = "b"
	made, digest := MadeFrom(subject), Digest(subject)
	for name, test := range map[string]struct {
		state State
		want  Step
	}{
		"nothing is known":            {State{}, Ask},
		"planned":                     {State{Plan: &Plan{Digest: digest, Class: "b"}}, Nothing},
		"planned for an equal class":  {State{Plan: &Plan{Digest: digest, Class: "c"}}, Ask},
		"planned before an edit":      {State{Plan: &Plan{Digest: "old", Class: "b"}}, Ask},
		"matches, without a plan":     {State{Made: &made}, Note},
		"matches, with another plan":  {State{Made: &made, Plan: &Plan{Digest: "old"}}, Note},
		"matched before an update":    {State{Made: &made, Plan: &Plan{Digest: "old", Begun: true}}, Ask},
		"made from another class":     {State{Made: &Made{Digest: "old"}}, Ask},
		"the same, with another plan": {State{Made: &Made{Digest: "old"}, Plan: &Plan{Digest: "other"}}, Ask},
	} {
		if got, _ := test.state.Query(subject); got != test.want {
			t.Errorf("%s: step %d, want %d", name, got, test.want)
		}
	}
}

func TestState_Next(t *testing.T) {
	desired := class(`{"tags":"b"}`)
	made, digest := MadeFrom(desired), Digest(desired)
	old := &Made{Digest: "old"}
	updates := &Plan{Digest: digest, Updates: []string{"tags"}}
	begun := &Plan{Digest: digest, Updates: []string{"tags"}, Begun: true}
	done := &Plan{Digest: digest, Begun: true, Done: true}
	replaces := &Plan{Digest: digest, Replacements: []string{"zone"}, Done: true}
	stale, interrupted := &Plan{Digest: "old"}, &Plan{Digest: "old", Begun: true}
	for name, test := range map[string]struct {
		state    State
		strategy Strategy
		want     Step
		next     State
	}{
		"keep":                                  {State{}, Keep, Nothing, State{}},
		"keep, with a plan":                     {State{old, updates}, Keep, Nothing, State{old, updates}},
		"nothing is known":                      {State{}, Update, Ask, State{}},
		"matches":                               {State{&made, nil}, Update, Nothing, State{&made, nil}},
		"matches, with the plan of an old one":  {State{&made, stale}, Update, Note, State{&made, nil}},
		"matched before an interrupted update":  {State{&made, interrupted}, Update, Ask, State{&made, interrupted}},
		"matches, but the driver would replace": {State{&made, replaces}, DryRun, Nothing, State{&made, replaces}},
		"made from an old one":                  {State{old, nil}, Update, Ask, State{old, nil}},
		"old plan":                              {State{old, stale}, Update, Ask, State{old, stale}},
		"planned, dry run":                      {State{old, updates}, DryRun, Nothing, State{old, updates}},
		"planned":                               {State{old, updates}, Update, Note, State{old, begun}},
		"begun":                                 {State{old, begun}, Update, Change, State{old, begun}},
		"done":                                  {State{old, done}, Update, Note, State{&made, nil}},
		"done, dry run":                         {State{old, done}, DryRun, Nothing, State{old, done}},
		"must be replaced":                      {State{old, replaces}, Update, Nothing, State{old, replaces}},
	} {
		step, next := test.state.Next(desired, test.strategy)
		if step != test.want {
			t.Errorf("%s: step %d, want %d", name, step, test.want)
		}
		if diff := cmp.Diff(test.next, next); diff != "" {
			t.Errorf("%s: want - got +\n%s", name, diff)
		}
	}
}

func TestState_Planned(t *testing.T) {
	desired := class(`{"tags":"b"}`)
	made, digest := MadeFrom(desired), Digest(desired)
	tags, zone := []string{"tags"}, []string{"zone"}
	old := State{Made: &Made{Digest: "old"}, Plan: &Plan{Digest: "old"}}
	interrupted := State{Made: old.Made, Plan: &Plan{Digest: "old", Begun: true}}
	for name, test := range map[string]struct {
		state                 State
		strategy              Strategy
		updates, replacements []string
		want                  State
	}{
		"dry run":                             {State{}, DryRun, tags, nil, State{nil, &Plan{Digest: digest, Updates: tags}}},
		"dry run, no difference":              {old, DryRun, nil, nil, State{old.Made, &Plan{Digest: digest, Done: true}}},
		"dry run after an interruption":       {interrupted, DryRun, tags, nil, State{old.Made, &Plan{Digest: digest, Updates: tags, Begun: true}}},
		"no difference":                       {interrupted, Update, nil, nil, State{&made, nil}},
		"updates":                             {old, Update, tags, nil, State{old.Made, &Plan{Digest: digest, Updates: tags, Begun: true}}},
		"a replacement":                       {old, Update, nil, zone, State{old.Made, &Plan{Digest: digest, Replacements: zone, Done: true}}},
		"a replacement after an interruption": {interrupted, Update, nil, zone, State{old.Made, &Plan{Digest: digest, Replacements: zone, Begun: true, Done: true}}},
	} {
		got := test.state.Planned(desired, test.strategy, test.updates, nil, test.replacements)
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: want - got +\n%s", name, diff)
		}
	}
	if diff := cmp.Diff(State{&made, nil}, interrupted.Updated(desired, tags, nil, nil)); diff != "" {
		t.Errorf("updated: want - got +\n%s", diff)
	}
	want := State{old.Made, &Plan{Digest: digest, Updates: tags, Replacements: zone, Begun: true, Done: true}}
	if diff := cmp.Diff(want, interrupted.Updated(desired, tags, nil, zone)); diff != "" {
		t.Errorf("updated, must be replaced: want - got +\n%s", diff)
	}
}

func TestState_EffectOfPlanOverridesMade(t *testing.T) {
	desired := class(`{"tags":"b"}`)
	made, digest := MadeFrom(desired), Digest(desired)
	for name, test := range map[string]struct {
		state State
		want  Effect
	}{
		"matches":                    {State{&made, nil}, None},
		"matches, with an old plan":  {State{&made, &Plan{Digest: "old"}}, Undecided},
		"matches, must be replaced":  {State{&made, &Plan{Digest: digest, Replacements: []string{"zone"}}}, Replaces},
		"nothing is known":           {State{}, Undecided},
		"made from an old one":       {State{&Made{Digest: "old"}, nil}, Undecided},
		"made from an old one, plan": {State{&Made{Digest: "old"}, &Plan{Digest: digest}}, Updates},
	} {
		if got := test.state.Effect(desired); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestPlan_Summary(t *testing.T) {
	tags, zone, size := []string{"tags", "notes"}, []string{"zone"}, []string{"cpus"}
	for want, plan := range map[string]Plan{
		"nothing":                                        {},
		"updates (tags, notes)":                          {Updates: tags},
		"replaces (zone)":                                {Replacements: zone, AtNextStart: size},
		"replaces (zone), updates (tags, notes)":         {Replacements: zone, Updates: tags, AtNextStart: size},
		"at its next start: cpus":                        {AtNextStart: size},
		"updates (tags, notes), at its next start: cpus": {Updates: tags, AtNextStart: size},
	} {
		if got := plan.Summary(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
