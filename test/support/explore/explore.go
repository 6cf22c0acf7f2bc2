// Package explore visits every state of a small model, to check a protocol under all orders of its events.
package explore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Edge is an event that can occur in a state.
type Edge[S comparable] struct {
	To   S
	Name string
	// Fault marks events that need not occur, such as a crash or a lost message.
	Fault bool
}

// Model is a protocol as a graph of its states.
type Model[S comparable] struct {
	Start S
	// Edges returns the events that can occur in a state.
	Edges func(S) []Edge[S]
	// Check returns an error if a state is invalid.
	Check func(S) error
	// CheckStep returns an error if a transition is invalid. It is optional.
	CheckStep func(name string, to S) error
	// Good reports whether a state is a goal of the protocol. A good state must be reachable from every state
	// without further faults.
	Good func(S) bool
}

// ErrStuck means that no good state is reachable.
var ErrStuck = errors.New("without a further fault, no good state is reached")

// Explore visits all states. It returns their number, and an error with a shortest path to a bad state.
func (m Model[S]) Explore() (int, error) {
	e := &exploration[S]{Model: m, number: map[S]int32{}, named: map[string]uint16{}}
	e.visit(m.Start, 0, "start")
	for i := 0; i < len(e.states); i++ {
		if err := m.Check(e.states[i]); err != nil {
			return i, fmt.Errorf("%w: %s", err, e.story(int32(i)))
		}
		if err := e.follow(int32(i)); err != nil {
			return i, err
		}
	}
	return len(e.states), e.checkEnd()
}

// exploration contains all reachable states.
type exploration[S comparable] struct {
	Model[S]
	number map[S]int32
	states []S
	from   []int32  // the previous state on a shortest path
	by     []uint16 // the index of the event's name
	names  []string
	named  map[string]uint16
	steps  [][2]int32 // transitions without a fault
}

// follow visits the successors of a state.
func (e *exploration[S]) follow(i int32) error {
	for _, edge := range e.Edges(e.states[i]) {
		if e.CheckStep != nil {
			if err := e.CheckStep(edge.Name, edge.To); err != nil {
				return fmt.Errorf("%w: %s, %s", err, e.story(i), edge.Name)
			}
		}
		next := e.visit(edge.To, i, edge.Name)
		if !edge.Fault {
			e.steps = append(e.steps, [2]int32{i, next})
		}
	}
	return nil
}

func (e *exploration[S]) visit(state S, from int32, by string) int32 {
	if known, found := e.number[state]; found {
		return known
	}
	id := int32(len(e.states))
	e.number[state] = id
	name, known := e.named[by]
	if !known {
		name = uint16(len(e.names))
		e.named[by], e.names = name, append(e.names, by)
	}
	e.states, e.from, e.by = append(e.states, state), append(e.from, from), append(e.by, name)
	return id
}

// back returns the predecessors of each state: those of state i are all[first[i]:first[i+1]].
func (e *exploration[S]) back() (first, all []int32) {
	first, all = make([]int32, len(e.states)+2), make([]int32, len(e.steps))
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

// checkEnd returns an error if there is a state from which no good state is reachable without further faults.
func (e *exploration[S]) checkEnd() error {
	good := make([]bool, len(e.states))
	var queue []int32
	for i, state := range e.states {
		if e.Good(state) {
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
	if i := slices.Index(good, false); i >= 0 {
		return fmt.Errorf("%w: %s\n%+v", ErrStuck, e.story(int32(i)), e.states[i])
	}
	return nil
}

func (e *exploration[S]) story(i int32) string {
	var steps []string
	for ; i != 0; i = e.from[i] {
		steps = append(steps, e.names[e.by[i]])
	}
	slices.Reverse(steps)
	return strings.Join(steps, ", ")
}
