package handover

// TargetState is the state of the hypervisor that waits for a guest.
type TargetState string

// The states of a target.
const (
	// Waiting means that no source has called yet.
	Waiting TargetState = "waiting"
	// Incoming means that the VM is being received.
	Incoming TargetState = "incoming"
	// Switching means that the controller was asked for the authority.
	Switching TargetState = "switching"
	// Authorized means that the controller has given the VM to this hypervisor, which does not have a lease yet.
	Authorized TargetState = "authorized"
	// Arrived means that the guest runs here.
	Arrived TargetState = "arrived"
	// Gone means that the guest has never run here and never will. The process terminates.
	Gone TargetState = "gone"
)

// TargetEvent is something that happened to a target.
type TargetEvent string

// The events of a target.
const (
	// Called means that the source has called StartMigration.
	Called TargetEvent = "called"
	// Received means that QEMU has loaded the whole state and the source has committed.
	Received TargetEvent = "received"
	// Broken means that the copy was terminated in any other way.
	Broken TargetEvent = "broken"
	// WaitedTooLong means that no migration was received, or that no switchover got a response in time.
	WaitedTooLong TargetEvent = "waited-too-long"
	// SwitchedOver means that the controller responded with OK.
	SwitchedOver TargetEvent = "switched-over"
	// GotLease means that this hypervisor has a lease. If leases do not expire, the authority includes one.
	GotLease TargetEvent = "got-lease"
	// Refused means that the controller responded with FAILED_PRECONDITION.
	Refused TargetEvent = "refused"
	// Unanswered means that there was no response. The controller may or may not have performed the switchover.
	Unanswered TargetEvent = "unanswered"
	// Ended means that the controller terminated this run, or the process must terminate.
	Ended TargetEvent = "ended"
)

// TargetAction is the action of a target after a transition.
type TargetAction string

// The actions of a target.
const (
	// Stay means that there is no action.
	Stay TargetAction = ""
	// Listen prepares QEMU and responds to the source.
	Listen TargetAction = "listen"
	// SwitchOver asks for the authority of the caller of StartMigration. It is repeated after a delay.
	SwitchOver TargetAction = "switch-over"
	// AwaitLease asks for a lease until it is granted.
	AwaitLease TargetAction = "await-lease"
	// Run runs the guest.
	Run TargetAction = "run"
	// Exit kills the machine and terminates the process.
	Exit TargetAction = "exit"
)

type targetStep struct {
	to TargetState
	do TargetAction
}

// targetSteps are all transitions. An event that a state does not list has no effect.
var targetSteps = map[TargetState]map[TargetEvent]targetStep{
	Waiting: {
		Called:        {Incoming, Listen},
		WaitedTooLong: {Gone, Exit},
		Ended:         {Gone, Exit},
	},
	Incoming: {
		Received:      {Switching, SwitchOver},
		Broken:        {Gone, Exit},
		WaitedTooLong: {Gone, Exit},
		Ended:         {Gone, Exit},
	},
	Switching: {
		SwitchedOver:  {Authorized, AwaitLease},
		Refused:       {Gone, Exit},
		Unanswered:    {Switching, SwitchOver},
		WaitedTooLong: {Gone, Exit},
		Ended:         {Gone, Exit},
	},
	// From here on, no other hypervisor has the guest, so it is not given up, no matter how long the remaining
	// steps take.
	Authorized: {
		GotLease: {Arrived, Run},
		Ended:    {Gone, Exit},
	},
	// From here on, it is a hypervisor like any other.
	Arrived: {Ended: {Gone, Exit}},
	Gone:    {},
}

// Target is the side that waits for the guest. The zero value is waiting.
type Target struct{ state TargetState }

// State returns the state.
func (t *Target) State() TargetState {
	if t.state == "" {
		return Waiting
	}
	return t.state
}

// Take applies an event and returns the action to perform.
func (t *Target) Take(event TargetEvent) TargetAction {
	step, known := targetSteps[t.State()][event]
	if !known {
		return Stay
	}
	t.state = step.to
	return step.do
}

// MayRun reports whether the guest may run here.
func (t *Target) MayRun() bool { return t.State() == Arrived }
