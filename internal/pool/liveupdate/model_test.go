package liveupdate

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// world is a state of the model: the VM, its class, and the annotations of its Machine.
type world struct {
	is, want       vm
	strategy       Strategy
	made, plan     string
	tagsHalf       bool // an update has changed some of the tags
	lies           bool // the driver has denied a difference
	edits, changes int  // of the class and the strategy, and of the driver's mood
}

// mood is the behavior of a driver when it is called.
type mood int

const (
	works mood = iota
	fails
	halfDone // makes a part of the update, and fails
	silent   // makes the update, but the process crashes before it stores the response
	denies   // makes the update, but reports that there was nothing to do
	moods
)

func (w world) class() *v1alpha1.MachineClass {
	return class(fmt.Sprintf(`{"tags":%q,"size":%q}`, w.want.tags, w.want.size))
}

func (w world) state() State {
	return Read(map[string]string{v1alpha1.AnnotationKeyMadeFrom: w.made, v1alpha1.AnnotationKeyUpdatePlan: w.plan})
}

// differences returns the differences that an honest driver reports for the VM.
func (w world) differences() (updates, replacements []string) {
	updates, replacements = w.is.differences(w.want)
	if w.tagsHalf {
		updates = []string{"tags"}
	}
	return updates, replacements
}

func (w world) stored(s State) world {
	machine := &v1alpha1.Machine{}
	s.Write(machine)
	w.made, w.plan = machine.Annotations[v1alpha1.AnnotationKeyMadeFrom], machine.Annotations[v1alpha1.AnnotationKeyUpdatePlan]
	return w
}

// pass runs one pass over the Machine. It also returns whether anything was done.
func (w world) pass(mood mood) (world, bool) {
	state := w.state()
	step, next := state.Next(w.class(), w.strategy)
	switch step {
	case Nothing:
		return w, false
	case Note:
		if mood == silent {
			return w, true // the process crashes before it writes
		}
		return w.stored(next), true
	case Ask:
		updates, replacements := w.differences()
		switch mood {
		case fails, silent, halfDone:
			return w, true
		case denies:
			w.lies, updates = w.lies || len(updates) > 0, nil
		}
		return w.stored(state.Planned(w.class(), w.strategy, updates, nil, replacements)), true
	}
	return w.change(state, mood), true
}

// change is a pass in which the driver makes an update.
func (w world) change(state State, mood mood) world {
	updates, replacements := w.differences()
	switch mood {
	case fails:
		return w
	case halfDone:
		w.tagsHalf = len(updates) > 0
		return w
	case denies: // the engine queries again only if the driver reports a change
		w.lies = w.lies || len(updates) > 0
		return w.stored(state.Updated(w.class(), nil, nil, replacements))
	}
	w.is.tags, w.tagsHalf = w.want.tags, false
	if mood == silent {
		return w
	}
	return w.stored(state.Updated(w.class(), updates, nil, replacements))
}

// wrong returns a false statement in the Machine's annotations, or an empty string.
func (w world) wrong() string {
	if w.lies {
		return "" // the driver is the only source of information about a VM
	}
	reported := w.state()
	was := fmt.Sprintf(`{"tags":%q,"size":%q}`, w.is.tags, w.is.size)
	if raw := string(reported.Spec().Raw); raw != "" && (raw != was || w.tagsHalf) {
		return "the annotations claim that the VM was made from " + raw
	}
	if w.strategy != Keep && reported.Effect(w.class()) == None && (reported.Plan == nil || !reported.Plan.Begun) {
		if updates, replacements := w.differences(); len(updates)+len(replacements) > 0 {
			return "the annotations claim that there is nothing to update"
		}
	}
	return ""
}

// next returns all states that can follow: users edit the class and its strategy, or the driver is called.
func (w world) next() (after []world) {
	if w.edits > 0 {
		for _, tags := range []string{"a", "b"} {
			for _, size := range []string{"a", "b"} {
				next := w
				next.want, next.edits = vm{tags, size}, w.edits-1
				after = append(after, next)
			}
		}
		for _, strategy := range []Strategy{Keep, DryRun, Update} {
			next := w
			next.strategy, next.edits = strategy, w.edits-1
			after = append(after, next)
		}
	}
	for mood := range moods {
		next := w
		if mood != works {
			if next.changes--; next.changes < 0 {
				continue
			}
		}
		if next, did := next.pass(mood); did {
			after = append(after, next)
		}
	}
	return after
}

// end returns the final state of a Machine and its VM if the driver works and there are no more edits.
func (w world) end() (world, string) {
	w.strategy = Update
	for range 6 {
		next, did := w.pass(works)
		if !did {
			updates, replacements := w.differences()
			switch replaces := w.state().Effect(w.class()) == Replaces; {
			case w.lies:
				return w, ""
			case len(updates) > 0:
				return w, "the VM was not updated"
			case replaces != (len(replacements) > 0):
				return w, "it is not recorded whether the VM needs a replacement"
			}
			return w, ""
		}
		w = next
	}
	return w, "the annotations are written forever"
}

// TestModel_KeepsInvariants visits all states of a VM with one property that can be updated and one that cannot. Its class and
// strategy are edited and reverted at any time. Its driver fails, makes a part of an update, lies, or is called
// by a process that crashes. The annotations about a VM are never wrong, unless the driver lied about it. In
// the end, the VM matches the class as far as it can be updated, and nothing is written.
func TestModel_KeepsInvariants(t *testing.T) {
	t.Parallel()
	seen := map[world]bool{}
	var queue []world
	for _, known := range []bool{false, true} {
		w := world{is: vm{"a", "a"}, want: vm{"a", "a"}, strategy: Update, edits: 4, changes: 3}
		if made := MadeFrom(w.class()); known {
			w = w.stored(State{Made: &made})
		}
		seen[w], queue = true, append(queue, w)
	}
	for ; len(queue) > 0; queue = queue[1:] {
		w := queue[0]
		if wrong := w.wrong(); wrong != "" {
			t.Fatalf("%s: %+v", wrong, w)
		}
		if end, wrong := w.end(); wrong != "" {
			t.Fatalf("%s: %+v leads to %+v", wrong, w, end)
		}
		for _, next := range w.next() {
			if !seen[next] {
				seen[next] = true
				queue = append(queue, next)
			}
		}
	}
	begun := slices.ContainsFunc(slices.Collect(maps.Keys(seen)), func(w world) bool { return w.tagsHalf && w.want.tags == w.is.tags })
	if !begun {
		t.Error("no edit was reverted during an update")
	}
	t.Logf("%d states", len(seen))
}
