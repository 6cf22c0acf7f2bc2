// Package handover decides what the two hypervisors of a live migration do next.
//
// [Source] and [Target] are pure state machines: an event leads to a new state and an action. They depend on
// neither QEMU nor the network. If the controller's switchover is an atomic compare-and-swap, the guest never runs
// on both sides. It also does not stay stopped on both sides while one of them and the controller can be reached.
//
// This is based on two facts. The source may continue its guest by itself only before the action [Commit], by
// which it allows the target to ask for the switchover. From then on, the side whose switchover succeeds runs the
// guest, and no other result decides anything.
//
// If leases expire (package lease), both sides then wait for a lease of their new authority. A lease of the source
// is void after the commit, even if it has not expired.
package handover

// SourceState is the state of the hypervisor that has the guest initially.
type SourceState string

// The states of a source.
const (
	// Running means that the guest runs here and no migration is requested.
	Running SourceState = "running"
	// Asking means that the controller was asked for a target.
	Asking SourceState = "asking"
	// Negotiating means that the target was asked for a protocol.
	Negotiating SourceState = "negotiating"
	// Copying means that the disks and the memory are copied while the guest runs.
	Copying SourceState = "copying"
	// Stopped means that the guest is stopped for the rest of the copy. It can still be continued.
	Stopped SourceState = "stopped"
	// Awaiting means that the target may switch over. The guest must not be continued.
	Awaiting SourceState = "awaiting"
	// Reclaiming means that the source asks for the authority under a new run ID.
	Reclaiming SourceState = "reclaiming"
	// Regained means that the source has the authority again but may not run the guest yet, because it does not
	// have a lease under its new run ID.
	Regained SourceState = "regained"
	// Left means that the guest runs on another hypervisor, or not at all. The process terminates.
	Left SourceState = "left"
)

// SourceEvent is something that happened to a source.
type SourceEvent string

// The events of a source.
const (
	// Ordered means that the VM must leave this host.
	Ordered SourceEvent = "ordered"
	// Cancelled means that the VM must stay, or that the time for migrating has run out.
	Cancelled SourceEvent = "cancelled"
	// TargetFound means that the controller named a target.
	TargetFound SourceEvent = "target-found"
	// NoTarget means that the controller does not want the VM to migrate.
	NoTarget SourceEvent = "no-target"
	// Agreed means that the target has responded with a matching protocol.
	Agreed SourceEvent = "agreed"
	// Failed means that the current step failed. The guest runs, or can be continued.
	Failed SourceEvent = "failed"
	// GuestStopped means that QEMU has stopped the guest for the rest of the copy.
	GuestStopped SourceEvent = "guest-stopped"
	// Copied means that everything was sent and QEMU does not continue the guest by itself.
	Copied SourceEvent = "copied"
	// TimeOver means that the target's time for the switchover has run out.
	TimeOver SourceEvent = "time-over"
	// Granted means that the controller responded to this process's switchover with OK.
	Granted SourceEvent = "granted"
	// Leased means that the current run has its own lease. If leases do not expire, every run has one.
	Leased SourceEvent = "leased"
	// Denied means that the controller responded with FAILED_PRECONDITION.
	Denied SourceEvent = "denied"
	// Unknown means that there was no response. The controller may or may not have performed the switchover.
	Unknown SourceEvent = "unknown"
	// Terminated means that the controller terminated this run.
	Terminated SourceEvent = "terminated"
)

// SourceAction is the action of a source after a transition.
type SourceAction string

// The actions of a source.
const (
	// Nothing means that there is no action.
	Nothing SourceAction = ""
	// Ask asks the controller for a target. After a failure, it does so with a delay.
	Ask SourceAction = "ask"
	// Negotiate negotiates with the target.
	Negotiate SourceAction = "negotiate"
	// Copy starts the copy.
	Copy SourceAction = "copy"
	// Abandon gives up the attempt: it cuts the channels without a commit and cancels QEMU's migration. The guest
	// runs.
	Abandon SourceAction = "abandon"
	// AbandonAndAsk performs Abandon and then Ask.
	AbandonAndAsk SourceAction = "abandon-and-ask"
	// Commit closes the memory channel properly. From then on, the target may ask for the switchover, for a
	// limited time.
	Commit SourceAction = "commit"
	// Reclaim takes a new run ID, closes the run lease of the old ID, and asks for the switchover from the old ID
	// to the new one. When it is repeated, it keeps the new ID.
	Reclaim SourceAction = "reclaim"
	// OpenLease changes to the new run and opens a run lease with its ID. The lease of the old run is no longer
	// valid.
	OpenLease SourceAction = "open-lease"
	// Resume continues the guest.
	Resume SourceAction = "resume"
	// ShutDown asks the guest to shut down and terminates the process, if the process was asked to terminate.
	// Otherwise the guest keeps running.
	ShutDown SourceAction = "shut-down"
	// Kill kills the machine and terminates the process.
	Kill SourceAction = "kill"
)

// sourceStep is a transition.
type sourceStep struct {
	to SourceState
	do SourceAction
}

// sourceSteps are all transitions. An event that a state does not list is late and has no effect.
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
	// Terminated concerns the old run, which the switchover itself terminates.
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

// Source is the side that has the guest initially. The zero value runs its guest.
type Source struct{ state SourceState }

// State returns the state.
func (s *Source) State() SourceState {
	if s.state == "" {
		return Running
	}
	return s.state
}

// Take applies an event and returns the action to perform.
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
