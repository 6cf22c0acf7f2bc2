package manager

import (
	"context"
	"errors"
	"testing"

	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
)

// collecting is a manager that collects its runnables.
type collecting struct {
	ctrl.Manager
	added []ctrlmanager.Runnable
}

// Add implements ctrl.Manager.
func (c *collecting) Add(runnable ctrlmanager.Runnable) error {
	c.added = append(c.added, runnable)
	return nil
}

// TestContained_PanicIsAnError checks that a panic of a runnable becomes an error with its stack, and that runnables keep
// whether they need leader election.
func TestContained_PanicIsAnError(t *testing.T) {
	inner := &collecting{}
	containing := &contained{Manager: inner}
	for _, runnable := range []ctrlmanager.Runnable{
		ctrlmanager.RunnableFunc(func(context.Context) error { panic("bug") }),
		standby(func(context.Context) error { return context.Canceled }),
	} {
		if err := containing.Add(runnable); err != nil {
			t.Fatal(err)
		}
	}
	panicked, ok := errors.AsType[*PanicError](inner.added[0].Start(t.Context()))
	if !ok || panicked.Value != "bug" || len(panicked.Stack) == 0 {
		t.Errorf("error %v", panicked)
	}
	if err := inner.added[1].Start(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	for i, want := range []bool{true, false} {
		if got := inner.added[i].(ctrlmanager.LeaderElectionRunnable).NeedLeaderElection(); got != want {
			t.Errorf("runnable %d needs leader election: %t", i, got)
		}
	}
	containing.running.Wait()
}
