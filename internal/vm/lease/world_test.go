package lease

import (
	"time"

	"github.com/millwright-dev/millwright/test/support/explore"
)

const (
	maxProcesses = 3
	maxGranters  = 2
	// unit is the unit of ages. A tick has a hundred units; on a clock that is one percent faster, it has a
	// hundred and one.
	unit = 15 * time.Millisecond
	tick = 100
	long = time.Hour
	// oldest is the age from which differences no longer matter.
	oldest = -900
)

// age is an instant on a clock that is at zero. It is a small type because there are many worlds.
type age int16

func (a age) instant() Instant { return Instant(a) * unit }
func ageOf(i Instant) age      { return age(i / unit) }

// request is a request for a lease on its way to the controller, or the response on its way back.
type request struct {
	sent    age
	there   bool
	granted bool
}

// process is a hypervisor process with the messages to and from it.
type process struct {
	alive    bool
	later    bool // this is the second process of the Pod
	state    HolderState
	sent     age
	requests [2]request
	release  bool // a release is on its way to the controller
}

// holder returns the state of the process as a Holder.
func (p *process) holder() *Holder {
	return &Holder{state: p.state, lease: Lease{Sent: p.sent.instant(), Duration: MinDuration}}
}

func (p *process) take(h *Holder) { p.state, p.sent = h.state, ageOf(h.lease.Sent) }

// granter is a controller process.
type granter struct {
	known, same bool // whether it has seen the record, and in its current form
	since       age
	// The content of an old cache, if a guard is off.
	hadHolder int8
	hadState  state
}

func (g *granter) watch(record Record) *Watch {
	w := &Watch{known: g.known, since: g.since.instant(), transitions: record.Transitions}
	if !g.same {
		w.transitions--
	}
	return w
}

func (g *granter) remember(w *Watch, record Record) {
	g.known, g.same, g.since = w.known, w.transitions == record.Transitions, ageOf(w.since)
}

// state is a State in a compact form.
type state int8

var states = []State{Open, Suspected, Revoked, Released}

// world is the complete state at one point in time. It is comparable.
type world struct {
	processes [maxProcesses]process
	granters  [maxGranters]granter
	state     state
	holder    int8 // the process whose Pod is the holder
	adopted   bool // whether that process has asked
	faults    int8 // the number of crashes
}

func (w *world) record() Record {
	return Record{State: states[w.state], Transitions: 1, Duration: MinDuration}
}

// store stores a record, which may have another number of transitions.
func (w *world) store(r Record) {
	for i, each := range states {
		if each == r.State {
			w.state = state(i)
		}
	}
	if r.Transitions != 1 {
		for g := range w.granters {
			w.granters[g].same = false
		}
	}
}

// rules define what can happen. All guards are normally on.
type rules struct {
	processes, granters int
	crashes             int8
	// By how many percent clocks are faster.
	holderRate, granterRate age
	// single limits a process to one request at a time.
	single bool
	// Guards that are switched off.
	noMargin, noWatchdog, fromReceipt, cachedReads, noBar, sameBar, noWait, noReopen,
	revokedToo, earlyRelease, noSuspicion bool
}

func start(r rules) world {
	w := world{}
	w.processes[0].alive = true
	return w
}

// runs reports whether a guest may run in a process. A guest that is being killed may run until its lease expires.
func (r rules) runs(p process) bool {
	return p.alive && p.state == Holding && (r.noWatchdog || p.holder().lease.End() > 0)
}

func (r rules) guests(w world) int {
	count := 0
	for _, p := range w.processes {
		if r.runs(p) {
			count++
		}
	}
	return count
}

// explorer collects the events that can happen in a world.
type explorer struct {
	rules
	from  world
	edges []explore.Edge[world]
}

func (e *explorer) add(name string, fault bool, change func(*world)) {
	next := e.from
	change(&next)
	e.normalize(&next)
	if next != e.from {
		e.edges = append(e.edges, explore.Edge[world]{To: next, Name: name, Fault: fault})
	}
}

func (r rules) edges(w world) []explore.Edge[world] {
	e := &explorer{rules: r, from: w}
	e.add("tick", false, e.pass)
	for i := range r.processes {
		e.processEvents(i)
	}
	for g := range r.granters {
		e.granterEvents(g)
	}
	return e.edges
}

