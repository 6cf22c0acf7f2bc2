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

// mate is a Machine of a pool that is in a phase.
func mate(name, pool string, phase v1alpha1.MachinePhase) v1alpha1.Machine {
	m := *newMachine("shoot", time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	m.Name, m.UID = name, types.UID(name)
	if pool != "" {
		m.Labels = map[string]string{v1alpha1.LabelKeyName: pool}
	}
	m.Status.CurrentStatus.Phase = phase
	return m
}

// pool declares Machines that have been unhealthy for too long.
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

// failed names those of the Machines that are.
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

// TestOneAfterTheOther: of a pool whose nodes all fail, one Machine is replaced at a time;
// another pool has nothing to do with it; and those that wait say so, once.
func TestOneAfterTheOther(t *testing.T) {
	h := newHarness(t)
	a, b := h.pool("a", 4), h.pool("b", 2)
	h.passOver(a...)
	h.Clock.Step(healthTimeout)
	h.passOver(a...)
	h.passOver(b...)
	h.passOver(a...)
	if got := h.failed(a...); len(got) != 1 {
		t.Fatalf("%v of pool a are Failed, want one", got)
	}
	if got := h.failed(b...); len(got) != 1 {
		t.Errorf("%v of pool b are Failed, want one", got)
	}
	first := h.failed(a...)[0]
	h.Key.Name = a[3]
	wantStatus(t, h.machine(), want4{v1alpha1.MachineUnknown, v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, `other machines of "a" are being replaced`})
	if got := h.Pass().RequeueAfter; got != replacementRetry {
		t.Errorf("it is tried again after %v", got)
	}
	events := h.takeEvents()
	delayed := 0
	for _, event := range events {
		if strings.Contains(event, reasonDelayed) {
			delayed++
		}
	}
	if delayed != 4 { // three of a, one of b
		t.Errorf("%d events of delays, want 4: %q", delayed, events)
	}

	// The successor of the first one is on its way, then it cannot be created.
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
	h.passOver(first, "a-new") // as their events bring
	h.passOver(rest...)
	if got := h.failed(rest...); len(got) != 0 {
		t.Fatalf("%v are Failed while a successor is Pending", got)
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
		t.Errorf("%v are Failed although a successor that cannot be created blocks nobody", got)
	}
}

// TestManyAtATime: the limit may be a number or a percentage.
func TestManyAtATime(t *testing.T) {
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
				t.Errorf("%v are Failed, want 3", got)
			}
		})
	}
}

// TestLimitHoldsForManyWorkers: with a cache that shows nothing of what is written, and
// all workers at it at once.
func TestLimitHoldsForManyWorkers(t *testing.T) {
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
	// A place is free again when its Machine is well, or gone.
	for name := range distinct {
		h.controller.replacements.Release(types.NamespacedName{Namespace: h.Key.Namespace, Name: name})
	}
	if verdict, err := h.controller.health.mayReplace(t.Context(), machines[0]); !verdict.Allowed() || err != nil {
		t.Errorf("%+v, err %v, although the places are free", verdict, err)
	}
}

// liveReads counts the reads of objects that no cache answers.
type liveReads struct {
	client.Client
	count *int
}

func (r liveReads) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if _, live := object.(*unstructured.Unstructured); live && key.Name != outage.Nobody {
		*r.count++
	}
	return r.Client.Get(ctx, key, object, options...)
}

// TestWaitingForReplacementCostsNoRequests: a pool that fails as a whole does not load the
// API server with questions about those whose turn has not come.
func TestWaitingForReplacementCostsNoRequests(t *testing.T) {
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
		t.Errorf("%d requests of those that wait", reads-1)
	}
}

// TestPlaceIsGivenBack: a Machine that turns out to be well, or of which nobody can tell,
// keeps no other one from being replaced.
func TestPlaceIsGivenBack(t *testing.T) {
	for name, client := range map[string]func(h *harness) client.Client{
		"well": func(h *harness) client.Client {
			well := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{ready}}}
			return liveNode{h.controller.Target.Client(), well, nil}
		},
		"nobody can tell": func(h *harness) client.Client { return liveNode{h.controller.Target.Client(), nil, errAway} },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			a := h.pool("a", 2)
			h.passOver(a...)
			h.Clock.Step(healthTimeout)
			usual := h.controller.Target
			h.Key.Name = a[0]
			h.controller.Target = targetView{h.target, client(h)}
			_, _ = h.controller.Reconcile(t.Context(), h.Request()) // an error is tried again
			h.controller.Target = usual
			h.passOver(a[1])
			if got := h.failed(a...); len(got) != 1 || got[0] != a[1] {
				t.Errorf("%v are Failed, want %s", got, a[1])
			}
		})
	}
}

// liveNode answers for the API server itself when it is asked for a node.
type liveNode struct {
	client.Client
	node *corev1.Node
	err  error
}

func (l liveNode) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	asked, live := object.(*unstructured.Unstructured)
	if !live || key.Name == outage.Nobody {
		return l.Client.Get(ctx, key, object, options...)
	}
	if l.err != nil {
		return l.err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(l.node)
	asked.Object = content
	return err
}
