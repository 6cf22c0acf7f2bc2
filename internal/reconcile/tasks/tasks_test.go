package tasks_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

func TestRunner_WaitsForLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, lose := context.WithCancel(t.Context())
		runner := tasks.New(2)
		var ran atomic.Int32
		for range 5 {
			if !runner.Go(func(context.Context) { ran.Add(1) }) {
				t.Fatal("a task was refused before leadership")
			}
		}
		synctest.Wait()
		if ran.Load() != 0 {
			t.Fatalf("%d tasks ran without leadership", ran.Load())
		}
		done := make(chan error)
		go func() { done <- runner.Start(ctx) }()
		synctest.Wait()
		if ran.Load() != 5 {
			t.Fatalf("%d of 5 tasks ran", ran.Load())
		}
		lose()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if runner.Go(func(context.Context) { t.Error("a task ran after leadership") }) {
			t.Fatal("a task was accepted after leadership")
		}
	})
}

// TestRunner_SuspendedTasksBeginLater checks that no task begins while the Runner is suspended. All begin after that if
// leadership was kept, and none if it was lost.
func TestRunner_SuspendedTasksBeginLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, lose := context.WithCancel(t.Context())
		runner := tasks.New(2)
		var suspended atomic.Bool
		suspended.Store(true)
		runner.Suspended = suspended.Load
		done := make(chan error)
		go func() { done <- runner.Start(ctx) }()
		var ran atomic.Int32
		begin := func() {
			for range 5 {
				runner.Go(func(context.Context) { ran.Add(1) })
			}
			time.Sleep(time.Minute)
		}
		begin()
		if ran.Load() != 0 {
			t.Errorf("%d tasks ran while the Runner was suspended", ran.Load())
		}
		suspended.Store(false)
		time.Sleep(time.Second)
		if ran.Load() != 5 {
			t.Errorf("%d of 5 tasks ran", ran.Load())
		}
		suspended.Store(true)
		begin()
		lose()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if ran.Load() != 5 {
			t.Errorf("%d tasks ran after leadership was lost", ran.Load()-5)
		}
	})
}

func TestRunner_LimitsConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, lose := context.WithCancel(t.Context())
		runner := tasks.New(3)
		done := make(chan error)
		go func() { done <- runner.Start(ctx) }()
		release := make(chan struct{})
		var running, most atomic.Int32
		for range 10 {
			runner.Go(func(context.Context) {
				most.Store(max(most.Load(), running.Add(1)))
				<-release
				running.Add(-1)
			})
		}
		synctest.Wait()
		if running.Load() != 3 || runner.Idle() {
			t.Fatalf("%d tasks run, idle %v; want 3, false", running.Load(), runner.Idle())
		}
		close(release)
		synctest.Wait()
		if most.Load() != 3 || !runner.Idle() {
			t.Fatalf("at most %d tasks ran, idle %v; want 3, true", most.Load(), runner.Idle())
		}
		lose()
		<-done
	})
}

func TestRunner_StopCancelsAndAwaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, lose := context.WithCancel(t.Context())
		runner := tasks.New(1)
		done := make(chan error, 1)
		go func() { done <- runner.Start(ctx) }()
		cleanedUp := make(chan struct{})
		runner.Go(func(ctx context.Context) {
			<-ctx.Done()
			<-cleanedUp
		})
		synctest.Wait()
		runner.Go(func(context.Context) { t.Error("a waiting task ran after leadership") })
		synctest.Wait()
		lose()
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("Start returned while a task was running")
		default:
		}
		if runner.Idle() {
			t.Fatal("idle while a task is running")
		}
		close(cleanedUp)
		if err := <-done; err != nil || !runner.Idle() {
			t.Fatalf("Start: %v, idle %v", err, runner.Idle())
		}
	})
}

// TestRunner_ReportsPanics checks that a panic is passed on if that is desired, and that its slot is free afterwards.
func TestRunner_ReportsPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		runner := tasks.New(1)
		var value any
		runner.Panicked = func(v any) { value = v }
		ended := make(chan error, 1)
		go func() { ended <- runner.Start(ctx) }()
		runner.Go(func(context.Context) { panic("bug") })
		synctest.Wait()
		if value != "bug" || !runner.Idle() {
			t.Errorf("value %v, idle %t", value, runner.Idle())
		}
		ran := false
		runner.Go(func(context.Context) { ran = true })
		synctest.Wait()
		if !ran {
			t.Error("no task runs after a panic")
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
