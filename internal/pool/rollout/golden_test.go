package rollout_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// script has the changes before each round of a transcript.
type script map[int]func(*model)

func user(changes ...change) func(*model) {
	return func(w *model) {
		for _, change := range changes {
			change(w.deployment)
		}
	}
}

func scaledTo(replicas int32) func(*model) { return func(w *model) { w.scaleTo(replicas) } }

// outage makes every second available machine fail.
func outage(w *model) {
	n := 0
	w.each(func(s *modelSet, m *modelMachine) {
		if n++; m.available() && n%2 == 0 {
			s.fail(m)
		}
	})
}

// preserveOne makes a machine fail that must then be preserved.
func preserveOne(w *model) {
	w.sets[0].preserve(w.sets[0].machines[0])
}

// newOnesFail prevents the machines of class b from becoming available.
func newOnesFail(w *model) {
	w.each(func(s *modelSet, m *modelMachine) {
		if w.name(s) == "b" && m.phase == v1alpha1.MachinePending {
			m.phase = v1alpha1.MachineFailed
		}
	})
}

// story starts with machines of class a, follows the script, and returns a transcript.
func story(w *model, script script, rounds int) string {
	var text strings.Builder
	w.strict = true
	w.settle(nil)
	w.logf = func(format string, args ...any) { fmt.Fprintf(&text, "  "+format+"\n", args...) }
	fmt.Fprintf(&text, "before: %s\n", w)
	for round := 1; round <= rounds; round++ {
		if happens := script[round]; happens != nil {
			happens(w)
			fmt.Fprintf(&text, "change: %d machines of class %s desired, paused %t: %s\n", w.deployment.Spec.Replicas,
				w.deployment.Spec.Template.Spec.Class.Name, w.deployment.Spec.Paused, w)
		}
		fmt.Fprintf(&text, "round %d\n", round)
		w.round(nil)
		fmt.Fprintf(&text, "  %s; %d exist, %d are available\n", w, w.total(), w.available())
		if w.done() && round >= len(script) {
			break
		}
	}
	return text.String()
}

func TestRollout_GoldenTranscripts(t *testing.T) {
	t.Parallel()
	resumed := func(d *v1alpha1.MachineDeployment) { d.Spec.Paused = false }
	always := script{1: func(w *model) { user(fixture.OfClass("b"))(w) }}
	for round := 2; round <= 8; round++ {
		always[round] = newOnesFail
	}
	for file, test := range map[string]struct {
		model  *model
		script script
		// stays reports that the rollout does not complete.
		stays bool
	}{
		"rolling":                {model: newModel(fixture.Deployment(5, fixture.Rolling("1", "1"))), script: script{1: user(fixture.OfClass("b"))}},
		"recreate":               {model: newModel(fixture.Deployment(3, fixture.Recreate)), script: script{1: user(fixture.OfClass("b"))}},
		"no-surge":               {model: newModel(fixture.Deployment(4, fixture.Rolling("0", "1"))), script: script{1: user(fixture.OfClass("b"))}},
		"none-unavailable":       {model: newModel(fixture.Deployment(4, fixture.Rolling("1", "0"))), script: script{1: user(fixture.OfClass("b"))}},
		"thirty-percent":         {model: newModel(fixture.Deployment(10, fixture.Rolling("30%", "30%"))), script: script{1: user(fixture.OfClass("b"))}},
		"rollout-during-rollout": {model: newModel(fixture.Deployment(5, fixture.Rolling("1", "1"))), script: script{1: user(fixture.OfClass("b")), 3: user(fixture.OfClass("c"))}},
		"rollback-in-the-middle": {model: newModel(fixture.Deployment(5, fixture.Rolling("1", "1"))), script: script{1: user(fixture.OfClass("b")), 4: user(fixture.OfClass("a"))}},
		"scaled-down":            {model: newModel(fixture.Deployment(10, fixture.Rolling("2", "2"))), script: script{1: user(fixture.OfClass("b")), 4: scaledTo(4)}},
		"scaled-up":              {model: newModel(fixture.Deployment(4, fixture.Rolling("1", "1"))), script: script{1: user(fixture.OfClass("b")), 4: scaledTo(8)}},
		"paused":                 {model: newModel(fixture.Deployment(6, fixture.Rolling("2", "1"))), script: script{1: user(fixture.OfClass("b")), 3: user(fixture.Paused), 6: scaledTo(4), 9: user(resumed)}},
		"paused-before-a-rollout": {model: newModel(fixture.Deployment(6, fixture.Rolling("2", "1"))), script: script{
			1: user(fixture.OfClass("b")), 3: user(fixture.Paused, fixture.OfClass("c")), 4: scaledTo(10), 8: scaledTo(4), 11: user(resumed),
		}},
		"zone-outage":  {model: newModel(fixture.Deployment(6, fixture.Rolling("1", "1"))), script: script{1: user(fixture.OfClass("b")), 4: outage}},
		"preserved":    {model: newModel(fixture.Deployment(4, fixture.Rolling("0", "1"))), script: script{1: preserveOne, 2: user(fixture.OfClass("b"))}},
		"all-new-fail": {model: newModel(fixture.Deployment(4, fixture.Rolling("1", "1"))), script: always, stays: true},
	} {
		t.Run(file, func(t *testing.T) {
			rounds := 60
			if test.stays {
				rounds = len(test.script)
			}
			compareGolden(t, file+".golden", story(test.model, test.script, rounds))
			if test.model.broken != "" && (file != "recreate" || strings.Contains(test.model.broken, "facts")) { // Recreate has no bounds
				t.Error(test.model.broken)
			}
			if test.model.done() == test.stays {
				t.Errorf("complete: %t", test.model.done())
			}
			if minAvailable := int(test.model.minAvailable()); test.stays && test.model.available() < minAvailable {
				t.Errorf("%d available, at least %d required", test.model.available(), minAvailable)
			}
		})
	}
}

func compareGolden(t *testing.T, file, got string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("run go test -update to rewrite the file: want - got +\n%s", diff)
	}
}
