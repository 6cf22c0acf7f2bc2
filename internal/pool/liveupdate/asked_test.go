package liveupdate

import (
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestState_RequestForOtherClass checks that a driver's response about one class does not count for another class,
// and does not change what is known about the VM.
func TestState_RequestForOtherClass(t *testing.T) {
	named := func(name, spec string) *v1alpha1.MachineClass {
		class := class(spec)
		class.Name = name
		return class
	}
	own, other := named("own", `{"tags":"a"}`), named("other", `{"tags":"b"}`)
	made := MadeFrom(own)
	s := State{Made: &made}
	if step, _ := s.Query(other); step != Ask {
		t.Errorf("for a class that was not queried, the step is %d", step)
	}
	s = s.Queried(other, []string{"tags"}, nil, nil)
	if step, _ := s.Query(other); step != Nothing || s.EffectOn("other") != Updates {
		t.Errorf("after the response, the step is %d and the effect %q", step, s.EffectOn("other"))
	}
	if string(s.Spec().Raw) != string(made.Spec) {
		t.Errorf("the VM was made from %s", s.Spec().Raw)
	}
	if effect := s.EffectOn("third"); effect != Undecided {
		t.Errorf("the effect of a third class is %q", effect)
	}
	if step, _ := s.Query(named("other", `{"tags":"c"}`)); step != Ask {
		t.Errorf("after an edit of that class, the step is %d", step)
	}
	if replaced := s.Queried(other, []string{"tags"}, nil, []string{"size"}); replaced.EffectOn("other") != Replaces {
		t.Errorf("the effect of a replacement is %q", replaced.EffectOn("other"))
	}
}

// TestState_RequestForSameSpec checks that the driver is not queried about a class with the same specification.
func TestState_RequestForSameSpec(t *testing.T) {
	same := class(`{"tags":"a"}`)
	same.Name = "copy"
	made := MadeFrom(same)
	step, next := State{Made: &made}.Query(same)
	if step != Note || next.EffectOn("copy") != None || next.Made == nil {
		t.Errorf("the step is %d, and the effect %q", step, next.EffectOn("copy"))
	}
	begun := State{Made: &made, Plan: &Plan{Digest: "another", Begun: true}}
	if step, _ := begun.Query(same); step != Ask {
		t.Errorf("during an update, the step is %d", step)
	}
}

// TestSettled checks that an update to a class is complete when the VM matches it, or cannot match it without a
// replacement.
func TestSettled(t *testing.T) {
	desired := class(`{"tags":"b"}`)
	made, digest := MadeFrom(desired), Digest(desired)
	for name, tc := range map[string]struct {
		state State
		want  bool
	}{
		"nothing is known":     {State{}, false},
		"made from it":         {State{Made: &made}, true},
		"planned":              {State{Plan: &Plan{Digest: digest, Updates: []string{"tags"}}}, false},
		"begun":                {State{Plan: &Plan{Digest: digest, Updates: []string{"tags"}, Begun: true}}, false},
		"nothing to do":        {State{Plan: &Plan{Digest: digest, Done: true}}, false}, // must be recorded first
		"only by a new one":    {State{Plan: &Plan{Digest: digest, Replacements: []string{"size"}, Done: true}}, true},
		"the rest is made":     {State{Plan: &Plan{Digest: digest, Updates: []string{"tags"}, Replacements: []string{"size"}}}, false},
		"response for another": {State{Plan: &Plan{Digest: "other", Replacements: []string{"size"}, Done: true}}, false},
	} {
		if got := Settled(tc.state, desired); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}
