package crash

import (
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/driver/sim"
)

// TestSuccession checks at which points the world is as an earlier operation has left it, and which operation
// that is.
func TestSuccession(t *testing.T) {
	for name, tc := range map[string]struct {
		play func(w *scriptedWorld)
		want map[string]string
	}{
		"one after another": {
			func(w *scriptedWorld) { w.whole("a"); w.whole("b"); w.whole("c") },
			map[string]string{"b": "a", "c": "b"},
		},
		"at the same time": {
			func(w *scriptedWorld) {
				w.whole("a")
				w.begin("b")
				w.begin("c")
				w.end("c")
				w.end("b")
				w.whole("d")
			},
			map[string]string{"b": "a", "c": "b", "d": "c"},
		},
		"amid a longer one": {
			func(w *scriptedWorld) { w.begin("a"); w.whole("b"); w.whole("c"); w.end("a"); w.whole("d") },
			map[string]string{"b": "a", "c": "b", "d": "c"},
		},
		"another client has written": {
			func(w *scriptedWorld) { w.whole("a"); w.state = "changed"; w.whole("b"); w.whole("c") },
			map[string]string{"c": "b"},
		},
		"another client wrote while it was carried out": {
			func(w *scriptedWorld) { w.begin("a"); w.state = "changed"; w.end("a"); w.whole("b") },
			map[string]string{"b": "a"},
		},
		"another client has begun to write": {
			func(w *scriptedWorld) {
				w.whole("a")
				w.changing = true
				w.whole("b")
				w.changing = false
				w.whole("c")
			},
			map[string]string{},
		},
		"time has passed": {
			func(w *scriptedWorld) { w.whole("a"); w.time = w.time.Add(grace); w.whole("b"); w.whole("c") },
			map[string]string{"c": "b"},
		},
		"after an operation that is not a point": {
			func(w *scriptedWorld) { w.whole("a"); w.noPoint(); w.whole("b"); w.whole("c") },
			map[string]string{"c": "b"},
		},
		"amid an operation that is not a point": {
			func(w *scriptedWorld) {
				w.succession.begin(point{})
				w.whole("a")
				w.succession.end(point{}, false)
				w.whole("b")
			},
			map[string]string{"b": "a"},
		},
		"another client wrote before it was complete": {
			func(w *scriptedWorld) { w.begin("a"); w.state = "changed"; w.whole("b"); w.end("a") },
			map[string]string{},
		},
		"time has passed before it ended": {
			func(w *scriptedWorld) { w.begin("a"); w.time = w.time.Add(grace); w.whole("b"); w.end("a") },
			map[string]string{},
		},
		"an idle one": {
			func(w *scriptedWorld) { w.whole("a"); w.idle("b"); w.idle("c"); w.whole("d"); w.whole("e") },
			map[string]string{"b": "a", "c": "a", "d": "a", "e": "d"},
		},
		"an idle one that succeeds none": {
			func(w *scriptedWorld) { w.idle("a"); w.idle("b"); w.whole("c") },
			map[string]string{"b": "a", "c": "a"},
		},
		"time has passed with idle ones": {
			func(w *scriptedWorld) {
				w.whole("a")
				w.time = w.time.Add(grace / 2)
				w.idle("b")
				w.time = w.time.Add(grace / 2)
				w.idle("c")
				w.whole("d")
			},
			map[string]string{"b": "a", "d": "c"},
		},
		"amid an idle one": {
			func(w *scriptedWorld) {
				w.whole("a")
				w.begin("b")
				w.whole("c")
				w.succession.end(verbOnly("b"), true)
				w.whole("d")
			},
			map[string]string{"b": "a", "c": "b", "d": "c"},
		},
		"before the end of one that began later": {
			func(w *scriptedWorld) {
				w.begin("a")
				w.whole("b")
				w.begin("c")
				w.begin("d")
				w.end("a")
				w.whole("e")
			},
			map[string]string{"b": "a", "c": "b", "d": "c", "e": "d"},
		},
		"others cannot be seen": {
			func(w *scriptedWorld) { w.outside = nil; w.whole("a"); w.whole("b") },
			map[string]string{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newScriptedWorld()
			tc.play(w)
			got := map[string]string{}
			for p, succeeded := range w.found.succeeding {
				got[p.verb] = succeeded.verb
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("succeeding points (-want +got):\n%s", diff)
			}
		})
	}
}

// scriptedWorld is a succession whose points are named by their verbs, with the world around it.
type scriptedWorld struct {
	*succession
	time     time.Time
	state    string
	changing bool
}

func newScriptedWorld() *scriptedWorld {
	w := &scriptedWorld{succession: newSuccession(), time: time.Unix(0, 0)}
	w.now = func() time.Time { return w.time }
	w.outside = func() (string, bool) { return w.state, w.changing }
	return w
}

