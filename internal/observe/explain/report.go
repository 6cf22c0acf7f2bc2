package explain

import "time"

// Verdict is the kind of an answer, for programs.
type Verdict string

// The verdicts.
const (
	// Healthy: the Machine is Running, or Available where there is no node to wait for; the
	// set or deployment has all Machines that it wants.
	Healthy Verdict = "Healthy"
	// NotRunning: it is not, and is not being deleted.
	NotRunning Verdict = "NotRunning"
	// Incomplete: a set or deployment does not have what it wants.
	Incomplete Verdict = "Incomplete"
	// Unknown: the Machines of a set or deployment cannot be read, so only what its status
	// says is known.
	Unknown Verdict = "Unknown"
	// Deleting: it is being deleted.
	Deleting Verdict = "Deleting"
	// Gone: there was such an object.
	Gone Verdict = "Gone"
	// NotFound: nothing tells that there ever was one.
	NotFound Verdict = "NotFound"
)

// Cause is the kind of a finding, for programs. Causes are API: they are never renamed.
type Cause string

// The causes.
const (
	// NoManager: no manager works, so nothing happens.
	NoManager Cause = "NoManager"
	// TargetAway: the cluster of the nodes does not answer.
	TargetAway Cause = "TargetAway"
	// MissingMaterial: the class, a Secret or one of its keys is missing or not valid.
	MissingMaterial Cause = "MissingMaterial"
	// NotLookedAt: nothing was done yet.
	NotLookedAt Cause = "NotLookedAt"
	// DriverError: the driver answered with an error.
	DriverError Cause = "DriverError"
	// NotJoined: there is no node yet.
	NotJoined Cause = "NotJoined"
	// NodeMissing: there is no node any more.
	NodeMissing Cause = "NodeMissing"
	// NodeUnhealthy: a condition of the node is not as it should be.
	NodeUnhealthy Cause = "NodeUnhealthy"
	// CriticalComponents: the node waits for pods without which it is of no use.
	CriticalComponents Cause = "CriticalComponents"
	// NodeTemplate: the node is not as the template for it says.
	NodeTemplate Cause = "NodeTemplate"
	// VMLost: the VM does not exist any more.
	VMLost Cause = "VMLost"
	// VMNotReady: the VirtualMachine is not Ready.
	VMNotReady Cause = "VMNotReady"
	// TimedOut: the Machine was given up.
	TimedOut Cause = "TimedOut"
	// ReplacementDelayed: others of the pool are replaced first.
	ReplacementDelayed Cause = "ReplacementDelayed"
	// Preserved: the Machine is kept although it failed.
	Preserved Cause = "Preserved"
	// InPlaceUpdate: the node is updated in place, or that went wrong.
	InPlaceUpdate Cause = "InPlaceUpdate"
	// SetBlocked: the set does not create Machines, or cannot.
	SetBlocked Cause = "SetBlocked"
	// Other: what the manager's last sentence says.
	Other Cause = "Other"

	// Drain: the node is emptied.
	Drain Cause = "Drain"
	// PodStuck: a pod should have ended, and has not.
	PodStuck Cause = "PodStuck"
	// PodEnding: a pod is ending.
	PodEnding Cause = "PodEnding"
	// PodWaits: a pod has not been evicted yet.
	PodWaits Cause = "PodWaits"
	// Budget: a PodDisruptionBudget allows no eviction now.
	Budget Cause = "Budget"
	// BudgetNever: a PodDisruptionBudget never allows one, however well its pods are.
	BudgetNever Cause = "BudgetNever"
	// VolumeAttached: a volume is still attached to the node.
	VolumeAttached Cause = "VolumeAttached"
	// VMRemains: the provider still has the VM.
	VMRemains Cause = "VMRemains"
	// ClaimedTwice: the VM is another Machine's, too.
	ClaimedTwice Cause = "ClaimedTwice"
	// Finalizer: somebody else's finalizer holds an object.
	Finalizer Cause = "Finalizer"

	// InvalidSpec: nothing is done before a field is corrected.
	InvalidSpec Cause = "InvalidSpec"
	// NotSupported: what is asked for cannot be done.
	NotSupported Cause = "NotSupported"
	// Overlap: another set or deployment selects the same Machines.
	Overlap Cause = "Overlap"
	// Released: sets with Machines that were the deployment's are not any more.
	Released Cause = "Released"
	// RollbackRefused: the revision that somebody wanted to go back to does not exist.
	RollbackRefused Cause = "RollbackRefused"
	// Paused: no Machine is replaced, since the deployment is paused.
	Paused Cause = "Paused"
	// Stalled: the rollout makes no progress.
	Stalled Cause = "Stalled"
	// Rollout: Machines of earlier templates are being replaced.
	Rollout Cause = "Rollout"
	// Frozen: the set creates nothing, since there are too many Machines.
	Frozen Cause = "Frozen"
	// ScaleUpDisabled: the set creates nothing, since somebody said so.
	ScaleUpDisabled Cause = "ScaleUpDisabled"
	// BackOff: the set waits, since its Machines keep failing.
	BackOff Cause = "BackOff"
	// MinReady: Machines run that do not count as available yet.
	MinReady Cause = "MinReady"
	// Scaling: Machines are being made or deleted.
	Scaling Cause = "Scaling"

	// Failure: the set replaced the Machine because it failed.
	Failure Cause = "Failure"
	// NamedForDeletion: somebody chose the Machine, normally an autoscaler.
	NamedForDeletion Cause = "NamedForDeletion"
	// Surplus: there were more Machines than wanted.
	Surplus Cause = "Surplus"
	// OwnerDeleted: the set or deployment is being deleted, or is gone.
	OwnerDeleted Cause = "OwnerDeleted"
	// NodeDeleted: somebody deleted the Node, which deletes its Machine.
	NodeDeleted Cause = "NodeDeleted"
	// Untold: nothing says why.
	Untold Cause = "Untold"
)

