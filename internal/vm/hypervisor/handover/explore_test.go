package handover

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// edge is one thing that can happen. A fault is something that need not happen.
type edge[W comparable] struct {
	to    W
	name  string
	fault bool
}

// model is what can happen in worlds.
type model[W comparable] struct {
	start W
	edges func(W) []edge[W]
	// guests is how many guests run, and good whether that is what is wanted.
	guests func(W) int
	good   func(W) bool
}

// exploration is all worlds that can be reached.
type exploration[W comparable] struct {
	model[W]
	number map[W]int32
	worlds []W
	from   []int32  // the world before, on a shortest way
	by     []uint16 // what happened there: the place of its name
	names  []string
	named  map[string]uint16
	steps  [][2]int32 // from one world to another, without a fault
}

var (
	errTwoGuests = errors.New("two guests run")
	errNoGuest   = errors.New("no guest will ever run")
)

// explore visits all worlds. It returns how many there are, and an error with the shortest
// story that leads to a bad one.
func explore[W comparable](m model[W]) (int, error) {
	e := &exploration[W]{model: m, number: map[W]int32{}, named: map[string]uint16{}}
	e.visit(m.start, 0, "start")
	for i := 0; i < len(e.worlds); i++ {
		if m.guests(e.worlds[i]) > 1 {
			return i, fmt.Errorf("%w: %s", errTwoGuests, e.story(int32(i)))
		}
		for _, edge := range m.edges(e.worlds[i]) {
			next := e.visit(edge.to, int32(i), edge.name)
			if !edge.fault {
				e.steps = append(e.steps, [2]int32{int32(i), next})
			}
		}
	}
	return len(e.worlds), e.checkEnd()
}

func (e *exploration[W]) visit(w W, from int32, by string) int32 {
	if known, found := e.number[w]; found {
		return known
	}
	id := int32(len(e.worlds))
	e.number[w] = id
	name, known := e.named[by]
	if !known {
		name = uint16(len(e.names))
		e.named[by], e.names = name, append(e.names, by)
	}
	e.worlds, e.from, e.by = append(e.worlds, w), append(e.from, from), append(e.by, name)
	return id
}

// back returns where the worlds are before each one: those of world i are all[first[i]:first[i+1]].
func (e *exploration[W]) back() (first, all []int32) {
	first, all = make([]int32, len(e.worlds)+2), make([]int32, len(e.steps))
	for _, step := range e.steps {
		first[step[1]+2]++
	}
	for i := range len(first) - 1 {
		first[i+1] += first[i]
	}
	for _, step := range e.steps {
		all[first[step[1]+1]] = step[0]
		first[step[1]+1]++
	}
	return first, all
}

// checkEnd returns an error if there is a world from which, without any further fault, no good world is reached.
func (e *exploration[W]) checkEnd() error {
	good := make([]bool, len(e.worlds))
	var queue []int32
	for i, w := range e.worlds {
		if e.good(w) {
			good[i] = true
			queue = append(queue, int32(i))
		}
	}
	first, all := e.back()
	for ; len(queue) > 0; queue = queue[1:] {
		for _, before := range all[first[queue[0]]:first[queue[0]+1]] {
			if !good[before] {
				good[before] = true
				queue = append(queue, before)
			}
		}
	}
	for i := range good {
		if !good[i] {
			return fmt.Errorf("%w: %s", errNoGuest, e.story(int32(i)))
		}
	}
	return nil
}

func (e *exploration[W]) story(i int32) string {
	var steps []string
	for ; i != 0; i = e.from[i] {
		steps = append([]string{e.names[e.by[i]]}, steps...)
	}
	return strings.Join(steps, ", ")
}

// model is that of a migration without leases.
func (r rules) model() model[world] {
	return model[world]{start(), r.edges, world.guests, func(w world) bool { return w.guests() == 1 }}
}

// Two hypervisors, and three: messages are lost, doubled, delayed and reordered at every point,
// and processes crash and restart.
func TestExploration(t *testing.T) {
	for name, test := range map[string]struct {
		rules rules
		least int
	}{
		"two, nobody crashes":   {rules{targets: 1}, 81},
		"three, nobody crashes": {rules{targets: 2}, 1398},
		"two, three crashes":    {rules{targets: 1, crashes: 3, givesUp: true}, 1541},
		"three, one crash":      {rules{targets: 2, crashes: 1, givesUp: true}, 28_918},
	} {
		t.Run(name, func(t *testing.T) {
			count, err := explore(test.rules.model())
			if err != nil {
				t.Fatalf("after %d states: %v", count, err)
			}
			if count < test.least {
				t.Errorf("only %d states", count)
			}
			t.Logf("%d states", count)
		})
	}
}

