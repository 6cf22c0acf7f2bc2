package handover

import "github.com/millwright-dev/millwright/test/support/explore"

// hosts is the maximum number of hypervisors, including the one that the controller creates for a VM whose
// hypervisor has terminated.
const hosts = 4

// run is a run ID. The higher digits identify the hypervisor, so that each hypervisor has its own IDs.
type run int8

const runsPerHost = 8

func firstRun(host int) run       { return run(host*runsPerHost + 1) }
func (r run) host() int           { return int(r) / runsPerHost }
func (r run) after(o run) bool    { return r.host() == o.host() && r > o }
func (r run) sameHost(h int) bool { return r.host() == h }

// channel is what a target knows about its memory channel.
type channel int8

const (
	closed channel = iota
	open
	committed
	cut
)

// role is the purpose for which a process was started.
type role int8

const (
	absent role = iota
	asTarget
	asSource  // has the guest, or had it
	restarted // a new process in the Pod without an authorization
	terminated
)

// responses are the responses to switchovers that were not delivered yet. They may be delivered more than once.
type responses struct{ yes, no bool }

// hypervisor is one process.
type hypervisor struct {
	role      role
	run       run
	source    Source
	target    Target
	to        int8 // for a source: its target
	next      run  // for a source that reclaims: the new run
	them      run  // for a target: the caller
	called    run  // StartMigration of this run is on its way here, and may be delivered again
	channel   channel
	asked     bool // a switchover is on its way to the controller, and may be delivered again
	responses responses
	restarts  int8
}

// world is the complete state at one point in time. It is comparable.
type world struct {
	hosts     [hosts]hypervisor
	authority run
	// from and to are the two sides that the controller allows to switch over.
	from, to int8
	crashed  int8
}

// rules define what can happen. All guards are normally on.
type rules struct {
	targets  int8 // the number of hypervisors that can become targets
	crashes  int8 // the number of processes that crash; the controller replaces a Pod that has terminated
	givesUp  bool // a target terminates if its switchover gets no response for a long time
	noCommit bool // guard off: the target does not wait for the commit
	oldRun   bool // guard off: the source reclaims without a new run ID
	noSwap   bool // guard off: the controller does not compare
	noRepeat bool // guard off: the controller refuses a caller that is already authoritative
}

func start() world {
	w := world{authority: firstRun(0), from: -1, to: -1}
	w.hosts[0] = hypervisor{role: asSource, run: firstRun(0), to: -1}
	return w
}

