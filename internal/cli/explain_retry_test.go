package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/test/support/env"
)

// TestExplain_RetriesMatchController checks that the retry intervals that the command prints for each code are those
// of the controller.
func TestExplain_RetriesMatchController(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		failure := status.Error(code, "words")
		if code != codes.NotFound {
			t.Run("create/"+code.String(), func(t *testing.T) {
				first, last := retries(t, fake.CreateMachine, failure, func(e *instance.Engine, r instance.Request) any { return e.Ensure(r) })
				wantRetries(t, v1alpha1.MachineOperationCreate, "Cloud provider message - "+failure.Error(), code, first, last)
			})
			t.Run("delete/"+code.String(), func(t *testing.T) {
				first, last := retries(t, fake.DeleteMachine, failure, func(e *instance.Engine, r instance.Request) any { return e.Delete(r) })
				wantRetries(t, v1alpha1.MachineOperationDelete, "Cloud provider message - "+failure.Error()+". Initiate VM deletion", code, first, last)
			})
		}
	}
}

// retries returns the controller's back-off after the first and after the last failure of a method, including up
// to 10 % of jitter.
func retries(t *testing.T, method fake.Method, failure error, ask func(*instance.Engine, instance.Request) any) (first, last time.Duration) {
	t.Helper()
	const calls = 15
	d := fake.New(fake.Config{})
	d.FailWith(method, slices.Repeat([]error{failure}, calls)...)
	clock, woken := clocktesting.NewFakeClock(time.Now()), make(chan struct{}, calls)
	engine := instance.New(d, instance.Options{
		Run:  func(task func(context.Context)) bool { go task(t.Context()); return true },
		Wake: func(instance.Key) { woken <- struct{}{} }, Clock: clock,
	})
	request := instance.Request{Machine: &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "m"}}, Class: &v1alpha1.MachineClass{}, Secret: &corev1.Secret{}}
	for range calls {
		result := ask(engine, request)
		for {
			if _, pending := result.(instance.Pending); !pending {
				break
			}
			select {
			case <-woken:
				result = ask(engine, request)
			case <-time.After(env.WaitTimeout):
				t.Fatal("the engine does not wake its caller")
			}
		}
		failed, ok := result.(instance.Failed)
		if !ok {
			t.Fatalf("result %+v, want a failure", result)
		}
		last = failed.Retry
		if first == 0 {
			first = last
		}
		clock.Step(last)
	}
	return first, last
}

// wantRetries checks that the explanation reports the back-off of the engine.
func wantRetries(t *testing.T, kind v1alpha1.MachineOperationType, description string, code codes.Code, first, last time.Duration) {
	t.Helper()
	now := time.Now()
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "m", Finalizers: []string{v1alpha1.FinalizerMCM}}}
	machine.Status.CurrentStatus.Phase = v1alpha1.MachineCrashLoopBackOff
	machine.Status.LastOperation = v1alpha1.LastOperation{
		Type: kind, State: v1alpha1.MachineStateFailed, Description: description, LastUpdateTime: metav1.NewTime(now),
	}
	if kind == v1alpha1.MachineOperationDelete {
		machine.DeletionTimestamp = &metav1.Time{Time: now}
	} else {
		machine.Status.LastOperation.ErrorCode = code.String()
	}
	facts := explain.MachineFacts{Key: types.NamespacedName{Namespace: "n", Name: "m"}, Machine: machine}
	if kind == v1alpha1.MachineOperationDelete { // MCM stores no code for deletions; the event contains it
		event := corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: "Machine", Namespace: "n", Name: "m"}, Reason: "FailedDelete", LastTimestamp: metav1.NewTime(now)}
		event.Annotations = map[string]string{
			v1alpha1.EventAnnotationCause: v1alpha1.CauseDriverFailed, v1alpha1.EventAnnotationMethod: string(instance.MethodDelete),
			v1alpha1.EventAnnotationCode: code.String(), v1alpha1.EventAnnotationStep: v1alpha1.StepDeleteInstance,
		}
		facts.Events = append(facts.Events, event)
	}
	report := explain.Machine(facts, now)
	want := fmt.Sprintf("after %s, then at increasing intervals of at most %s", wait(first), wait(last))
	if wait(first) == wait(last) {
		want = "every " + wait(first)
	}
	if len(report.Next) == 0 || !strings.Contains(report.Next[0].Text, want) {
		t.Errorf("the command reports %+v, the engine waits %q", report.Next, want)
	}
}

// wait returns a back-off without the jitter.
func wait(d time.Duration) string {
	for _, known := range []time.Duration{time.Second, 5 * time.Second, time.Minute, 3 * time.Minute, 10 * time.Minute, 30 * time.Minute} {
		if d >= known && d <= known+known/10 {
			return strings.TrimSuffix(known.String(), "0s")
		}
	}
	return d.String()
}
