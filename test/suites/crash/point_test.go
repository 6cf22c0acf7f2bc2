package crash

import (
	"fmt"
	"strings"
	"sync"

	"github.com/millwright-dev/millwright/driver/sim"
)

// operation is something that the manager does to the world.
type operation struct {
	// server is who carries it out: "api" or "driver".
	server string
	// verb is Kubernetes' verb, or the driver's method.
	verb string
	// object is what it is about, by a name that is the same in every run.
	object string
}

func (o operation) String() string { return o.server + " " + o.verb + " " + o.object }

// point is a moment of a run: an operation that is asked for the n-th time.
type point struct {
	operation
	occurrence int
}

func (p point) String() string { return fmt.Sprintf("%s (%d)", p.operation, p.occurrence) }

// asks reports whether it is a question to the driver.
func (p point) asks() bool { return p.server == "driver" && questions[sim.Method(p.verb)] }

// way is how the manager dies at a point.
type way string

const (
	// before: the request has been sent, and nothing came of it.
	before way = "before"
	// after: it was carried out, and the process died before it heard of that.
	after way = "after"
	// lost: it was carried out, the answer got lost, and the process dies while it
	// copes with that: at its next operation, or a moment later.
	lost way = "lost"
	// unanswered: it does not die, but the first answer to each question to the driver gets lost.
	unanswered way = "unanswered"
)

var ways = []way{before, after, lost}

// crash is one death to be tried.
type crash struct {
	point point
	way   way
}

// kills reports whether the manager dies.
func (c crash) kills() bool { return c.way != unanswered }

func (c crash) String() string {
	if !c.kills() {
		return "no answers"
	}
	return fmt.Sprintf("%s %s", c.way, c.point)
}

// at reports whether a point is that of the death.
func (c crash) at(p point) bool {
	if !c.kills() {
		return p.asks() && p.occurrence == 1
	}
	return p == c.point
}

// questions are the methods of a driver that change nothing.
var questions = map[sim.Method]bool{sim.GetMachineStatus: true, sim.ListMachines: true, sim.GetVolumeIDs: true}

// crashes are all deaths at these points.
func crashes(points []point) []crash {
	var all []crash
	for _, p := range points {
		for _, w := range ways {
			all = append(all, crash{point: p, way: w})
		}
	}
	return all
}

// aliases replaces names that are drawn by lot, so that points of several runs can be
// compared. A name is called after the kind that first bore it, and its turn: a Machine
// and its node are both machines#1.
type aliases struct {
	mu sync.Mutex
	// kept are names that are the same in every run.
	kept map[string]bool
	// drawn are the others, and what they are called; turns counts these by kind.
	drawn map[string]string
	turns map[string]int
}

func newAliases() *aliases {
	a := &aliases{kept: map[string]bool{}}
	a.anew()
	return a
}

// anew forgets all names that were drawn.
func (a *aliases) anew() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drawn, a.turns = map[string]string{}, map[string]int{}
}

// keep has a name stay as it is.
func (a *aliases) keep(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kept[name] = true
}

// of returns how an object is called in every run.
func (a *aliases) of(resource, name string) string {
	if name == "" {
		return resource
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kept[name] {
		return resource + " " + name
	}
	alias, known := a.drawn[name]
	if !known {
		kind, _, _ := strings.Cut(resource, "/")
		a.turns[kind]++
		alias = fmt.Sprintf("%s#%d", kind, a.turns[kind])
		a.drawn[name] = alias
	}
	return resource + " " + alias
}
