// Package report is what an explanation says: findings with their causes, what happens next, and
// advice.
package report

import (
	"strings"
	"time"
)

// Verdict is the kind of an answer. Verdicts are API: they are never renamed.
type Verdict string

// The verdicts.
const (
	// Healthy: a Machine is Running, or Available where no node is expected; a set or deployment
	// has all Machines that it wants.
	Healthy Verdict = "Healthy"
	// NotRunning: a Machine is neither Running nor being deleted.
	NotRunning Verdict = "NotRunning"
	// Incomplete: a set or deployment does not have what it wants.
	Incomplete Verdict = "Incomplete"
	// Unknown: the sets or Machines cannot be read, so only the status is known.
	Unknown Verdict = "Unknown"
	// Deleting: the object is being deleted.
	Deleting Verdict = "Deleting"
	// Gone: there was such an object.
	Gone Verdict = "Gone"
	// NotFound: nothing shows that there ever was one.
	NotFound Verdict = "NotFound"
)

// Cause is the kind of a finding. Causes are API: they are never renamed. docs/explain.md says what
// each means; those that controllers annotate on events have the same names there.
type Cause string

// The causes.
const (
	ManagerNotRunning          Cause = "ManagerNotRunning"
	NotStarted                 Cause = "NotStarted"
	CreationBlocked            Cause = "CreationBlocked"
	VirtualMachineNotReady     Cause = "VirtualMachineNotReady"
	VirtualMachineMigrating    Cause = "VirtualMachineMigrating"
	NodeNotJoined              Cause = "NodeNotJoined"
	CriticalComponentsNotReady Cause = "CriticalComponentsNotReady"
	NodeTemplateNotApplied     Cause = "NodeTemplateNotApplied"
	Preserved                  Cause = "Preserved"
	InPlaceUpdate              Cause = "InPlaceUpdate"
	Draining                   Cause = "Draining"
	EvictionPending            Cause = "EvictionPending"
	PodTerminating             Cause = "PodTerminating"
	PodStuck                   Cause = "PodStuck"
	DisruptionBudget           Cause = "DisruptionBudget"
	DisruptionBudgetForbids    Cause = "DisruptionBudgetForbids"
	VolumeAttached             Cause = "VolumeAttached"
	Finalizer                  Cause = "Finalizer"
	NotSupported               Cause = "NotSupported"
	Paused                     Cause = "Paused"
	Frozen                     Cause = "Frozen"
	ScaleUpDisabled            Cause = "ScaleUpDisabled"
	BackOff                    Cause = "BackOff"
	ReplicaFailure             Cause = "ReplicaFailure"
	MinReadySeconds            Cause = "MinReadySeconds"
	Scaling                    Cause = "Scaling"
	RolloutInProgress          Cause = "RolloutInProgress"
	ProgressDeadlineExceeded   Cause = "ProgressDeadlineExceeded"
	SelectorOverlap            Cause = "SelectorOverlap"
	SetReleased                Cause = "SetReleased"
	RollbackRefused            Cause = "RollbackRefused"
	Other                      Cause = "Other"
)

// Causes of the deletion of a Machine.
const (
	DeletedBySet Cause = "DeletedBySet"
	Unexplained  Cause = "Unexplained"
)

// Finding is one thing that was found.
type Finding struct {
	Cause Cause `json:"cause"`
	// Object is "Kind name" or "Kind namespace/name"; empty for the explained object.
	Object string `json:"object,omitempty"`
	// Code is the name of a driver's error code, if there is one.
	Code string `json:"code,omitempty"`
	// Text is a sentence without its full stop.
	Text string `json:"text"`
	// Since is when it began; zero if that is unknown.
	Since time.Time `json:"since,omitzero"`
	// Remedy is the advice against it, which is also in the report's Advice.
	Remedy string `json:"remedy,omitempty"`
	// Statement is what the text and the remedy were made from.
	Statement Statement `json:"-"`
}

// String returns the finding as a clause that stands by itself.
func (f Finding) String() string {
	text := f.Text
	if f.Object != "" && !strings.Contains(text, f.Object) {
		text = f.Object + ": " + text
	}
	if f.Code != "" {
		text += " (" + f.Code + ")"
	}
	return text
}

// Step is something that will happen.
type Step struct {
	Text string `json:"text"`
	// At is when; zero if an event decides.
	At time.Time `json:"at,omitzero"`
	// Earliest reports whether it may be later than At: time in which no manager works, or an
	// API server does not answer, does not count.
	Earliest bool `json:"earliest,omitempty"`
}