// Each guard is needed: without it the exploration finds what it prevents.
func TestGuards(t *testing.T) {
	calm := rules{targets: 1}
	for name, test := range map[string]struct {
		rules rules
		// off changes the transitions.
		source map[SourceState]map[SourceEvent]sourceStep
		target map[TargetState]map[TargetEvent]targetStep
		want   error
	}{
		"the target waits for the commit":      {rules: rules{targets: 1, noCommit: true}, want: errTwoGuests},
		"the source takes a new run ID":        {rules: rules{targets: 1, oldRun: true}, want: errTwoGuests},
		"the controller compares":              {rules: rules{targets: 1, noSwap: true}, want: errTwoGuests},
		"the controller repeats a lost answer": {rules: rules{targets: 1, noRepeat: true}, want: errNoGuest},
		"no answer is not a yes": {
			rules: calm, want: errTwoGuests,
			target: map[TargetState]map[TargetEvent]targetStep{Switching: {Unanswered: {Arrived, Run}}},
		},
		"no answer is not a no": {
			rules: calm, want: errNoGuest,
			target: map[TargetState]map[TargetEvent]targetStep{Switching: {Unanswered: {Gone, Exit}}},
		},
		"a no is a no": {
			rules: calm, want: errTwoGuests,
			target: map[TargetState]map[TargetEvent]targetStep{Switching: {Refused: {Arrived, Run}}},
		},
		"the target asks before it runs": {
			rules: calm, want: errTwoGuests,
			target: map[TargetState]map[TargetEvent]targetStep{Incoming: {Received: {Arrived, Run}}},
		},
		"the source asks before it runs again": {
			rules: calm, want: errTwoGuests,
			source: map[SourceState]map[SourceEvent]sourceStep{Awaiting: {TimeOver: {Running, Resume}}},
		},
		"QEMU's failure decides nothing after the commit": {
			rules: calm, want: errTwoGuests,
			source: map[SourceState]map[SourceEvent]sourceStep{Awaiting: {Failed: {Asking, AbandonAndAsk}}},
		},
		"nothing is cancelled after the commit": {
			rules: calm, want: errTwoGuests,
			source: map[SourceState]map[SourceEvent]sourceStep{Awaiting: {Cancelled: {Running, Abandon}}},
		},
		"no answer is not a yes to the source": {
			rules: calm, want: errTwoGuests,
			source: map[SourceState]map[SourceEvent]sourceStep{Reclaiming: {Unknown: {Running, Resume}}},
		},
		"no answer is not a no to the source": {
			rules: calm, want: errNoGuest,
			source: map[SourceState]map[SourceEvent]sourceStep{Reclaiming: {Unknown: {Left, Kill}}},
		},
		"the end of the old run is not that of the new": {
			rules: calm, want: errNoGuest,
			source: map[SourceState]map[SourceEvent]sourceStep{Reclaiming: {Terminated: {Left, Kill}}},
		},
		"a source takes its guest back": {
			rules: calm, want: errNoGuest,
			source: map[SourceState]map[SourceEvent]sourceStep{Awaiting: {TimeOver: {Awaiting, Nothing}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			restoreSource := replace(sourceSteps, test.source)
			defer restoreSource()
			restoreTarget := replace(targetSteps, test.target)
			defer restoreTarget()
			_, err := explore(test.rules.model())
			if !errors.Is(err, test.want) {
				t.Fatalf("error = %v, want %v", err, test.want)
			}
			t.Log(err)
		})
	}
}

// replace changes some transitions until restore.
func replace[S, E comparable, T any](all, some map[S]map[E]T) (restore func()) {
	var undo []func()
	for state, steps := range some {
		for event, step := range steps {
			before, existed := all[state][event]
			all[state][event] = step
			undo = append(undo, func() {
				if all[state][event] = before; !existed {
					delete(all[state], event)
				}
			})
		}
	}
	return func() {
		for _, each := range undo {
			each()
		}
	}
}
