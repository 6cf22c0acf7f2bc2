package crash

import (
	"fmt"
	"strings"
	"sync"

	"github.com/millwright-dev/millwright/driver/sim"
)

// operation is an operation of the manager on the world.
type operation struct {
	// server executes the operation: "api" or "driver".
	server string
	// verb is Kubernetes' verb, or the driver's method.
	verb string
	// object is the object of the operation, by a name that is the same in every run.
	object string
}

func (o operation) String() string { return o.server + " " + o.verb + " " + o.object }

// point is a moment of a run: the n-th request of an operation.
type point struct {
	operation
	occurrence int
}

func (p point) String() string { return fmt.Sprintf("%s (%d)", p.operation, p.occurrence) }

// asks reports whether it is a query of the driver.
func (p point) asks() bool { return p.server == "driver" && questions[sim.Method(p.verb)] }

// way is how the manager crashes at a point.
type way string

const (
	// before: the manager has sent the request, which was not executed.
	before way = "before"
	// after: the operation was executed, and the manager crashed before it received the response.
	after way = "after"
	// lost: the operation was executed, the response was lost, and the manager crashes while it handles that: at
	// its next operation, or a moment later.
	lost way = "lost"
	// unanswered: the manager does not crash, but the first response to each query of the driver is lost.
	unanswered way = "unanswered"
)

var ways = []way{before, after, lost}

// crash is a crash at a point, which is tried in one run.
type crash struct {
	point point
	way   way
}

// kills reports whether the manager is killed.
func (c crash) kills() bool { return c.way != unanswered }

func (c crash) String() string {
	if !c.kills() {
		return "no responses"
	}
	return fmt.Sprintf("%s %s", c.way, c.point)
}

// at reports whether a point is that of the crash.
func (c crash) at(p point) bool {
	if !c.kills() {
		return p.asks() && p.occurrence == 1
	}
	return p == c.point
}

// questions are the methods of a driver that change nothing.
var questions = map[sim.Method]bool{sim.GetMachineStatus: true, sim.ListMachines: true, sim.GetVolumeIDs: true}

// crashes returns all crashes at these points.
func crashes(points []point) []crash {
	var all []crash
	for _, p := range points {
		for _, w := range ways {
			all = append(all, crash{point: p, way: w})
		}
	}
	return all
}

// aliases replaces random names, so that points of several runs can be compared. An alias consists of the kind
// that first had the name, and a number: a Machine and its node are both machines#1.
type aliases struct {
	mu sync.Mutex
	// kept are names that are the same in every run.
	kept map[string]bool
	// randomNames maps the other names to their aliases; turns counts these by kind.
	randomNames map[string]string
	turns       map[string]int
}

func newAliases() *aliases {
	a := &aliases{kept: map[string]bool{}}
	a.reset()
	return a
}

// reset forgets all random names.
func (a *aliases) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.randomNames, a.turns = map[string]string{}, map[string]int{}
}

// keep excludes a name from replacement.
func (a *aliases) keep(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kept[name] = true
}

// of returns the alias of an object.
func (a *aliases) of(resource, name string) string {
	if name == "" {
		return resource
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kept[name] {
		return resource + " " + name
	}
	alias, known := a.randomNames[name]
	if !known {
		kind, _, _ := strings.Cut(resource, "/")
		a.turns[kind]++
		alias = fmt.Sprintf("%s#%d", kind, a.turns[kind])
		a.randomNames[name] = alias
	}
	return resource + " " + alias
}