// Finding is one thing that was found out.
type Finding struct {
	Cause Cause `json:"cause"`
	// Object is what it is about, as "Kind name" or "Kind namespace/name"; empty for what
	// was asked about.
	Object string `json:"object,omitempty"`
	// Code is the name of a driver's error code; empty if it is about none.
	Code string `json:"code,omitempty"`
	// Text says it in a sentence without its full stop.
	Text string `json:"text"`
	// Since is when it began; zero if nothing tells.
	Since time.Time `json:"since,omitzero"`
	// Remedy is the most important advice against it, which the report has among the others;
	// empty if there is none.
	Remedy string `json:"-"`
}

// Step is something that will happen.
type Step struct {
	Text string `json:"text"`
	// At is when; zero if an event decides.
	At time.Time `json:"at,omitzero"`
	// Earliest tells that it may be later than At: time in which no manager works, or an
	// API server is away, does not count.
	Earliest bool `json:"earliest,omitempty"`
}

// Said is an event in short.
type Said struct {
	At time.Time `json:"at"`
	// Type is Normal or Warning.
	Type string `json:"type"`
	// Object is as that of a Finding.
	Object string `json:"object"`
	Reason string `json:"reason"`
	Text   string `json:"text"`
	// Count is how often it happened; at least 1.
	Count int32 `json:"count"`
}

// Identity says what a Machine is. Fields are empty where nothing is known.
type Identity struct {
	Phase      string `json:"phase,omitempty"`
	ProviderID string `json:"providerID,omitempty"`
	Node       string `json:"node,omitempty"`
	Class      string `json:"class,omitempty"`
	Set        string `json:"set,omitempty"`
	// SetReady is how many of the set's Machines are ready, as "2 of 3".
	SetReady   string `json:"setReady,omitempty"`
	Deployment string `json:"deployment,omitempty"`
}

// Pool says how many Machines a set or deployment has. Those that are being deleted are
// Leaving, and count nowhere else.
type Pool struct {
	Wanted int32 `json:"wanted"`
	Exist  int32 `json:"exist"`
	// Updated are those of the newest template; all of a set are.
	Updated   int32 `json:"updated"`
	Ready     int32 `json:"ready"`
	Available int32 `json:"available"`
	Leaving   int32 `json:"leaving"`
	// Preserved are those of Exist that are beyond what their sets ask for, and are kept
	// since they are preserved.
	Preserved int32 `json:"preserved,omitempty"`
	// Sets are those of a deployment that have Machines, or want some; the oldest first.
	Sets []Part `json:"sets,omitempty"`

	// current is the part of Updated.
	current Part
}

// Part is a set of a deployment.
type Part struct {
	Name      string `json:"name"`
	Revision  string `json:"revision"`
	Wanted    int32  `json:"wanted"`
	Exist     int32  `json:"exist"`
	Available int32  `json:"available"`
	// Preserved is as that of Pool.
	Preserved int32 `json:"preserved,omitempty"`
}

// Report is an explanation.
type Report struct {
	Namespace string `json:"namespace"`
	// One of these is the name of what was asked about; the others are empty.
	Machine           string `json:"machine,omitempty"`
	MachineSet        string `json:"machineSet,omitempty"`
	MachineDeployment string `json:"machineDeployment,omitempty"`
	// At is the time for which all of this holds.
	At      time.Time `json:"at"`
	Verdict Verdict   `json:"verdict"`
	// Answer says the most important thing in one sentence, with its full stop.
	Answer string `json:"answer"`
	// Since is since when the phase holds, since when the object is being deleted, or when
	// it went; for a set or deployment that is there, since when it is. Zero if nothing
	// tells.
	Since    time.Time `json:"since,omitzero"`
	Identity Identity  `json:"identity"`
	// Pool counts Machines; nil for a Machine.
	Pool *Pool `json:"pool,omitempty"`
	// Why says why it is as the answer says, the most important first.
	Why []Finding `json:"why,omitempty"`
	// Replaced says why the Machine was deleted.
	Replaced []Finding `json:"replaced,omitempty"`
	// Next is what happens without anybody's help.
	Next []Step `json:"next,omitempty"`
	// Advice is what an operator can do.
	Advice []string `json:"advice,omitempty"`
	// Events are the newest, in the order of their times.
	Events []Said `json:"events,omitempty"`
	// Unread says what could not be read: the explanation does without.
	Unread []string `json:"unread,omitempty"`
}
