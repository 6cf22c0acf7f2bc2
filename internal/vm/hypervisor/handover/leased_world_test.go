package handover

import (
	"slices"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/lease"
	"github.com/millwright-dev/millwright/test/support/explore"
)

// This file models a migration in which the guest runs with leases that expire. The two sides are a Source and a
// Target with a lease.Holder each. The controller is a lease.Record and a lease.Watch, with the switchover.

const (
	// parties is the number of concurrent Pods: source, target, and one that the controller creates. The entry of
	// a terminated Pod is reused.
	parties = 3
	// unit is the unit of ages. A tick has a hundred units; on a clock that is one percent faster, it has a
	// hundred and one.
	unit = 20 * time.Millisecond
	tick = 100
	long = time.Hour
	// oldest is the age from which differences no longer matter.
	oldest = -700
)

// age is an instant on a clock that is at zero.
type age int16

func (a age) instant() lease.Instant { return lease.Instant(a) * unit }

func (a age) lease() lease.Lease {
	return lease.Lease{Sent: a.instant(), Duration: lease.MinDuration}
}

// A world contains no pointers, because there are many worlds. These types are indexes into lists instead.
type (
	stateCode  int8
	sourceCode int8
	targetCode int8
)

var (
	states       = []lease.State{lease.Open, lease.Suspected, lease.Revoked, lease.Released}
	sourceStates = []SourceState{Running, Asking, Negotiating, Copying, Stopped, Awaiting, Reclaiming, Regained, Left}
	targetStates = []TargetState{Waiting, Incoming, Switching, Authorized, Arrived, Gone}
)

// State returns the state of the Source.
func (c sourceCode) State() SourceState { return sourceStates[c] }

// Take applies an event, like Source.Take.
func (c *sourceCode) Take(event SourceEvent) SourceAction {
	source := Source{c.State()}
	action := source.Take(event)
	*c = sourceCode(slices.Index(sourceStates, source.State()))
	return action
}

// State returns the state of the Target.
func (c targetCode) State() TargetState { return targetStates[c] }

// Take applies an event, like Target.Take.
func (c *targetCode) Take(event TargetEvent) TargetAction {
	target := Target{c.State()}
	action := target.Take(event)
	*c = targetCode(slices.Index(targetStates, target.State()))
	return action
}

// part is the part that a process plays.
type part int8

const (
	nothing  part = iota
	starting      // waits for its first lease
	sending       // has the guest, or had it
	receiving
)

// party is a Pod with its process, and the messages to and from it.
type party struct {
	alive bool
	part  part
	// guest reports whether QEMU runs the guest.
	guest  bool
	source sourceCode
	target targetCode
	run    int8 // the ID of the current run
	next   int8 // the run ID under which it reclaims
	them   int8 // for a target: the run of its source
	// held is the state of the holder. sent is when the lease that the watchdog and the holder know was requested.
	held  lease.HolderState
	armed bool
	sent  age
	// A request for a lease or its response, and a release.
	asked, granted bool
	askedAt        age
	release        bool
	// of is the index of a source's target plus one, or 0 if there is none. channel is the state of the memory
	// channel to a target.
	of      int8
	channel channel
	// A switchover is on its way to the controller and may be delivered again, as may its responses.
	switching bool
	responses responses
	restarts  int8
}

// arbiter is a controller process.
type arbiter struct {
	known bool // whether it has seen the current form of the record
	since age
	// decided reports whether it hands on the lease without checking again, if a guard is off.
	decided bool
}

// leased is the complete state at one point in time. It is comparable.
type leased struct {
	parties  [parties]party
	arbiters [2]arbiter
	state    stateCode
	// The party that has the authority, and whether its process already has it.
	holder, run int8
	adopted     bool
	// from and to are the two sides that the controller allows to switch over. -1 means none.
	from, to          int8
	crashed, migrated int8
}

// leasedRules define what can happen. All guards are normally on.
type leasedRules struct {
	arbiters   int
	crashes    int8
	migrations int8
	// early reports whether a target asks for leases before it has the authority. They are granted once it has it.
	early bool
	// By how many percent clocks are faster.
	partyRate, arbiterRate age
	// Guards that are switched off.
	noCommit, oldRun, noSwap, noWatchdog, noMargin, noBar, noWait, forgetful, blind bool
}

func leasedStart() leased {
	w := leased{run: 1, adopted: true, from: -1, to: -1}
	w.parties[0] = party{alive: true, part: sending, guest: true, run: 1, held: lease.Holding, armed: true}
	return w
}

