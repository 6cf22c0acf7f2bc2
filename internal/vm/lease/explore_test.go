package lease

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// exploration is all worlds that can be reached.
type exploration struct {
	rules  rules
	number map[world]int32
	worlds []world
	from   []int32  // the world before, on a shortest way
	by     []string // what happened there
	back   [][]int32
}

var (
	errTwoGuests = errors.New("two guests run")
	errNoGuest   = errors.New("no guest will ever run")
)

// explore visits all worlds. It returns how many there are, and an error with the shortest story that
// leads to a bad one.
func explore(r rules) (int, error) {
	e := &exploration{rules: r, number: map[world]int32{}}
	e.visit(start(r), 0, "start")
	for i := 0; i < len(e.worlds); i++ {
		if r.guests(e.worlds[i]) > 1 {
			return i, fmt.Errorf("%w: %s", errTwoGuests, e.story(int32(i)))
		}
		for _, edge := range r.edges(e.worlds[i]) {
			next := e.visit(edge.to, int32(i), edge.name)
			if !edge.fault {
				e.back[next] = append(e.back[next], int32(i))
			}
		}
	}
	return len(e.worlds), e.checkEnd()
}

func (e *exploration) visit(w world, from int32, by string) int32 {
	if known, found := e.number[w]; found {
		return known
	}
	id := int32(len(e.worlds))
	e.number[w] = id
	e.worlds, e.from, e.by = append(e.worlds, w), append(e.from, from), append(e.by, by)
	e.back = append(e.back, nil)
	return id
}

// checkEnd returns an error if there is a world from which, without any further fault, the holder's guest does
// not run.
func (e *exploration) checkEnd() error {
	good := make([]bool, len(e.worlds))
	var queue []int32
	for i, w := range e.worlds {
		if e.rules.runs(w.processes[w.holder]) && states[w.state] == Open {
			good[i] = true
			queue = append(queue, int32(i))
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		for _, before := range e.back[queue[0]] {
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

func (e *exploration) story(i int32) string {
	var steps []string
	for ; i != 0; i = e.from[i] {
		steps = append([]string{e.by[i]}, steps...)
	}
	return strings.Join(steps, ", ")
}

// Two hypervisors, and three: messages are lost, doubled, delayed and reordered at every point, processes are
// paused, crash and restart, Pods seem to be gone, and two controllers believe that they are the leader.
func TestExploration(t *testing.T) {
	for name, test := range map[string]struct {
		rules rules
		least int
	}{
		"two":                  {rules{processes: 2, granters: 1, crashes: 2}, 81_648},
		"two, slow holders":    {rules{processes: 2, granters: 1, crashes: 1, holderRate: -1, granterRate: 1}, 54_432},
		"two, fast holders":    {rules{processes: 2, granters: 1, crashes: 1, holderRate: 1, granterRate: -1}, 54_432},
		"two, two controllers": {rules{processes: 2, granters: 2, crashes: 1, holderRate: -1, granterRate: 1}, 358_452},
		"three, slow holders":  {rules{processes: 3, granters: 1, crashes: 1, single: true, holderRate: -1, granterRate: 1}, 389_286},
		"three":                {rules{processes: 3, granters: 1}, 367_416},
	} {
		t.Run(name, func(t *testing.T) {
			count, err := explore(test.rules)
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
	slow := func(change func(*rules)) rules {
		r := rules{processes: 2, granters: 1, crashes: 1, holderRate: -1, granterRate: 1}
		change(&r)
		return r
	}
	for name, test := range map[string]struct {
		rules rules
		want  error
	}{
		"the controller waits for slower clocks":                    {slow(func(r *rules) { r.noMargin = true }), errTwoGuests},
		"a watchdog kills the guest of a process that is paused":    {slow(func(r *rules) { r.noWatchdog = true }), errTwoGuests},
		"the holder counts from its request":                        {slow(func(r *rules) { r.fromReceipt = true }), errTwoGuests},
		"the controller reads what is stored":                       {slow(func(r *rules) { r.cachedReads = true }), errTwoGuests},
		"the lease is barred before it is handed on":                {slow(func(r *rules) { r.noBar = true }), errTwoGuests},
		"each time of being barred counts anew":                     {slow(func(r *rules) { r.sameBar = true }), errTwoGuests},
		"another controller waits again":                            {slow(func(r *rules) { r.noWait = true }), errTwoGuests},
		"a suspected holder is opened again before it gets a lease": {slow(func(r *rules) { r.noReopen = true }), errTwoGuests},
		"a revoked holder gets no lease":                            {slow(func(r *rules) { r.revokedToo = true }), errTwoGuests},
		"the guest ends before its lease is released":               {slow(func(r *rules) { r.earlyRelease = true }), errTwoGuests},
		"a silent holder is suspected":                              {slow(func(r *rules) { r.noSuspicion = true }), errNoGuest},
	} {
		t.Run(name, func(t *testing.T) {
			count, err := explore(test.rules)
			if !errors.Is(err, test.want) {
				t.Fatalf("after %d states: error = %v, want %v", count, err, test.want)
			}
			t.Log(err)
		})
	}
}