// Event is an event in short.
type Event struct {
	At time.Time `json:"at"`
	// Type is Normal or Warning.
	Type string `json:"type"`
	// Object is as in Finding.
	Object string `json:"object"`
	Reason string `json:"reason"`
	Text   string `json:"text"`
	// Count is how often it happened, at least 1.
	Count int32 `json:"count"`
}

// Identity identifies a Machine, set or deployment. Unknown fields are empty.
type Identity struct {
	Phase      string `json:"phase,omitempty"`
	ProviderID string `json:"providerID,omitempty"`
	Node       string `json:"node,omitempty"`
	Class      string `json:"class,omitempty"`
	// ClassReason is why a Machine has another class than its first choice, NoCapacity or ZoneSpread.
	ClassReason string `json:"classReason,omitempty"`
	Set         string `json:"set,omitempty"`
	// SetReady is how many of the set's Machines are ready, as "2 of 3".
	SetReady   string `json:"setReady,omitempty"`
	Deployment string `json:"deployment,omitempty"`
}

// Counts count Machines. Those that are being deleted are Leaving, and count nowhere else.
type Counts struct {
	Wanted    int32 `json:"wanted"`
	Exist     int32 `json:"exist"`
	Ready     int32 `json:"ready"`
	Available int32 `json:"available"`
	Leaving   int32 `json:"leaving"`
	// Preserved are those of Exist that exceed what their sets want, and are preserved.
	Preserved int32 `json:"preserved,omitempty"`
	// Excess are those of Wanted that are wanted as a reserve, in excess of the replicas.
	Excess int32 `json:"excess,omitempty"`
}

// Add adds the numbers of other Machines.
func (c *Counts) Add(of Counts) {
	c.Wanted += of.Wanted
	c.Exist += of.Exist
	c.Ready += of.Ready
	c.Available += of.Available
	c.Leaving += of.Leaving
	c.Preserved += of.Preserved
	c.Excess += of.Excess
}

// NoPhase stands for the phase of a Machine that has none yet.
const NoPhase = "New"

// Pool counts the Machines of a set or deployment.
type Pool struct {
	Counts

	// Updated are those of the newest template; all of a set are.
	Updated int32 `json:"updated"`
	// Sets are those of a deployment that have or want Machines, and that of the newest template, the
	// oldest first.
	Sets []Part `json:"sets,omitempty"`
}

// Part counts the Machines of one set of a deployment.
type Part struct {
	Counts

	Name     string `json:"name"`
	Revision string `json:"revision"`
	// Current reports whether it is of the newest template.
	Current bool `json:"current,omitempty"`
	// Phases counts all its Machines by phase. One that is being deleted is Terminating.
	Phases map[string]int32 `json:"phases,omitempty"`
}

// Empty reports whether a set neither has nor wants Machines, but for those that are being deleted.
func (p Part) Empty() bool { return p.Wanted == 0 && p.Exist == 0 }

// Report is an explanation.
type Report struct {
	Namespace string `json:"namespace"`
	// Machine, MachineSet or MachineDeployment is the name of the explained object.
	Machine           string `json:"machine,omitempty"`
	MachineSet        string `json:"machineSet,omitempty"`
	MachineDeployment string `json:"machineDeployment,omitempty"`
	// At is the time for which the report holds.
	At      time.Time `json:"at"`
	Verdict Verdict   `json:"verdict"`
	// Answer is the most important thing in one sentence.
	Answer string `json:"answer"`
	// Since is when the phase or the deletion began, when the object went, or when a set or
	// deployment was created; zero if that is unknown.
	Since    time.Time `json:"since,omitzero"`
	Identity Identity  `json:"identity"`
	// Pool is nil for a Machine.
	Pool *Pool `json:"pool,omitempty"`
	// Why explains the answer, the most important first.
	Why []Finding `json:"why,omitempty"`
	// Replaced says why the Machine was deleted.
	Replaced []Finding `json:"replaced,omitempty"`
	// Next is what happens without the user's help.
	Next []Step `json:"next,omitempty"`
	// Advice is what the user can do.
	Advice []string `json:"advice,omitempty"`
	// Console are the last lines of the VM's console, which are the guest's own words, as LastLines returns them.
	Console []string `json:"console,omitempty"`
	// Events are the newest, in the order of their times.
	Events []Event `json:"events,omitempty"`
	// Unread says what could not be read; the explanation does without.
	Unread []string `json:"unread,omitempty"`
}
