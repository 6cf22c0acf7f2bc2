package sim

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/millwright-dev/millwright/driver/codes"
)

// Method names a method of the driver in faults and in the journal.
type Method string

// The methods of the driver, but for PlaceMachine, which asks nobody.
const (
	CreateMachine      Method = "CreateMachine"
	DeleteMachine      Method = "DeleteMachine"
	GetMachineStatus   Method = "GetMachineStatus"
	ListMachines       Method = "ListMachines"
	InitializeMachine  Method = "InitializeMachine"
	GetVolumeIDs       Method = "GetVolumeIDs"
	ListFailureDomains Method = "ListFailureDomains"
)

// Effect is what happened to a VM.
type Effect string

// The effects. They are written to the journal before they happen, while the cloud
// is locked: an effect in the journal may be missing in reality, if the process was
// killed in between, but never the reverse.
const (
	// Created: a VM was made by CreateMachine.
	Created Effect = "created"
	// Adopted: CreateMachine found the VM and answered with it.
	Adopted Effect = "adopted"
	// Added: a VM was made by Cloud.Add.
	Added Effect = "added"
	// Deleted: a VM went because of DeleteMachine.
	Deleted Effect = "deleted"
	// Vanished: a VM went because of Cloud.Vanish.
	Vanished Effect = "vanished"
)

// Entry is a line of the journal. Either Method and Code are set, when a call was
// answered, or Effect and ProviderID, when something happened to a VM.
type Entry struct {
	// Time of the entry.
	Time time.Time `json:"time"`
	// PID is the process that wrote it.
	PID int `json:"pid"`
	// Machine is "namespace/name". Empty for ListMachines, GetVolumeIDs and
	// ListFailureDomains.
	Machine string `json:"machine,omitempty"`
	// Method that was called.
	Method Method `json:"method,omitempty"`
	// Code is the name of the code with which the call was answered, lost answers
	// included.
	Code string `json:"code,omitempty"`
	// Effect on a VM.
	Effect Effect `json:"effect,omitempty"`
	// ProviderID of that VM.
	ProviderID string `json:"providerID,omitempty"`
}

// History is what became of the VMs of one machine.
type History struct {
	// ProviderIDs of all VMs that it ever had, in order of their creation.
	ProviderIDs []string
	// MostAtOnce is the highest number of its VMs that existed at one time.
	MostAtOnce int
	// Left is the number of its VMs that exist after the last entry.
	Left int
	// Calls counts the calls for it that were answered, by method.
	Calls map[Method]int
}

// Histories reads a journal and returns the history of each machine in it, by
// "namespace/name".
func Histories(entries []Entry) map[string]History {
	alive := map[string]map[string]bool{}
	seen := map[string]bool{}
	all := map[string]History{}
	for _, e := range entries {
		if e.Machine == "" {
			continue
		}
		h := all[e.Machine]
		if e.Method != "" {
			if h.Calls == nil {
				h.Calls = map[Method]int{}
			}
			h.Calls[e.Method]++
		}
		if alive[e.Machine] == nil {
			alive[e.Machine] = map[string]bool{}
		}
		switch e.Effect {
		case Created, Adopted, Added:
			if !seen[e.ProviderID] {
				seen[e.ProviderID] = true
				h.ProviderIDs = append(h.ProviderIDs, e.ProviderID)
			}
			alive[e.Machine][e.ProviderID] = true
		case Deleted, Vanished:
			delete(alive[e.Machine], e.ProviderID)
		}
		h.Left = len(alive[e.Machine])
		h.MostAtOnce = max(h.MostAtOnce, h.Left)
		all[e.Machine] = h
	}
	return all
}

// answered is the entry for a call that was answered.
func answered(method Method, machine string, code codes.Code) Entry {
	return Entry{Machine: machine, Method: method, Code: code.String()}
}

// happened is the entry for an effect.
func happened(effect Effect, v VM) Entry {
	return Entry{Machine: v.key(), Effect: effect, ProviderID: v.ProviderID}
}

// decodeJournal reads entries, one JSON object per line. A last line that is cut off
// is left out: its writer was killed.
func decodeJournal(data []byte) ([]Entry, error) {
	var entries []Entry
	for line := range bytes.Lines(data) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}
