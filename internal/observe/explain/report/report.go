// Package report is what an explanation says: findings with their causes, what happens next,
// and what can be done.
package report

import (
	"strings"
	"time"
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
	// Remedy is the advice against it, which the report has among the others; empty if there
	// is none.
	Remedy string `json:"remedy,omitempty"`
}

// String is a finding in a clause that stands by itself.
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
	// Earliest tells that it may be later than At: time in which no manager works, or an
	// API server is away, does not count.
	Earliest bool `json:"earliest,omitempty"`
}

// Event is an event in short.
type Event struct {
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
	Events []Event `json:"events,omitempty"`
	// Unread says what could not be read: the explanation does without.
	Unread []string `json:"unread,omitempty"`
}
