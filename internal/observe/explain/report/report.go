// Package report defines the content of an explanation: findings with their causes, what happens next, and advice.
package report

import (
	"strings"
	"time"
)

// Verdict is the result of an explanation. Verdicts are part of the API, and are never renamed.
type Verdict string

// The verdicts.
const (
	// Healthy means that a Machine is Running, or Available if no node is expected, or that a set or deployment has
	// all desired Machines.
	Healthy Verdict = "Healthy"
	// NotRunning means that a Machine is neither Running nor being deleted.
	NotRunning Verdict = "NotRunning"
	// Incomplete means that a set or deployment does not have the desired Machines.
	Incomplete Verdict = "Incomplete"
	// Unknown means that the sets or Machines cannot be read, so only the status is known.
	Unknown Verdict = "Unknown"
	// Deleting means that the object is being deleted.
	Deleting Verdict = "Deleting"
	// Gone means that the object existed, but no longer does.
	Gone Verdict = "Gone"
	// NotFound means that there is no evidence that the object ever existed.
	NotFound Verdict = "NotFound"
)

// Cause is the kind of a finding. Causes are part of the API, and are never renamed. docs/tasks/explain.md describes
// them. Causes that controllers annotate on events have the same names there.
type Cause string

// The causes.
const (
	ManagerNotRunning          Cause = "ManagerNotRunning"
	NotStarted                 Cause = "NotStarted"
	CreationBlocked            Cause = "CreationBlocked"
	VirtualMachineNotReady     Cause = "VirtualMachineNotReady"
	VirtualMachineMigrating    Cause = "VirtualMachineMigrating"
	NodeNotJoined              Cause = "NodeNotJoined"
	CertificateDenied          Cause = "CertificateDenied"
	CriticalComponentsNotReady Cause = "CriticalComponentsNotReady"
	NodeTemplateNotApplied     Cause = "NodeTemplateNotApplied"
	Preserved                  Cause = "Preserved"
	InPlaceUpdate              Cause = "InPlaceUpdate"
	Draining                   Cause = "Draining"
	EvictionPending            Cause = "EvictionPending"
	PodReturned                Cause = "PodReturned"
	PodTerminating             Cause = "PodTerminating"
	PodStuck                   Cause = "PodStuck"
	DisruptionBudget           Cause = "DisruptionBudget"
	DisruptionBudgetForbids    Cause = "DisruptionBudgetForbids"
	VolumeAttached             Cause = "VolumeAttached"
	Finalizer                  Cause = "Finalizer"
	NotSupported               Cause = "NotSupported"
	Paused                     Cause = "Paused"
	Frozen                     Cause = "Frozen"
	AwaitingRestore            Cause = "AwaitingRestore"
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

// Finding is a single fact that explains the state of the object.
type Finding struct {
	Cause Cause `json:"cause"`
	// Object is "Kind name" or "Kind namespace/name". It is empty for the explained object.
	Object string `json:"object,omitempty"`
	// Code is the name of a driver's error code. It is empty if there is none.
	Code string `json:"code,omitempty"`
	// Text is a sentence without trailing period.
	Text string `json:"text"`
	// Since is when the state began. It is zero if that is unknown.
	Since time.Time `json:"since,omitzero"`
	// Remedy is advice on what to do. The report's Advice contains it, too.
	Remedy string `json:"remedy,omitempty"`
	// Statement is the template of the text and the remedy.
	Statement Statement `json:"-"`
}

// String returns the finding as a clause that is complete without context.
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

// Step is something that happens next.
type Step struct {
	Text string `json:"text"`
	// At is the time. It is zero if the step depends on an event.
	At time.Time `json:"at,omitzero"`
	// Earliest reports whether the step can happen later than At, because time in which no manager is running, or
	// an API server does not respond, does not count.
	Earliest bool `json:"earliest,omitempty"`
}

// Event is a summary of an event.
type Event struct {
	At time.Time `json:"at"`
	// Type is Normal or Warning.
	Type string `json:"type"`
	// Object has the same format as in Finding.
	Object string `json:"object"`
	Reason string `json:"reason"`
	Text   string `json:"text"`
	// Count is how often the event occurred. It is at least 1.
	Count int32 `json:"count"`
}

// Identity identifies a Machine, set or deployment. Unknown fields are empty.
type Identity struct {
	Phase      string `json:"phase,omitempty"`
	ProviderID string `json:"providerID,omitempty"`
	Node       string `json:"node,omitempty"`
	Class      string `json:"class,omitempty"`
	// ClassReason is the reason why a Machine's class is not its first choice: NoCapacity or ZoneSpread.
	ClassReason string `json:"classReason,omitempty"`
	Set         string `json:"set,omitempty"`
	// SetReady is how many Machines of the set are ready, for example "2 of 3".
	SetReady   string `json:"setReady,omitempty"`
	Deployment string `json:"deployment,omitempty"`
}

// Counts contains numbers of Machines. Machines that are being deleted are counted only in Leaving.
type Counts struct {
	Desired   int32 `json:"wanted"`
	Exist     int32 `json:"exist"`
	Ready     int32 `json:"ready"`
	Available int32 `json:"available"`
	Leaving   int32 `json:"leaving"`
	// Preserved is how many Machines exceed the desired number and exist because they are preserved. Exist includes
	// them.
	Preserved int32 `json:"preserved,omitempty"`
	// Excess is how many Machines are a reserve in excess of the replicas. Desired includes them.
	Excess int32 `json:"excess,omitempty"`
}

// Add adds other counts.
func (c *Counts) Add(of Counts) {
	c.Desired += of.Desired
	c.Exist += of.Exist
	c.Ready += of.Ready
	c.Available += of.Available
	c.Leaving += of.Leaving
	c.Preserved += of.Preserved
	c.Excess += of.Excess
}

// NoPhase represents the phase of a Machine that has no phase yet.
const NoPhase = "New"

// Pool contains the numbers of Machines of a set or deployment.
type Pool struct {
	Counts

	// Updated is how many Machines have the latest template. For a set, these are all.
	Updated int32 `json:"updated"`
	// Sets are the sets of a deployment, the oldest first: the set with the latest template, and those that have
	// Machines or desired replicas.
	Sets []Part `json:"sets,omitempty"`
}

// Part contains the numbers of Machines of one set of a deployment.
type Part struct {
	Counts

	Name     string `json:"name"`
	Revision string `json:"revision"`
	// Current reports whether the set has the latest template.
	Current bool `json:"current,omitempty"`
	// Phases counts all Machines of the set by phase. Machines that are being deleted are counted as Terminating.
	Phases map[string]int32 `json:"phases,omitempty"`
}

// Empty reports whether a set has no desired replicas, and no Machines except those that are being deleted.
func (p Part) Empty() bool { return p.Desired == 0 && p.Exist == 0 }

// Report is an explanation.
type Report struct {
	Namespace string `json:"namespace"`
	// Machine, MachineSet or MachineDeployment is the name of the explained object.
	Machine           string `json:"machine,omitempty"`
	MachineSet        string `json:"machineSet,omitempty"`
	MachineDeployment string `json:"machineDeployment,omitempty"`
	// At is the time of the report.
	At      time.Time `json:"at"`
	Verdict Verdict   `json:"verdict"`
	// Summary is a sentence with the most important finding.
	Summary string `json:"answer"`
	// Since is when the phase or the deletion started, when the object was deleted, or when a set or deployment was
	// created. It is zero if that is unknown.
	Since    time.Time `json:"since,omitzero"`
	Identity Identity  `json:"identity"`
	// Pool is nil for a Machine.
	Pool *Pool `json:"pool,omitempty"`
	// Why explains the verdict, the most important finding first.
	Why []Finding `json:"why,omitempty"`
	// Replaced explains why the Machine was deleted.
	Replaced []Finding `json:"replaced,omitempty"`
	// Next is what happens without any action of the user.
	Next []Step `json:"next,omitempty"`
	// Advice is what the user can do.
	Advice []string `json:"advice,omitempty"`
	// Console contains the last lines of the VM's console, as returned by LastLines. The guest controls their
	// content.
	Console []string `json:"console,omitempty"`
	// Events are the latest events, sorted by time.
	Events []Event `json:"events,omitempty"`
	// Unread lists what could not be read. The explanation does not use it.
	Unread []string `json:"unread,omitempty"`
}
