package crash

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// grace is how long a manager whose answer got lost may go on without an operation.
const grace = 250 * time.Millisecond

// gate is what all operations of a run's managers pass. It records them, and kills the
// manager where that is planned.
type gate struct {
	names *aliases
	// plan is nil in a run without a crash.
	plan *crash

	mu sync.Mutex
	// open tells that operations count: those of the scenario's preparation and of
	// its end do not.
	open       bool
	counts     map[operation]int
	succession *succession
	points     []point
	// done are the operations that were carried out, with what was asked for.
	done []string
	// story is what happened, in order, for people.
	story []string
	began time.Time
	// manager is the process that lives, and is killed where that is planned; nil if none does. In
	// scenarios of a plug-in that dies, it is the plug-in.
	manager *process
	// beside is a process that works with it, and is not killed; nil if there is none.
	beside *process
	// driverOnly has only calls of the driver be points.
	driverOnly bool
	hit        bool
	// atPoint tells that the planned operation is being carried out. Until it is, which over announces, nothing of
	// the manager begins: what follows from the operation might else come before the death.
	atPoint bool
	over    *sync.Cond
	// cut tells that an answer got lost, and death is near.
	cut bool
	// died is closed when the planned death has happened.
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

// count has operations count from now on, or not any more.
func (g *gate) count(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = open
	if open {
		g.names.anew() // whom it concerns first is the first
	}
	g.tell("operations count: %v", open)
}

// recorded are the points so far.
func (g *gate) recorded() []point {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.points)
}

// same are the deaths that would have left what others would have.
func (g *gate) same() sameWorlds {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.succession.found.clone()
}

// did notes that an operation was carried out, what was asked for, and whether that changed nothing: a write that comes
// after that of somebody else may be refused.
func (g *gate) did(op operation, request []byte, idle bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open {
		g.done = append(g.done, fmt.Sprintf("%s %s, idle: %t", op, request, idle))
	}
}

// carriedOut is what was done while operations count.
func (g *gate) carriedOut() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.done)
}

// settled reports whether nothing is being carried out.
func (g *gate) settled() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.succession.passing == 0
}

// progress describes how far the operations are.
func (g *gate) progress() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return fmt.Sprintf("%d, %d under way", len(g.story), g.succession.passing)
}

// reached reports whether the planned point was.
func (g *gate) reached() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hit
}

// lives reports whether a process should be there: it was begun, and not killed.
func (g *gate) lives(manager *process) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.manager == manager || g.beside == manager
}

// runs says which process lives.
func (g *gate) runs(manager *process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.manager = manager
	g.tell("manager %d begins", manager.pid())
}

// worksBeside says which further process there is. If it is the one to be killed, the manager is beside it.
func (g *gate) worksBeside(p *process, mortal bool) {
	if mortal {
		g.runs(p)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.beside = p
	g.tell("process %d begins", p.pid())
}

// pass lets an operation of a manager happen, which tells whether it changed nothing, and reports whether it is answered.
// Without that, it may or may not have happened: answer says why.
func (g *gate) pass(manager *process, op operation, happen func() (idle bool)) bool {
	p, planned, alive := g.enter(manager, op)
	if !alive {
		return false
	}
	if planned == before && g.besides(manager) { // who has asked goes on
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

// besides reports whether a process is not the one that is killed.
func (g *gate) besides(p *process) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.beside == p
}

// enter tells which point this operation is, how the manager is to die at it, if at all, and whether
// it is still alive. Occurrence zero: it is no point.
func (g *gate) enter(manager *process, op operation) (p point, planned way, alive bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.mayBegin(manager, op) {
		return p, "", false
	}
	p = point{op, 0}
	if g.open && (!g.driverOnly || op.server == "driver") {
		g.counts[op]++
		p.occurrence = g.counts[op]
		g.points = append(g.points, p)
	}
	g.tell("%s", p)
	g.succession.begin(p)
	if p.occurrence == 0 || g.plan == nil || g.hit && g.plan.kills() || !g.plan.at(p) {
		return p, "", true
	}
	g.hit = true
	g.atPoint = g.plan.kills() && g.plan.way != before
	return p, g.plan.way, true
}

// mayBegin reports whether an operation is carried out. It is called with the lock held.
func (g *gate) mayBegin(manager *process, op operation) bool {
	for g.atPoint && g.manager == manager {
		g.over.Wait()
	}
	if g.manager != manager && g.beside != manager {
		return false
	}
	if g.cut && g.manager == manager {
		g.tell("%s: not carried out", op)
		g.kill()
		return false
	}
	return true
}

// leave ends an operation that was planned to be the last, or nearly so.
func (g *gate) leave(manager *process, p point, planned way, idle bool) (answered bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.succession.end(p, idle)
	if planned != "" {
		g.atPoint = false
		g.over.Broadcast()
	}
	switch {
	case g.manager != manager && g.beside != manager:
		return false
	case planned == "":
		return true
	case planned == unanswered:
		g.tell("the answer gets lost")
		return false
	case planned == lost:
		g.tell("the answer gets lost")
		g.cut = true
		mortal := g.manager
		time.AfterFunc(grace, func() { g.killLate(mortal) })
	default:
		g.kill()
		return g.beside == manager
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

// kill is called with the lock held: nothing else passes meanwhile.
func (g *gate) kill() {
	g.manager.kill()
	g.tell("manager %d is killed", g.manager.pid())
	g.manager, g.cut = nil, false
	close(g.died)
}

// quiet reports whether nothing has passed.
func (g *gate) quiet() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.story) < 2 // that the manager begins
}

// replace kills the manager, which is to be followed by another one.
func (g *gate) replace() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.manager.kill()
	g.tell("manager %d is killed", g.manager.pid())
	g.manager = nil
}

// note tells people something.
func (g *gate) note(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tell(format, args...)
}

// tell is called with the lock held.
func (g *gate) tell(format string, args ...any) {
	g.story = append(g.story, fmt.Sprintf("%7.3f ", time.Since(g.began).Seconds())+fmt.Sprintf(format, args...))
}