func (w *leased) guests() int {
	count := 0
	for _, p := range w.parties {
		if p.alive && p.guest {
			count++
		}
	}
	return count
}

// good reports whether the holder's guest runs and may continue to run.
func (w *leased) good() bool {
	p := w.parties[w.holder]
	return p.alive && p.guest && p.held == lease.Holding && w.record().State == lease.Open && w.guests() == 1
}

func (w *leased) record() lease.Record {
	return lease.Record{State: states[w.state], Transitions: 1, Duration: lease.MinDuration}
}

// store stores a record with a new number of transitions.
func (w *leased) store(r lease.Record) {
	w.state = stateCode(slices.Index(states, r.State))
	for i := range w.arbiters {
		w.arbiters[i] = arbiter{decided: w.arbiters[i].decided}
	}
}

// authorize gives the VM to a run in a Pod.
func (w *leased) authorize(holder, run int8) {
	w.holder, w.run, w.adopted, w.from, w.to = holder, run, run != 0, -1, -1
	w.store(w.record().Next(lease.Open))
}

func (w *leased) holds(i int, run int8) bool {
	return int(w.holder) == i && w.adopted && w.run == run
}

func (p *party) holder() *lease.Holder {
	h := &lease.Holder{}
	switch p.held {
	case lease.Holding:
		h.Granted(p.sent.lease(), p.sent.instant())
	case lease.Ended:
		h.Refused()
	}
	return h
}

// end terminates a process together with QEMU. Its requests may still reach the controller.
func (w *leased) end(i int, clean bool) {
	p := w.parties[i]
	w.close(i, cut)
	w.parties[i] = party{
		run: p.run, next: p.next, them: p.them, switching: p.switching, restarts: p.restarts, release: clean && p.part != nothing,
	}
}

// close closes the channel of a source, if it is open.
func (w *leased) close(source int, how channel) {
	of := w.parties[source].of
	if of == 0 {
		return
	}
	if target := &w.parties[of-1]; target.channel == open {
		target.channel = how
	}
	w.parties[source].of = 0
}

// player collects the events that can happen in a world.
type player struct {
	leasedRules
	from  leased
	edges []explore.Edge[leased]
}

func (e *player) add(name string, fault bool, change func(*leased)) {
	next := e.from
	change(&next)
	e.normalize(&next)
	if next != e.from {
		e.edges = append(e.edges, explore.Edge[leased]{To: next, Name: name, Fault: fault})
	}
}

func (r leasedRules) edges(w leased) []explore.Edge[leased] {
	e := &player{leasedRules: r, from: w}
	e.add("tick", false, e.pass)
	for i := range parties {
		if p := w.parties[i]; p.alive {
			e.leases(i, p)
			e.moves(i, p)
			e.terminations(i, p)
		} else {
			e.starts(i, p)
		}
		e.switchover(i)
	}
	for g := range r.arbiters {
		e.arbiter(g)
	}
	return e.edges
}

// pass lets time pass on all clocks.
func (e *player) pass(w *leased) {
	for i := range w.parties {
		p := &w.parties[i]
		p.sent = max(oldest, p.sent-tick-e.partyRate)
		p.askedAt = max(oldest, p.askedAt-tick-e.partyRate)
	}
	for g := range w.arbiters {
		w.arbiters[g].since = max(oldest, w.arbiters[g].since-tick-e.arbiterRate)
	}
}

// normalize kills what the watchdogs kill, and makes worlds equal if they differ only in irrelevant details.
func (e *player) normalize(w *leased) {
	for i := range w.parties {
		e.normalizeParty(w, i)
	}
	for g := range w.arbiters {
		known := &w.arbiters[g]
		if !known.known || w.record().State == lease.Open {
			*known = arbiter{decided: known.decided}
		}
		if known.since.instant()+lease.Wait(lease.MinDuration) <= 0 {
			known.since = oldest
		}
	}
}

func (e *player) normalizeParty(w *leased, i int) {
	p := &w.parties[i]
	if p.alive && p.armed && p.sent.lease().End() <= 0 && !e.noWatchdog {
		w.end(i, false)
	}
	if !p.alive {
		e.normalizeEnded(w, i)
		return
	}
	p.tidy()
	if !w.mayGetAuthority(i) {
		w.normalizeTerminal(i)
	}
}

