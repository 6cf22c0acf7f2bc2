package crash

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// grace is how long a manager whose response was lost may continue without an operation.
const grace = 250 * time.Millisecond

// gate is what all operations of a run's managers pass. It records them, and kills the manager at the planned
// point.
type gate struct {
	names *aliases
	// plan is nil in a run without a crash.
	plan *crash

	mu sync.Mutex
	// open is set while operations count. The preparation and the end of a scenario do not count.
	open       bool
	counts     map[operation]int
	succession *succession
	points     []point
	// done contains the executed operations with their requests.
	done []string
	// story describes what happened, in order, for people.
	story []string
	began time.Time
	// manager is the running process, which is killed at the planned point, or nil. In scenarios in which the
	// plug-in is killed, it is the plug-in.
	manager *process
	// acting is the process that last began an operation.
	acting *process
	// companion is a process that works with it and is not killed, or nil.
	companion *process
	// driverOnly restricts points to calls of the driver.
	driverOnly bool
	hit        bool
	// atPoint is set while the planned operation is executed. Until it is complete, which over signals, no other
	// operation of the manager starts. Otherwise, operations that result from it could precede the crash.
	atPoint bool
	over    *sync.Cond
	// cut is set when a response was lost, and the crash follows soon.
	cut bool
	// died is closed when the planned crash has happened.
	died chan struct{}
}

func newGate(plan *crash) *gate {
	g := &gate{
		names: newAliases(), plan: plan, counts: map[operation]int{}, succession: newSuccession(),
		began: time.Now(), died: make(chan struct{}),
	}
	g.over = sync.NewCond(&g.mu)
	return g
}

// count starts or stops counting operations.
func (g *gate) count(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = open
	if open {
		g.names.reset() // numbers depend on the order of appearance
	}
	g.noteLocked("operations count: %v", open)
}

// recorded returns the points so far.
func (g *gate) recorded() []point {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.points)
}

// same returns the crash points that are equivalent to others.
func (g *gate) same() sameWorlds {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.succession.found.clone()
}

// did records an operation with its request, and whether it changed nothing: a write after a conflicting one may
// be rejected.
func (g *gate) did(op operation, request []byte, idle bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open {
		g.done = append(g.done, fmt.Sprintf("%s %s, idle: %t", op, request, idle))
	}
}

// carriedOut returns what was executed while operations count.
func (g *gate) carriedOut() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.done)
}

// settled reports whether no operation is being executed.
func (g *gate) settled() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.succession.passing == 0
}

// progress describes the progress of the operations.
func (g *gate) progress() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return fmt.Sprintf("%d, %d under way", len(g.story), g.succession.passing)
}

// reached reports whether the planned point was reached.
func (g *gate) reached() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hit
}

// lives reports whether a process is expected to run: it was started, and not killed.
func (g *gate) lives(manager *process) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.manager == manager || g.companion == manager
}

// acts reports whether the running process began the last operation, so that it has started completely.
func (g *gate) acts() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.manager != nil && g.acting == g.manager
}

// runs sets the running process.
func (g *gate) runs(manager *process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.manager = manager
	g.noteLocked("manager %d begins", manager.pid())
}

// addCompanion sets the companion. If p is the process to be killed, the manager becomes the companion instead.
func (g *gate) addCompanion(p *process, mortal bool) {
	if mortal {
		g.runs(p)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.companion = p
	g.noteLocked("process %d begins", p.pid())
}

// pass lets an operation of a manager happen, unless the manager is killed before. The operation reports whether
// it changed nothing. pass reports whether the operation gets a response. Without a response, it may or may not
// have happened.
func (g *gate) pass(manager *process, op operation, happen func() (idle bool)) bool {
	p, planned, alive := g.enter(manager, op)
	if !alive {
		return false
	}
	if planned == before && g.isCompanion(manager) { // the process that has sent it continues
		g.leave(manager, p, planned, false)
		happen()
		return true
	}
	idle := false
	if planned != before {
		idle = happen()
	}
	return g.leave(manager, p, planned, idle)
}

// isCompanion reports whether a process is the companion, which is not killed.
func (g *gate) isCompanion(p *process) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.companion == p
}

// enter returns which point this operation is, how the manager is to crash at it, if at all, and whether the
// manager is still alive. An occurrence of zero means that it is not a point.
func (g *gate) enter(manager *process, op operation) (p point, planned way, alive bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.mayBegin(manager, op) {
		return p, "", false
	}
	g.acting = manager
	p = point{op, 0}
	if g.open && (!g.driverOnly || op.server == "driver") {
		g.counts[op]++
		p.occurrence = g.counts[op]
		g.points = append(g.points, p)
	}
	g.noteLocked("%s", p)
	g.succession.begin(p)
	if p.occurrence == 0 || g.plan == nil || g.hit && g.plan.kills() || !g.plan.at(p) {
		return p, "", true
	}
	g.hit = true
	g.atPoint = g.plan.kills() && g.plan.way != before
	return p, g.plan.way, true
}

// mayBegin reports whether an operation is executed. The caller holds the lock.
func (g *gate) mayBegin(manager *process, op operation) bool {
	for g.atPoint && g.manager == manager {
		g.over.Wait()
	}
	if g.manager != manager && g.companion != manager {
		return false
	}
	if g.cut && g.manager == manager {
		g.noteLocked("%s: not carried out", op)
		g.kill()
		return false
	}
	return true
}

// leave completes an operation that was planned to be the last one, or one of the last.
func (g *gate) leave(manager *process, p point, planned way, idle bool) (responded bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.succession.end(p, idle)
	if planned != "" {
		g.atPoint = false
		g.over.Broadcast()
	}
	switch {
	case g.manager != manager && g.companion != manager:
		return false
	case planned == "":
		return true
	case planned == unanswered:
		g.noteLocked("the response is lost")
		return false
	case planned == lost:
		g.noteLocked("the response is lost")
		g.cut = true
		mortal := g.manager
		time.AfterFunc(grace, func() { g.killLate(mortal) })
	default:
		g.kill()
		return g.companion == manager
	}
	return false
}

func (g *gate) killLate(manager *process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.manager == manager {
		g.kill()
	}
}

// kill kills the manager. The caller holds the lock, so nothing else passes meanwhile.
func (g *gate) kill() {
	g.manager.kill()
	g.noteLocked("manager %d is killed", g.manager.pid())
	g.manager, g.cut = nil, false
	close(g.died)
}

// quiet reports whether no operation has passed.
func (g *gate) quiet() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.story) < 2 // the start of the manager
}

// replace kills the manager. Another one follows.
func (g *gate) replace() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.manager.kill()
	g.noteLocked("manager %d is killed", g.manager.pid())
	g.manager = nil
}

// note adds a line to the transcript.
func (g *gate) note(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.noteLocked(format, args...)
}

// noteLocked adds a line to the transcript. The caller holds the lock.
func (g *gate) noteLocked(format string, args ...any) {
	g.story = append(g.story, fmt.Sprintf("%7.3f ", time.Since(g.began).Seconds())+fmt.Sprintf(format, args...))
}
