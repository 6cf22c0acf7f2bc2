package machine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/outage"
)

// mate returns a Machine of a pool in a phase.
func mate(name, pool string, phase v1alpha1.MachinePhase) v1alpha1.Machine {
	m := *newMachine("shoot", time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	m.Name, m.UID = name, types.UID(name)
	if pool != "" {
		m.Labels = map[string]string{v1alpha1.LabelKeyName: pool}
	}
	m.Status.CurrentStatus.Phase = phase
	return m
}

// pool creates Machines that have been unhealthy for too long.
func (h *harness) pool(name string, size int) []string {
	h.Helper()
	var names []string
	for i := range size {
		machine := fmt.Sprintf("%s-%d", name, i)
		names = append(names, machine)
		h.declare(func(m *v1alpha1.Machine) {
			m.Name, m.UID = machine, types.UID(machine)
			inPhase(v1alpha1.MachineUnknown)(m)
			m.Labels[v1alpha1.LabelKeyName] = name
		})
	}
	return names
}

// failed returns the names of the Machines that are Failed.
func (h *harness) failed(names ...string) []string {
	h.Helper()
	var failed []string
	for _, h.Key.Name = range names {
		if h.machine().Status.CurrentStatus.Phase == v1alpha1.MachineFailed {
			failed = append(failed, h.Key.Name)
		}
	}
	return failed
}

func (h *harness) passOver(names ...string) {
	h.Helper()
	for _, h.Key.Name = range names {
		h.Pass()
	}
}

// TestReplacement_OneMachineAtATime checks that if all nodes of a pool fail, one Machine is replaced at a time, that other
// pools are independent of it, and that the delayed Machines report this once.
func TestReplacement_OneMachineAtATime(t *testing.T) {
	h := newHarness(t)
	a, b := h.pool("a", 4), h.pool("b", 2)
	h.passOver(a...)
	h.Clock.Step(healthTimeout)
	h.passOver(a...)
	h.passOver(b...)
	h.passOver(a...)
	if got := h.failed(a...); len(got) != 1 {
		t.Fatalf("Failed Machines of pool a: %v, want one", got)
	}
	if got := h.failed(b...); len(got) != 1 {
		t.Errorf("Failed Machines of pool b: %v, want one", got)
	}
	first := h.failed(a...)[0]
	h.Key.Name = a[3]
	wantStatus(t, h.machine(), statusFields{v1alpha1.MachineUnknown, v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, `other machines of "a" are being replaced`})
	if got := h.Pass().RequeueAfter; got != replacementRetry {
		t.Errorf("the next pass is due in %v", got)
	}
	events := h.takeEvents()
	delayed := 0
	for _, event := range events {
		if strings.Contains(event, reasonDelayed) {
			delayed++
		}
	}
	if delayed != 4 { // three of a, one of b
		t.Errorf("%d events about delays, want 4: %q", delayed, events)
	}

	// The replacement of the first Machine is Pending, and later cannot be created.
	h.Key.Name = first
	change(h, h.machine(), func(m *v1alpha1.Machine) { m.Finalizers = nil })
	h.remove(h.machine())
	h.declare(func(m *v1alpha1.Machine) {
		m.Name, m.UID = "a-new", "a-new"
		inPhase(v1alpha1.MachinePending)(m)
		m.Labels[v1alpha1.LabelKeyName] = "a"
	})
	rest := make([]string, 0, len(a))
	for _, name := range a {
		if name != first {
			rest = append(rest, name)
		}
	}
	h.passOver(first, "a-new") // their events trigger these passes
	h.passOver(rest...)
	if got := h.failed(rest...); len(got) != 0 {
		t.Fatalf("Failed Machines while the replacement is Pending: %v", got)
	}
	h.Key.Name = "a-new"
	successor := h.machine()
	successor.Status.CurrentStatus.Phase = v1alpha1.MachineCrashLoopBackOff
	if err := h.control.Status().Update(t.Context(), successor); err != nil {
		t.Fatal(err)
	}
	h.passOver("a-new")
	h.passOver(rest...)
	if got := h.failed(rest...); len(got) != 1 {
		t.Errorf("Failed Machines: %v, want one, since a replacement that cannot be created does not count", got)
	}
}

// TestReplacement_LimitIsNumberOrPercentage checks that the limit may be a number or a percentage.
func TestReplacement_LimitIsNumberOrPercentage(t *testing.T) {
	for name, limit := range map[string]intstr.IntOrString{"number": intstr.FromInt32(3), "percentage": intstr.FromString("30%")} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.controller.Health.MaxReplacements = limit
			names := h.pool("a", 10)
			h.passOver(names...)
			h.Clock.Step(healthTimeout)
			h.passOver(names...)
			h.passOver(names...)
			if got := h.failed(names...); len(got) != 3 {
				t.Errorf("Failed Machines: %v, want 3", got)
			}
		})
	}
}

