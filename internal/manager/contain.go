package manager

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"

	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
)

// PanicError is the error of a manager that stopped because of a panic. Only managers with a Seed stop; in others, a panic
// terminates the process.
type PanicError struct {
	// Value is the value of the panic.
	Value any
	// Stack is the stack of the goroutine.
	Stack []byte
}

// Error implements error.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// newPanicError returns the error for a value that a deferred function has just recovered.
func newPanicError(value any) *PanicError { return &PanicError{Value: value, Stack: debug.Stack()} }

// contained is a manager whose runnables return an error when they panic. It knows when they have returned, because
// controller-runtime does not wait for them after the leases were lost.
type contained struct {
	ctrl.Manager
	running sync.WaitGroup
}

// Add implements ctrl.Manager.
func (c *contained) Add(runnable ctrlmanager.Runnable) error {
	return c.Manager.Add(&containedRunnable{runnable, c})
}

type containedRunnable struct {
	ctrlmanager.Runnable
	of *contained
}

// Start implements manager.Runnable.
func (r *containedRunnable) Start(ctx context.Context) (err error) {
	r.of.running.Add(1)
	defer r.of.running.Done()
	defer func() {
		if value := recover(); value != nil {
			err = newPanicError(value)
		}
	}()
	return r.Runnable.Start(ctx)
}

// NeedLeaderElection implements manager.LeaderElectionRunnable. The default is that of controller-runtime.
func (r *containedRunnable) NeedLeaderElection() bool {
	elected, ok := r.Runnable.(ctrlmanager.LeaderElectionRunnable)
	return !ok || elected.NeedLeaderElection()
}
