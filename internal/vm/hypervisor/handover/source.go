// Package handover decides what the two hypervisors of a live migration do next.
//
// [Source] and [Target] are pure state machines: an event goes in, a new state and an action
// come out. They know neither QEMU nor the network. What they guarantee together, if the
// controller's switchover is an atomic compare-and-swap: the guest never runs on both sides,
// and does not stay stopped on both while one of them, and the controller, can be reached.
//
// Two facts carry this. The source may continue its guest by itself only before the action
// [Commit], by which it lets the target ask for the switchover. From then on whoever's
// switchover succeeds runs the guest, and no other result decides anything.
//
// With leases that expire (package lease) either side then waits for a lease of its new authority. A lease
// of the source is worth nothing after the commit, however long it holds.
package handover

// SourceState is what the hypervisor does that has the guest at first.
type SourceState string

// States of a source.
const (
	// Running means that the guest runs here and nothing else is wanted.
	Running SourceState = "running"
	// Asking means that the controller is asked for a target.
	Asking SourceState = "asking"
	// Negotiating means that the target is asked for a protocol.
	Negotiating SourceState = "negotiating"
	// Copying means that disk and memory are copied while the guest runs.
	Copying SourceState = "copying"
	// Stopped means that the guest is stopped for the rest of the copy. It can still be continued.
	Stopped SourceState = "stopped"
	// Awaiting means that the target may switch over. The guest must not be continued.
	Awaiting SourceState = "awaiting"
	// Reclaiming means that the source asks for the authority under a new run ID.
	Reclaiming SourceState = "reclaiming"
	// Regained means that the source has the authority again, and may not run the guest yet: it has no lease under
	// its new run ID.
	Regained SourceState = "regained"
	// Left means that the guest runs elsewhere, or nowhere. The process ends.
	Left SourceState = "left"
)

// SourceEvent is something that happened to a source.
type SourceEvent string

// Events of a source.
const (
	// Ordered means that the VM shall leave this host.
	Ordered SourceEvent = "ordered"
	// Cancelled means that it shall stay after all, or that the time for migrating is over.
	Cancelled SourceEvent = "cancelled"
	// TargetFound means that the controller named a target.
	TargetFound SourceEvent = "target-found"
	// NoTarget means that the controller wants the VM not to migrate.
	NoTarget SourceEvent = "no-target"
	// Agreed means that the target has answered with a protocol that fits.
	Agreed SourceEvent = "agreed"
	// Failed means that the step under way failed. The guest runs, or can be continued.
	Failed SourceEvent = "failed"
	// GuestStopped means that QEMU has stopped the guest for the rest of the copy.
	GuestStopped SourceEvent = "guest-stopped"
	// Copied means that everything was sent, and QEMU does not continue the guest by itself.
	Copied SourceEvent = "copied"
	// TimeOver means that the target has had its time for the switchover.
	TimeOver SourceEvent = "time-over"
	// Granted means that the controller answered this process's switchover with OK.
	Granted SourceEvent = "granted"
	// Leased means that the run of now has a lease of its own. Where leases do not expire, each run has one.
	Leased SourceEvent = "leased"
	// Denied means that it answered FAILED_PRECONDITION.
	Denied SourceEvent = "denied"
	// Unknown means that there is no answer. The controller may have done the switchover.
	Unknown SourceEvent = "unknown"
	// Terminated means that the controller ended this run.
	Terminated SourceEvent = "terminated"
)

// SourceAction is what a source does on a transition.
type SourceAction string

// Actions of a source.
const (
	// Nothing is no action.
	Nothing SourceAction = ""
	// Ask the controller for a target; after a failure, with a pause before.
	Ask SourceAction = "ask"
	// Negotiate with the target.
	Negotiate SourceAction = "negotiate"
	// Copy begins the copy.
	Copy SourceAction = "copy"
	// Abandon ends the attempt: the channels are cut without a commit, QEMU's migration is
	// cancelled, and the guest runs.
	Abandon SourceAction = "abandon"
	// AbandonAndAsk is Abandon, then Ask.
	AbandonAndAsk SourceAction = "abandon-and-ask"
	// Commit closes the memory's channel in order. From then on the target may ask for the
	// switchover. The time for it begins.
	Commit SourceAction = "commit"
	// Reclaim takes a new run ID, closes the run lease of the old one, and asks for the
	// switchover from the old to the new. Asked again it keeps the new run ID.
	Reclaim SourceAction = "reclaim"
	// OpenLease becomes the new run, and opens a run lease with its ID. What the old one was granted counts for
	// nothing any more.
	OpenLease SourceAction = "open-lease"
	// Resume continues the guest.
	Resume SourceAction = "resume"
	// ShutDown asks the guest to shut down, and ends the process, if that was to end; else
	// the guest runs on.
	ShutDown SourceAction = "shut-down"
	// Kill the machine and end the process.
	Kill SourceAction = "kill"
)

// sourceStep is a transition.
type sourceStep struct {
	to SourceState
	do SourceAction
}

// sourceSteps are all transitions. An event that a state does not have changes nothing: it
// came late.
var sourceSteps = map[SourceState]map[SourceEvent]sourceStep{
	Running: {
		Ordered:    {Asking, Ask},
		Terminated: {Left, Kill},
	},
	Asking: {
		TargetFound: {Negotiating, Negotiate},
		NoTarget:    {Running, ShutDown},
		Failed:      {Asking, Ask},
		Cancelled:   {Running, Nothing},
		Terminated:  {Left, Kill},
	},
	Negotiating: {
		Agreed:     {Copying, Copy},
		Failed:     {Asking, Ask},
		Cancelled:  {Running, Abandon},
		Terminated: {Left, Kill},
	},
	Copying: {
		GuestStopped: {Stopped, Nothing},
		Failed:       {Asking, AbandonAndAsk},
		Cancelled:    {Running, Abandon},
		Terminated:   {Left, Kill},
	},
	Stopped: {
		Copied:     {Awaiting, Commit},
		Failed:     {Asking, AbandonAndAsk},
		Cancelled:  {Running, Abandon},
		Terminated: {Left, Kill},
	},
	Awaiting: {
		TimeOver:   {Reclaiming, Reclaim},
		Terminated: {Left, Kill},
	},
	// Terminated is about the old run here, which the switchover itself ends.
	Reclaiming: {
		Granted: {Regained, OpenLease},
		Denied:  {Left, Kill},
		Unknown: {Reclaiming, Reclaim},
	},
	Regained: {
		Leased:     {Running, Resume},
		Terminated: {Left, Kill},
	},
	Left: {},
}

// Source is the side that has the guest at first. The zero value runs its guest.
type Source struct{ state SourceState }

// State returns the state.
func (s *Source) State() SourceState {
	if s.state == "" {
		return Running
	}
	return s.state
}

// Take applies an event, and returns what to do.
func (s *Source) Take(event SourceEvent) SourceAction {
	step, known := sourceSteps[s.State()][event]
	if !known {
		return Nothing
	}
	s.state = step.to
	return step.do
}

// MayRun reports whether the guest may run here.
func (s *Source) MayRun() bool {
	switch s.State() {
	case Running, Asking, Negotiating, Copying:
		return true
	default:
		return false
	}
}