// normalizeEnded keeps the messages of a terminated process only if they may still have an effect.
func (e *player) normalizeEnded(w *leased, i int) {
	p := &w.parties[i]
	p.release = p.release && int(w.holder) == i
	if has, may := w.swaps(i, p); !has && !may && !e.noSwap {
		p.switching = false // it would be refused
	}
	if !p.switching {
		p.next, p.them = 0, 0
	}
	if int(w.holder) != i && int(w.to) != i {
		*p = party{switching: p.switching, run: p.run, next: p.next, them: p.them}
	}
}

// tidy clears what no longer matters to a process.
func (p *party) tidy() {
	if !p.armed {
		p.sent = 0
	}
	if !p.asked || p.useless() {
		p.forget()
	}
	if p.part == receiving && p.target.State() == Authorized {
		p.switching, p.responses = false, responses{}
	}
	p.responses.no = p.responses.no && !p.responses.yes
}

// useless reports whether the response to a request for a lease would have no effect.
func (p *party) useless() bool {
	return p.askedAt.lease().Stop() <= 0 || p.held == lease.Ended || p.held == lease.Holding && p.askedAt <= p.sent
}

func (p *party) forget() { p.asked, p.granted, p.askedAt = false, false, 0 }

// mayGetAuthority reports whether a process has the authority or may get it.
func (w *leased) mayGetAuthority(i int) bool {
	p := &w.parties[i]
	return w.holds(i, p.run) || p.next != 0 && w.holds(i, p.next) || int(w.holder) == i && !w.adopted || w.awaits(i, p)
}

// normalizeTerminal terminates a process that can do nothing else.
func (w *leased) normalizeTerminal(i int) {
	p := &w.parties[i]
	if p.asked && !p.granted {
		p.forget() // it is terminated
	}
	switch {
	case p.guest || p.responses.yes:
	case !p.switching && p.responses == responses{}:
		w.end(i, false)
	default:
		p.armed, p.sent = false, 0
		p.forget()
	}
}

// awaits reports whether a process is a target that may get the authority.
func (w *leased) awaits(i int, p *party) bool {
	return p.them != 0 && int(w.to) == i && w.from >= 0 && w.holds(int(w.from), p.them)
}

// swaps reports whether the caller of a switchover has the authority, and whether it may get it.
func (w *leased) swaps(i int, p *party) (has, may bool) {
	if p.next != 0 { // it reclaims
		return w.holds(i, p.next), w.holds(i, p.run)
	}
	return w.holds(i, p.run), w.awaits(i, p)
}

// leases adds the requests for leases and their responses.
func (e *player) leases(i int, p party) {
	closed := p.part == sending && p.source.State() == Reclaiming ||
		p.part == receiving && p.target.State() != Authorized && !e.early
	if !p.asked && p.held != lease.Ended && !closed {
		e.add("ask", false, func(w *leased) { w.parties[i].asked, w.parties[i].askedAt = true, 0 })
	}
	awaited := int(e.from.to) == i
	if !e.from.holds(i, p.run) && !awaited && (e.from.adopted || int(e.from.holder) != i) {
		e.add("terminated", false, func(w *leased) { e.terminated(w, i) })
	}
	if !p.asked {
		return
	}
	e.add("the request is lost", true, func(w *leased) { w.parties[i].asked = false })
	if p.granted {
		e.add("lease", false, func(w *leased) { e.granted(w, i, true) })
		e.add("lease, and again later", true, func(w *leased) { e.granted(w, i, false) })
		return
	}
	e.verdict(i, p)
}

// verdict makes a controller respond. All controllers behave the same, because they read the stored record.
// Reading and responding are a single step, because the response may take any time.
func (e *player) verdict(i int, p party) {
	adopts := int(e.from.holder) == i && !e.from.adopted
	if !e.from.holds(i, p.run) && !adopts {
		return // it is terminated, or it waits for its source
	}
	switch e.from.record().Ask() {
	case lease.Grant:
		e.add("grant", false, func(w *leased) {
			w.run, w.adopted = p.run, true
			w.parties[i].granted = true
		})
	case lease.Reopen:
		e.add("reopen", false, func(w *leased) { w.store(w.record().Next(lease.Open)) })
	default:
		e.add("refuse", false, func(w *leased) { e.terminated(w, i) })
	}
}

// granted applies a response that arrives at a process.
func (e *player) granted(w *leased, i int, last bool) {
	p := &w.parties[i]
	h := p.holder()
	h.Granted(p.askedAt.lease(), 0)
	if p.held = h.State(0); p.held == lease.Holding {
		p.armed, p.sent = true, age(h.Lease().Sent/unit)
	}
	if last {
		p.asked = false
	}
	if p.held != lease.Holding {
		return
	}
	switch p.part {
	case starting:
		p.part, p.guest = sending, true
	case sending:
		e.source(w, i, Leased)
	case receiving:
		e.target(w, i, GotLease)
	}
}