// verbOnly is the first point of an operation, named by its verb.
func verbOnly(verb string) point { return point{operation{verb: verb}, 1} }

func (w *scriptedWorld) begin(verb string) { w.succession.begin(verbOnly(verb)) }
func (w *scriptedWorld) end(verb string)   { w.succession.end(verbOnly(verb), false) }

func (w *scriptedWorld) whole(verb string) {
	w.begin(verb)
	w.end(verb)
}

// idle simulates an operation that changes nothing.
func (w *scriptedWorld) idle(verb string) {
	w.begin(verb)
	w.succession.end(verbOnly(verb), true)
}

func (w *scriptedWorld) noPoint() {
	w.succession.begin(point{})
	w.succession.end(point{}, false)
}

// TestSuccession_NothingStartsAtPoint checks that the manager's operations wait while the planned operation is executed,
// and that they are not executed after the crash, even if they result from it.
func TestSuccession_NothingStartsAtPoint(t *testing.T) {
	planned, next := verbOnly("planned"), verbOnly("next")
	for _, w := range []way{after, lost} {
		synctest.Test(t, func(t *testing.T) {
			g := newGate(&crash{point: planned, way: w})
			p := &process{cmd: &exec.Cmd{Process: &os.Process{}}, done: make(chan struct{})} // there is no such process
			close(p.done)
			g.runs(p)
			g.count(true)
			var carriedOut bool
			var rest sync.WaitGroup
			g.pass(p, planned.operation, func() bool {
				rest.Go(func() { g.pass(p, next.operation, func() bool { carriedOut = true; return false }) })
				synctest.Wait()
				return false
			})
			rest.Wait()
			if carriedOut || !g.reached() {
				t.Errorf("%s: the next operation was carried out: %t; the point was reached: %t", w, carriedOut, g.reached())
			}
		})
	}
}

// TestSuccession_DistinctCrashPoints checks which crashes are tried: before a point, unless the world is as after the previous
// one; and with a lost response, unless the operation has changed nothing. If more than one process acts, all
// crashes are tried.
func TestSuccession_DistinctCrashPoints(t *testing.T) {
	question := point{operation{"driver", string(sim.ListMachines), ""}, 1}
	first, second, refused, last := verbOnly("first"), verbOnly("second"), verbOnly("refused"), verbOnly("last")
	points := []point{first, second, question, refused, last}
	same := sameWorlds{succeeding: map[point]point{second: first, question: second, refused: second}, idle: map[point]bool{question: true, refused: true, last: true}}
	want := []crash{{point: first, way: before}, {point: first, way: lost}, {point: second, way: lost}, {point: refused, way: lost}, {point: last, way: lost}, {way: unanswered}}
	if got := (scenario{}).crashPoints(points, same); !cmp.Equal(got, want, cmp.AllowUnexported(crash{}, point{}, operation{})) {
		t.Errorf("the crash points are %v, want %v", got, want)
	}
	if got := (scenario{}).crashPoints(points[:2], same); slices.Contains(got, crash{way: unanswered}) {
		t.Errorf("the crash points without queries of the driver are %v", got)
	}
	same.idle = nil
	if got := (scenario{}).crashPoints(points, same); len(got) != 2*len(points)-len(same.succeeding) {
		t.Errorf("the crash points without idle operations are %v", got)
	}
	for _, s := range []scenario{{plugIn: theManager}, {plugIn: thePlugIn}, {secondManager: true}} {
		if got := s.crashPoints(points, same); len(got) != len(crashes(points)) {
			t.Errorf("with %+v, the crash points are %v, not all", s, got)
		}
	}
}

// TestSuccession_LostResponses checks that the first response to each query of the driver is lost, without a crash.
func TestSuccession_LostResponses(t *testing.T) {
	g := newGate(&crash{way: unanswered})
	p := &process{cmd: &exec.Cmd{Process: &os.Process{}}, done: make(chan struct{})} // there is no such process
	close(p.done)
	g.runs(p)
	g.count(true)
	asks := operation{"driver", string(sim.GetMachineStatus), "machines#1"}
	creates := operation{"driver", string(sim.CreateMachine), "machines#1"}
	for _, step := range []struct {
		operation
		responded bool
	}{{creates, true}, {asks, false}, {creates, true}, {asks, true}, {operation{"api", "patch", "machines#1"}, true}} {
		carriedOut := false
		if responded := g.pass(p, step.operation, func() bool { carriedOut = true; return false }); responded != step.responded || !carriedOut {
			t.Errorf("%s: responded %t, carried out %t", step.operation, responded, carriedOut)
		}
	}
	if !g.lives(p) || !g.reached() {
		t.Errorf("the manager lives: %t; a response was lost: %t", g.lives(p), g.reached())
	}
}
