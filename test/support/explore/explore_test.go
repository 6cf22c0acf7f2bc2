package explore_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/explore"
)

// count is a model that counts up to a limit. At two, it may fall into a hole that it can climb out of.
func count(limit int, climbs bool) explore.Model[int] {
	const hole = -1
	return explore.Model[int]{
		Edges: func(n int) []explore.Edge[int] {
			switch {
			case n == hole && climbs:
				return []explore.Edge[int]{{To: 0, Name: "climb"}}
			case n == hole || n == limit:
				return nil
			case n == 2:
				return []explore.Edge[int]{{To: 3, Name: "next"}, {To: hole, Name: "fall", Fault: true}}
			}
			return []explore.Edge[int]{{To: n + 1, Name: "next"}}
		},
		Check: func(int) error { return nil },
		Good:  func(n int) bool { return n == limit },
	}
}

var errBad = errors.New("bad")

// TestExplore checks that a violation is found, together with the path to it.
func TestExplore(t *testing.T) {
	bad, step := count(4, true), count(4, true)
	bad.Check = func(n int) error {
		if n == 4 {
			return errBad
		}
		return nil
	}
	step.CheckStep = func(name string, to int) error {
		if name == "climb" && to == 0 {
			return errBad
		}
		return nil
	}
	for name, test := range map[string]struct {
		model explore.Model[int]
		want  error
		story string
	}{
		"nothing":   {count(4, true), nil, ""},
		"a state":   {bad, errBad, ": next, next, next, next"},
		"a step":    {step, errBad, ": next, next, fall, climb"},
		"no way on": {count(4, false), explore.ErrStuck, ": next, next, fall"},
	} {
		t.Run(name, func(t *testing.T) {
			states, err := test.model.Explore()
			if !errors.Is(err, test.want) || err != nil && !strings.Contains(err.Error(), test.story) {
				t.Errorf("error = %v, want %v%s", err, test.want, test.story)
			}
			if err == nil && states != 6 {
				t.Errorf("%d states", states)
			}
		})
	}
}