func (e *player) terminated(w *leased, i int) {
	w.parties[i].asked = false
	switch w.parties[i].part {
	case starting:
		w.end(i, true)
	case sending:
		e.source(w, i, Terminated)
	case receiving:
		e.target(w, i, Ended)
	}
}

// source applies an event to a source and performs its action.
func (e *player) source(w *leased, i int, event SourceEvent) {
	p := &w.parties[i]
	switch p.source.Take(event) {
	case AbandonAndAsk:
		w.close(i, cut)
		p.source.Take(Cancelled)
		p.guest = true
	case Abandon:
		w.close(i, cut)
		p.guest = true
	case Commit:
		w.close(i, committed)
	case Reclaim:
		if p.next == 0 {
			p.next = p.run + 1
			if e.oldRun {
				p.next = p.run
			}
		}
		p.asked, p.switching = false, true
	case OpenLease:
		p.run, p.next, p.switching, p.responses = p.next, 0, false, responses{}
		p.held, p.asked = lease.Waiting, false
		if e.forgetful {
			p.armed = false
		}
	case Resume:
		if p.next != 0 { // a guard is off
			p.run, p.next, p.switching, p.responses = p.next, 0, false, responses{}
			p.held = lease.Waiting
			if e.forgetful {
				p.armed = false
			}
		}
		p.guest = true
	case Kill:
		w.end(i, true)
	}
}

// target applies an event to a target and performs its action.
func (e *player) target(w *leased, i int, event TargetEvent) {
	p := &w.parties[i]
	switch p.target.Take(event) {
	case SwitchOver:
		p.switching = true
	case Run: // from here on, a hypervisor like any other
		p.part, p.guest, p.source, p.target = sending, true, 0, 0
		p.channel, p.switching, p.responses, p.them = 0, false, responses{}, 0
	case Exit:
		w.end(i, true)
	}
}

// moves adds the events of a migration.
func (e *player) moves(i int, p party) {
	sources := func(event SourceEvent, fault bool) {
		e.add(string(event), fault, func(w *leased) { e.source(w, i, event) })
	}
	targets := func(event TargetEvent, fault bool) {
		e.add(string(event), fault, func(w *leased) { e.target(w, i, event) })
	}
	switch p.part {
	case sending:
		e.sends(i, p, sources)
	case receiving:
		e.receives(p, targets)
	}
}

func (e *player) sends(i int, p party, take func(SourceEvent, bool)) {
	switch p.source.State() {
	case Running:
		e.migrate(i, p)
	case Copying:
		take(Failed, true)
		e.add("guest stopped", false, func(w *leased) {
			w.parties[i].guest = false
			e.source(w, i, GuestStopped)
		})
	case Stopped:
		take(Failed, true)
		take(Copied, false)
	case Awaiting:
		take(TimeOver, false)
		take(Failed, true)
		take(Cancelled, true)
	case Reclaiming:
		if p.responses.yes {
			take(Granted, false)
		}
		if p.responses.no {
			take(Denied, false)
		}
		take(Unknown, true)
	}
}

func (e *player) receives(p party, take func(TargetEvent, bool)) {
	switch p.target.State() {
	case Incoming:
		if p.channel == committed || e.noCommit && p.channel == open {
			take(Received, false)
		}
		take(Broken, p.channel != cut)
	case Switching:
		if p.responses.yes {
			take(SwitchedOver, false)
		}
		if p.responses.no {
			take(Refused, false)
		}
		take(Unanswered, true)
		take(WaitedTooLong, true)
	}
}

// migrate starts a migration, up to the copy. The steps before it are explored without leases.
func (e *player) migrate(i int, p party) {
	if e.from.migrated >= e.migrations || !p.guest || !e.from.holds(i, p.run) {
		return
	}
	t := e.free()
	if t < 0 {
		return
	}
	e.add("migrate", true, func(w *leased) {
		w.migrated++
		w.from, w.to, w.parties[i].of = int8(i), int8(t), int8(t)+1
		for _, event := range []SourceEvent{Ordered, TargetFound, Agreed} {
			w.parties[i].source.Take(event)
		}
		var target targetCode
		target.Take(Called)
		w.parties[t] = party{alive: true, part: receiving, target: target, run: 1, them: p.run, channel: open}
	})
}