// TestReplacement_LimitHoldsForConcurrentWorkers checks the limit with many concurrent workers and a cache that does not contain
// their writes.
func TestReplacement_LimitHoldsForConcurrentWorkers(t *testing.T) {
	h := newHarness(t)
	h.controller.Health.MaxReplacements = intstr.FromInt32(2)
	names := h.pool("a", 20)
	var machines []*v1alpha1.Machine
	for _, h.Key.Name = range names {
		machines = append(machines, h.machine())
	}
	var workers sync.WaitGroup
	granted := make(chan string, len(machines)*2)
	for range 2 {
		for _, machine := range machines {
			workers.Go(func() {
				verdict, err := h.controller.health.mayReplace(t.Context(), machine)
				if err != nil {
					t.Error(err)
				}
				if verdict.Allowed() {
					granted <- machine.Name
				}
			})
		}
	}
	workers.Wait()
	close(granted)
	distinct := map[string]bool{}
	for name := range granted {
		distinct[name] = true
	}
	if len(distinct) != 2 {
		t.Fatalf("%d Machines may be replaced, want 2", len(distinct))
	}
	// The limit allows another Machine after one was released.
	for name := range distinct {
		h.controller.replacements.Release(types.NamespacedName{Namespace: h.Key.Namespace, Name: name})
	}
	if verdict, err := h.controller.health.mayReplace(t.Context(), machines[0]); !verdict.Allowed() || err != nil {
		t.Errorf("verdict %+v, err %v after the release", verdict, err)
	}
}

// liveReads counts the reads that go to the API server instead of the cache.
type liveReads struct {
	client.Client
	count *int
}

func (r liveReads) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if _, live := object.(*unstructured.Unstructured); live && key.Name != outage.ProbeName {
		*r.count++
	}
	return r.Client.Get(ctx, key, object, options...)
}

// TestReplacement_DelayCausesNoRequests checks that Machines whose replacement is delayed cause no requests to
// the API server.
func TestReplacement_DelayCausesNoRequests(t *testing.T) {
	h := newHarness(t)
	reads := 0
	h.controller.Target = targetView{h.target, liveReads{h.controller.Target.Client(), &reads}}
	a := h.pool("a", 4)
	h.passOver(a...)
	h.Clock.Step(healthTimeout)
	h.passOver(a...)
	if reads != 1 {
		t.Errorf("%d requests for one replacement", reads)
	}
	for range 10 {
		h.Clock.Step(replacementRetry)
		h.passOver(a[1:]...)
	}
	if reads != 1 {
		t.Errorf("%d requests for delayed Machines", reads-1)
	}
}

// TestReplacement_SlotIsReleased checks that a Machine whose node turns out to be healthy or cannot be read does not count
// toward the limit.
func TestReplacement_SlotIsReleased(t *testing.T) {
	for name, client := range map[string]func(h *harness) client.Client{
		"well": func(h *harness) client.Client {
			well := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{ready}}}
			return liveNode{h.controller.Target.Client(), well, nil}
		},
		"unreadable": func(h *harness) client.Client { return liveNode{h.controller.Target.Client(), nil, errAway} },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			a := h.pool("a", 2)
			h.passOver(a...)
			h.Clock.Step(healthTimeout)
			usual := h.controller.Target
			h.Key.Name = a[0]
			h.controller.Target = targetView{h.target, client(h)}
			_, _ = h.controller.Reconcile(t.Context(), h.Request()) // a failed pass is retried
			h.controller.Target = usual
			h.passOver(a[1])
			if got := h.failed(a...); len(got) != 1 || got[0] != a[1] {
				t.Errorf("Failed Machines: %v, want %s", got, a[1])
			}
		})
	}
}

// liveNode returns a node for reads that go to the API server.
type liveNode struct {
	client.Client
	node *corev1.Node
	err  error
}

func (l liveNode) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	read, live := object.(*unstructured.Unstructured)
	if !live || key.Name == outage.ProbeName {
		return l.Client.Get(ctx, key, object, options...)
	}
	if l.err != nil {
		return l.err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(l.node)
	read.Object = content
	return err
}