// pass lets time pass on all clocks.
func (e *explorer) pass(w *world) {
	passed := tick + e.holderRate
	for i := range w.processes {
		p := &w.processes[i]
		p.sent = max(oldest, p.sent-passed)
		for j := range p.requests {
			p.requests[j].sent = max(oldest, p.requests[j].sent-passed)
		}
	}
	for g := range w.granters {
		w.granters[g].since = max(oldest, w.granters[g].since-tick-e.granterRate)
	}
}

// normalize makes worlds equal if they differ only in irrelevant details.
func (r rules) normalize(w *world) {
	for i := range w.processes {
		r.normalizeProcess(w, i)
	}
	for g := range w.granters {
		known := &w.granters[g]
		if !known.same && !r.sameBar || w.state == 0 && !r.sameBar {
			known.known, known.same, known.since = false, false, 0 // it starts again when it next looks
		}
		if known.since.instant()+Wait(MinDuration) <= 0 {
			known.since = oldest
		}
	}
}

func (r rules) normalizeProcess(w *world, i int) {
	p := &w.processes[i]
	if !p.alive {
		*p = process{release: p.release && int(w.holder) == i}
		return
	}
	if p.state == Holding && p.holder().lease.End() <= 0 && !r.noWatchdog {
		p.state = Ended // whatever it does next, it does this first
	}
	if p.state != Holding {
		p.sent = 0
	}
	for j := range p.requests {
		refused := !p.requests[j].granted && int(w.holder) != i && !r.cachedReads
		if refused || r.useless(p, p.requests[j]) {
			p.requests[j] = request{}
		}
	}
	p.sort()
}

// useless reports whether the response to a request would have no effect.
func (r rules) useless(p *process, q request) bool {
	lease := Lease{Sent: q.sent.instant(), Duration: MinDuration}
	old := p.state == Holding && q.sent <= p.sent || p.state == Ended
	return !q.there || !r.fromReceipt && (old || lease.Stop() <= 0)
}

// sort brings requests into a canonical order, because their positions do not matter.
func (p *process) sort() {
	a, b := p.requests[0], p.requests[1]
	if a.rank() < b.rank() {
		p.requests = [2]request{b, a}
	}
	if a == b {
		p.requests[1] = request{}
	}
}

func (q request) rank() int {
	rank := 2*int(q.sent-oldest) + 1
	if q.granted {
		rank++
	}
	if !q.there {
		rank = 0
	}
	return rank
}

func (e *explorer) processEvents(i int) {
	p := e.from.processes[i]
	if !p.alive {
		e.comeBack(i)
		return
	}
	e.ask(i)
	for j := range p.requests {
		e.requestEvents(i, j)
	}
	if e.from.faults < e.crashes {
		e.add("crash", true, func(w *world) {
			w.faults++
			w.processes[i].alive = false
		})
	}
	e.add("notice the time", false, func(w *world) {
		holder := w.processes[i].holder()
		holder.State(0)
		w.processes[i].take(holder)
	})
	if int(e.from.holder) != i || p.later {
		e.add("terminated", false, func(w *world) { w.processes[i].refused() })
	}
	if p.state == Ended {
		e.add("end", false, func(w *world) { w.processes[i].end() })
	}
	if e.earlyRelease && p.state == Holding {
		e.add("release too early", false, func(w *world) {
			w.processes[i].release = true
			w.takeRelease(i)
		})
	}
}

func (p *process) refused() {
	holder := p.holder()
	holder.Refused()
	p.take(holder)
}

// end terminates a process after its guest has terminated.
func (p *process) end() { p.alive, p.release = false, !p.later }

// comeBack adds a process that the controller or the host creates.
func (e *explorer) comeBack(i int) {
	if int(e.from.holder) != i {
		return
	}
	e.add("restart", true, func(w *world) {
		w.processes[i] = process{alive: true, later: e.from.adopted, release: e.from.processes[i].release}
	})
	if !e.from.adopted {
		e.add("start", false, func(w *world) { w.processes[i] = process{alive: true} })
	}
	e.add("the release arrives", false, func(w *world) { w.takeRelease(i) })
	e.add("the release is lost", true, func(w *world) { w.processes[i].release = false })
}

func (w *world) takeRelease(i int) {
	if w.processes[i].release && int(w.holder) == i && w.adopted && w.record().State != Released {
		w.store(w.record().Next(Released))
	}
}

