package sim

import "time"

// Method names a method of the driver in faults and in the journal.
type Method string

// The methods of the driver, without PlaceMachine, which needs no cloud.
const (
	CreateMachine      Method = "CreateMachine"
	DeleteMachine      Method = "DeleteMachine"
	GetMachineStatus   Method = "GetMachineStatus"
	ListMachines       Method = "ListMachines"
	InitializeMachine  Method = "InitializeMachine"
	GetVolumeIDs       Method = "GetVolumeIDs"
	ListFailureDomains Method = "ListFailureDomains"
	UpdateMachine      Method = "UpdateMachine"

	GenerateMachineClassForMigration Method = "GenerateMachineClassForMigration"
)

// Effect is an effect on a VM.
type Effect string

// The effects. A VM changes when its effect is recorded.
const (
	// Created means that CreateMachine created a VM.
	Created Effect = "created"
	// Adopted means that CreateMachine found a VM and returned it.
	Adopted Effect = "adopted"
	// Added means that Cloud.Add created a VM.
	Added Effect = "added"
	// Updated means that UpdateMachine changed a VM.
	Updated Effect = "updated"
	// Deleted means that DeleteMachine removed a VM.
	Deleted Effect = "deleted"
	// Vanished means that Cloud.Vanish removed a VM.
	Vanished Effect = "vanished"
)

// Entry is an entry of the journal: either a completed call (Method and Code are set) or an effect on a VM (Effect
// and ProviderID are set).
type Entry struct {
	// Time of the entry.
	Time time.Time `json:"time"`
	// PID is the ID of the process that wrote the entry.
	PID int `json:"pid"`
	// Machine is "namespace/name". It is empty for ListMachines, GetVolumeIDs, ListFailureDomains and
	// GenerateMachineClassForMigration.
	Machine string `json:"machine,omitempty"`
	// Method that was called.
	Method Method `json:"method,omitempty"`
	// Code is the name of the code that the call returned, even if the response was lost.
	Code string `json:"code,omitempty"`
	// Effect on a VM.
	Effect Effect `json:"effect,omitempty"`
	// ProviderID of the VM.
	ProviderID string `json:"providerID,omitempty"`
}

// History summarizes the entries of one machine.
type History struct {
	// ProviderIDs of all VMs of the machine, in order of creation.
	ProviderIDs []string
	// MostAtOnce is the highest number of VMs of the machine that existed at the same time.
	MostAtOnce int
	// Left is the number of VMs of the machine after the last entry.
	Left int
	// Calls is the number of completed calls by method.
	Calls map[Method]int
}

// Histories returns the history of each machine in a journal, by "namespace/name".
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

// effectOn returns the journal entry for an effect.
func effectOn(v VM, effect Effect) Entry {
	return Entry{Machine: v.key(), Effect: effect, ProviderID: v.ProviderID}
}