// guests returns the number of running guests.
func (w world) guests() int {
	count := 0
	for _, h := range w.hosts {
		if h.role == asSource && h.source.MayRun() || h.role == asTarget && h.target.MayRun() {
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
	if next != e.from {
		e.edges = append(e.edges, explore.Edge[world]{To: next, Name: name, Fault: fault})
	}
}

func (r rules) edges(w world) []explore.Edge[world] {
	e := &explorer{rules: r, from: w}
	for i := range hosts {
		switch w.hosts[i].role {
		case asSource:
			e.sourceEvents(i)
		case asTarget:
			e.targetEvents(i)
		case restarted:
			e.adoption(i)
		case terminated:
			e.recovery(i)
		}
		e.switchovers(i)
		e.crash(i)
	}
	return e.edges
}

// source applies an event to a source and performs its action.
func (e *explorer) source(i int, event SourceEvent, fault bool) {
	e.add(string(event), fault, func(w *world) {
		h := &w.hosts[i]
		switch h.source.Take(event) {
		case Negotiate:
			w.hosts[h.to].called = h.run
		case Abandon, AbandonAndAsk:
			w.cutChannel(int(h.to))
		case Commit:
			if w.hosts[h.to].channel == open {
				w.hosts[h.to].channel = committed
			}
		case Reclaim:
			if h.next == 0 {
				h.next = h.run + 1
				if e.oldRun {
					h.next = h.run
				}
			}
			h.asked = true
		case OpenLease, Resume: // without OpenLease if a guard is off
			if h.next != 0 {
				h.run, h.next, h.asked, h.responses = h.next, 0, false, responses{}
			}
		case Kill:
			w.kill(i)
		}
	})
}

func (e *explorer) sourceEvents(i int) {
	h := e.from.hosts[i]
	e.source(i, Cancelled, true)
	switch h.source.State() {
	case Running:
		if i < hosts-1 { // the last host is never a source
			e.source(i, Ordered, true)
		}
	case Asking:
		e.source(i, NoTarget, false)
		e.find(i)
	case Negotiating:
		e.source(i, Failed, false)
		if h.to >= 0 && e.from.hosts[h.to].them == h.run {
			e.source(i, Agreed, false)
		}
	case Copying:
		e.source(i, Failed, false)
		e.source(i, GuestStopped, false)
	case Stopped:
		e.source(i, Failed, false)
		e.source(i, Copied, false)
	case Awaiting:
		e.source(i, TimeOver, false)
		e.source(i, Failed, true) // QEMU reports that, whatever the reason
	case Reclaiming:
		e.responsesTo(i, h)
	case Regained:
		e.source(i, Leased, false)
	}
	if e.from.authority != h.run {
		e.source(i, Terminated, false)
	}
}

func (e *explorer) responsesTo(i int, h hypervisor) {
	if h.responses.yes {
		e.source(i, Granted, false)
	}
	if h.responses.no {
		e.source(i, Denied, false)
	}
	e.source(i, Unknown, true)
}

// find is the controller's response to EnsureMigrationTarget: a target that is not in use yet.
func (e *explorer) find(i int) {
	if e.from.authority != e.from.hosts[i].run {
		return
	}
	for t := range hosts {
		if t > int(e.targets) || e.from.hosts[t].role != absent {
			continue
		}
		e.add("target found", false, func(w *world) {
			w.hosts[t] = hypervisor{role: asTarget, run: firstRun(t), to: -1}
			w.hosts[i].to = int8(t)
			w.from, w.to = int8(i), int8(t)
			if w.hosts[i].source.Take(TargetFound) == Negotiate {
				w.hosts[t].called = w.hosts[i].run
			}
		})
		return
	}
}

// target applies an event to a target and performs its action.
func (e *explorer) target(i int, event TargetEvent, fault bool) {
	e.add(string(event), fault, func(w *world) {
		h := &w.hosts[i]
		switch h.target.Take(event) {
		case Listen:
			h.them, h.channel = h.called, open
		case SwitchOver:
			h.asked = true
		case Run:
			// From here on, it is a hypervisor like any other.
			*h = hypervisor{role: asSource, run: h.run, to: -1, restarts: h.restarts}
		case Exit:
			w.kill(i)
		}
	})
}

func (e *explorer) targetEvents(i int) {
	h := e.from.hosts[i]
	switch h.target.State() {
	case Waiting:
		if h.called != 0 {
			e.target(i, Called, false)
		}
		e.target(i, WaitedTooLong, false)
	case Incoming:
		if h.channel == committed || e.noCommit && h.channel == open {
			e.target(i, Received, false)
		}
		e.target(i, Broken, h.channel != cut)
		e.target(i, WaitedTooLong, true)
	case Switching:
		e.responsesToTarget(i, h.responses)
	case Authorized:
		e.target(i, GotLease, false)
	}
	known := e.from.authority == h.run || int(e.from.to) == i && e.from.authority.sameHost(int(e.from.from))
	if !known || e.from.authority.after(h.them) && h.them != 0 {
		e.target(i, Ended, false)
	}
}

func (e *explorer) responsesToTarget(i int, a responses) {
	if a.yes {
		e.target(i, SwitchedOver, false)
	}
	if a.no {
		e.target(i, Refused, false)
	}
	e.target(i, Unanswered, true)
	if e.givesUp {
		e.target(i, WaitedTooLong, true)
	}
}

// switchovers adds the switchovers that reach the controller, at any time after they were requested, whether or
// not the caller still waits.
func (e *explorer) switchovers(i int) {
	h := e.from.hosts[i]
	if !h.asked {
		return
	}
	us, them := h.run, h.them
	if h.next != 0 {
		us, them = h.next, h.run
	}
	e.add("switchover", false, func(w *world) {
		pending := &w.hosts[i].responses
		switch {
		case w.authority == us && !e.noRepeat:
			pending.yes = true
		case w.authority == them || e.noSwap:
			w.authority, w.from, w.to = us, -1, -1
			pending.yes = true
		default:
			pending.no = true
		}
	})
	// The response may be lost.
	e.add("switchover without a response", true, func(w *world) {
		if w.authority == them || e.noSwap {
			w.authority, w.from, w.to = us, -1, -1
		}
	})
}

func (e *explorer) crash(i int) {
	switch e.from.hosts[i].role {
	case asTarget, asSource, restarted:
		if e.from.crashed < e.crashes && i < hosts-1 {
			e.add("crash", true, func(w *world) { w.crashed++; w.kill(i) })
		}
	}
}

// kill terminates a process. Its requests may still reach the controller.
func (w *world) kill(i int) {
	h := &w.hosts[i]
	if h.role == asSource && h.to >= 0 && w.hosts[h.to].channel == open {
		w.cutChannel(int(h.to))
	}
	*h = hypervisor{
		role: terminated, run: h.run, to: -1, them: h.them, next: h.next, asked: h.asked, restarts: h.restarts,
	}
}

func (w *world) cutChannel(target int) {
	if target >= 0 && w.hosts[target].channel == open {
		w.hosts[target].channel = cut
	}
}

// adoption adds the run lease of a new process in a Pod.
func (e *explorer) adoption(i int) {
	h := e.from.hosts[i]
	e.add("lease", false, func(w *world) {
		switch {
		case w.authority.sameHost(i) && w.authority < h.run:
			w.authority, w.from, w.to = h.run, -1, -1
			w.hosts[i] = hypervisor{role: asSource, run: h.run, to: -1, restarts: h.restarts}
		default:
			w.kill(i)
		}
	})
}

// recovery adds a new process in the Pod, or a new Pod that replaces an authoritative Pod that has terminated.
func (e *explorer) recovery(i int) {
	h := e.from.hosts[i]
	if e.crashes == 0 {
		return
	}
	if h.restarts == 0 && i < hosts-1 {
		e.add("restart", true, func(w *world) {
			// The next ID after the highest one that any process of the Pod had or requested.
			next := max(h.run, h.next) + 1
			w.hosts[i] = hypervisor{role: restarted, run: next, to: -1, restarts: 1}
		})
	}
	last := hosts - 1
	if e.from.authority.sameHost(i) && e.from.hosts[last].role == absent {
		e.add("new Pod", false, func(w *world) {
			w.authority, w.from, w.to = firstRun(last), -1, -1
			w.hosts[last] = hypervisor{role: asSource, run: firstRun(last), to: -1, restarts: 1}
		})
	}
}