// ask sends another request. This explores more worlds than a holder that asks only after a third of the duration.
func (e *explorer) ask(i int) {
	p := e.from.processes[i]
	if p.state == Ended {
		return
	}
	for j := range p.requests {
		if !p.requests[j].there && (j == 0 || !e.single) {
			e.add("ask", false, func(w *world) { w.processes[i].requests[j] = request{there: true} })
			return
		}
	}
}

func (e *explorer) requestEvents(i, j int) {
	q := e.from.processes[i].requests[j]
	if !q.there {
		return
	}
	e.add("lost", true, func(w *world) { w.processes[i].requests[j] = request{} })
	if !q.granted {
		for g := range e.granters {
			e.verdict(i, j, g)
		}
		return
	}
	deliver := func(w *world) {
		p := &w.processes[i]
		lease := Lease{Sent: q.sent.instant(), Duration: MinDuration}
		if e.fromReceipt {
			lease.Sent = 0
		}
		holder := p.holder()
		holder.Granted(lease, 0)
		p.take(holder)
	}
	e.add("granted", false, deliver)
	e.add("granted, and again later", true, deliver)
}

// verdict makes a controller respond to a request. Reading and responding are a single step, because the response
// may take any time.
func (e *explorer) verdict(i, j, g int) {
	w := e.from
	holds := int(w.holder) == i && !(w.adopted && w.processes[i].later)
	record := w.record()
	if e.cachedReads {
		holds, record.State = int(w.granters[g].hadHolder) == i, states[w.granters[g].hadState]
	}
	verdict := Refuse
	if holds {
		verdict = record.Ask()
	}
	if verdict == Reopen && e.noReopen || e.revokedToo && holds && record.State == Revoked {
		verdict = Grant
	}
	switch verdict {
	case Grant:
		e.add("grant", false, func(w *world) {
			w.adopted = w.adopted || int(w.holder) == i
			w.processes[i].requests[j].granted = true
		})
	case Reopen:
		e.add("reopen", false, func(w *world) { w.store(record.Next(Open)) })
	default:
		e.add("refuse", false, func(w *world) {
			w.processes[i].requests[j] = request{}
			w.processes[i].refused()
		})
	}
}

func (e *explorer) granterEvents(g int) {
	if e.from.faults < e.crashes {
		e.add("controller restarts", true, func(w *world) {
			w.faults++
			w.granters[g].known, w.granters[g].same = e.noWait, e.noWait
			w.granters[g].since = oldest
		})
	}
	if e.cachedReads {
		e.add("cache", false, func(w *world) {
			w.granters[g].hadHolder, w.granters[g].hadState = w.holder, w.state
		})
	}
	e.watch(g, false, -long)
	e.watch(g, true, 0)
	if states[e.from.state] == Released && !e.from.processes[e.from.holder].alive {
		e.watch(g, true, -long)
	}
}

// watch makes a controller look at the lease. Whether the Pod appears to be gone is arbitrary.
func (e *explorer) watch(g int, gone bool, heard Instant) {
	known, record := e.from.granters[g], e.from.record()
	if e.sameBar && known.known && record.State != Open {
		known.same = true
	}
	watch, now := known.watch(record), Instant(0)
	if e.noMargin {
		watch.See(record, now)
		now = minMargin
	}
	step, _ := watch.Next(Facts{Record: record, Gone: gone, Heard: heard, Now: now})
	if e.noBar && step == Suspect {
		step = HandOn
	}
	if e.noSuspicion && step == Suspect {
		step = Stay
	}
	e.add("look", gone, func(w *world) { w.granters[g].remember(watch, record) })
	switch step {
	case Suspect:
		e.add("suspect", gone, func(w *world) { w.store(record.Next(Suspected)) })
	case Revoke:
		e.add("revoke", true, func(w *world) { w.store(record.Next(Revoked)) })
	case HandOn:
		e.handOn()
	}
}

func (e *explorer) handOn() {
	for i := range e.processes {
		if p := e.from.processes[i]; p.alive || int(e.from.holder) == i {
			continue
		}
		e.add("hand on", false, func(w *world) {
			w.store(w.record().Next(Open))
			w.holder, w.adopted = int8(i), false
			w.processes[i] = process{}
		})
		return
	}
}
