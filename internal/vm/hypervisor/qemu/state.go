package qemu

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qmp"
)

// Status is QEMU's name for the state of the guest. QEMU also has other values.
type Status string

const (
	// Prelaunch means that the guest was not started yet, or was reset while it was stopped.
	Prelaunch Status = "prelaunch"
	// Running means that the guest runs.
	Running Status = "running"
	// Paused means that the guest was stopped by a command.
	Paused Status = "paused"
	// StorageFailed means that QEMU has stopped the guest because a disk failed. Cont repeats the failed operation.
	StorageFailed Status = "io-error"
	// Suspended means that the guest is suspended.
	Suspended Status = "suspended"
	// Broken means that the guest cannot continue.
	Broken Status = "internal-error"
	// Leaving means that the guest is stopped for a migration.
	Leaving Status = "finish-migrate"
	// Left means that QEMU has sent the guest to another QEMU. Cont continues it here.
	Left Status = "postmigrate"
)

// State is the state of the guest and its reason.
type State struct {
	Status Status
	// Failure is the reason why QEMU stopped the guest. It is set only with StorageFailed.
	Failure StorageFailure
}

// StorageFailure describes the failure of a disk that stopped the guest.
type StorageFailure struct {
	// Operation is "read" or "write".
	Operation string `json:"operation"`
	// Reason is a message for users.
	Reason string `json:"reason"`
	// NoSpace reports whether the storage is full.
	NoSpace bool `json:"nospace"`
}

// observer keeps the information from QEMU's events.
type observer struct {
	// changed receives a value after an event that may change the state.
	changed chan struct{}
	// moved receives a value after an event of a migration or of the copy of a disk.
	moved chan struct{}
	// shutdown is the reason in the last SHUTDOWN event. It is read once there are no more events.
	shutdown string

	mu      sync.Mutex
	failure StorageFailure
}

func newObserver() observer {
	return observer{changed: make(chan struct{}, 1), moved: make(chan struct{}, 1)}
}

// observe is called for each event, in order.
func (o *observer) observe(event qmp.Event) {
	switch event.Name {
	case "SHUTDOWN":
		var data struct {
			Reason string `json:"reason"`
		}
		if json.Unmarshal(event.Data, &data) == nil {
			o.shutdown = data.Reason
		}
	case "BLOCK_IO_ERROR":
		var data struct {
			StorageFailure
			Action string `json:"action"`
		}
		if json.Unmarshal(event.Data, &data) == nil && data.Action == "stop" {
			o.mu.Lock()
			o.failure = data.StorageFailure
			o.mu.Unlock()
		}
	case "STOP", "RESUME", "RESET", "SUSPEND", "WAKEUP":
		wake(o.changed)
	case "MIGRATION", "JOB_STATUS_CHANGE":
		wake(o.moved)
	}
}

func wake(waiting chan<- struct{}) {
	select {
	case waiting <- struct{}{}:
	default: // a notification is already pending
	}
}

// Changed receives a value when State may have changed, or when the connection to QEMU is lost. It supports only
// one receiver.
func (p *Process) Changed() <-chan struct{} { return p.events.changed }

// State queries QEMU for the state of the guest.
func (p *Process) State(ctx context.Context) (State, error) {
	var response struct {
		Status Status `json:"status"`
	}
	if err := p.monitor.Execute(ctx, "query-status", nil, &response); err != nil {
		return State{}, err
	}
	state := State{Status: response.Status}
	if state.Status == Paused && p.held.Load() {
		state.Status = Leaving
	}
	if state.Status == StorageFailed {
		// The event arrived before this response.
		p.events.mu.Lock()
		state.Failure = p.events.failure
		p.events.mu.Unlock()
	}
	return state, nil
}