// free returns the index of a terminated Pod that is not the holder, or -1 if there is none.
func (e *player) free() int {
	for i, p := range e.from.parties {
		if !p.alive && int(e.from.holder) != i {
			return i
		}
	}
	return -1
}

// switchover delivers a switchover to the controller at any time after it was requested, whether or not the caller
// still waits.
func (e *player) switchover(i int) {
	p := e.from.parties[i]
	if !p.switching {
		return
	}
	us := max(p.run, p.next)
	has, may := e.from.swaps(i, &p)
	may = may || e.noSwap
	e.add("switchover", false, func(w *leased) {
		pending := &w.parties[i].responses
		switch {
		case has:
			pending.yes = true
		case may:
			w.authorize(int8(i), us)
			pending.yes = true
		default:
			pending.no = true
		}
		if !w.parties[i].alive {
			*pending = responses{}
		}
	})
	if may && !has {
		e.add("switchover without a response", true, func(w *leased) { w.authorize(int8(i), us) })
	}
}

// terminations adds the ways in which a process can terminate.
func (e *player) terminations(i int, p party) {
	if e.from.crashed < e.crashes {
		e.add("crash", true, func(w *leased) {
			w.crashed++
			w.end(i, false)
		})
	}
	if p.armed && p.sent.lease().Stop() <= 0 {
		e.add("expires", false, func(w *leased) { w.end(i, true) })
	}
}

// starts adds the events of a Pod without a process.
func (e *player) starts(i int, p party) {
	if int(e.from.holder) != i {
		return
	}
	if !e.from.adopted {
		e.add("start", false, func(w *leased) {
			w.parties[i] = party{alive: true, part: starting, run: 1, restarts: p.restarts}
		})
	} else if p.restarts == 0 && e.crashes > 0 {
		e.add("restart", true, func(w *leased) {
			w.parties[i] = party{alive: true, part: starting, run: max(p.run, p.next) + 1, restarts: 1}
		})
	}
	if p.release {
		e.add("the release arrives", false, func(w *leased) {
			w.parties[i].release = false
			if w.holds(i, p.run) && w.record().State != lease.Released {
				w.store(w.record().Next(lease.Released))
			}
		})
		e.add("the release is lost", true, func(w *leased) { w.parties[i].release = false })
	}
}

// arbiter makes a controller look at the lease. Whether the Pod appears to be gone is arbitrary.
func (e *player) arbiter(g int) {
	if e.from.crashed < e.crashes && e.from.arbiters[g] != (arbiter{}) {
		e.add("controller restarts", true, func(w *leased) {
			w.crashed++
			w.arbiters[g] = arbiter{}
			if e.noWait {
				w.arbiters[g] = arbiter{known: true, since: oldest}
			}
		})
	}
	if e.from.arbiters[g].decided {
		e.handOn(g)
	}
	e.look(g, false, -long)
	e.look(g, true, 0)
	if e.from.record().State == lease.Released && !e.from.parties[e.from.holder].alive {
		e.look(g, true, -long)
	}
}

func (e *player) look(g int, gone bool, heard lease.Instant) {
	known, record := e.from.arbiters[g], e.from.record()
	if !known.known {
		known = arbiter{known: true, decided: known.decided}
	}
	var watch lease.Watch
	watch.See(record, known.since.instant())
	now := lease.Instant(0)
	if e.noMargin {
		now = lease.Wait(lease.MinDuration) - lease.MinDuration
	}
	step, _ := watch.Next(lease.Facts{Record: record, Gone: gone, Heard: heard, Now: now})
	if e.noBar && step == lease.Suspect {
		step = lease.HandOn
	}
	e.add("look", gone, func(w *leased) { w.arbiters[g] = known })
	switch step {
	case lease.Suspect:
		e.add("suspect", gone, func(w *leased) { w.store(record.Next(lease.Suspected)) })
	case lease.Revoke:
		e.add("revoke", true, func(w *leased) { w.store(record.Next(lease.Revoked)) })
	case lease.HandOn:
		if e.blind {
			e.add("decide to hand on", false, func(w *leased) { w.arbiters[g].decided = true })
			return
		}
		e.handOn(g)
	}
}

func (e *player) handOn(g int) {
	i := e.free()
	if i < 0 && !e.from.parties[e.from.holder].alive {
		i = int(e.from.holder)
	}
	if i < 0 {
		return
	}
	e.add("hand on", false, func(w *leased) {
		w.parties[i] = party{}
		w.authorize(int8(i), 0)
		w.arbiters[g].decided = false
	})
}
