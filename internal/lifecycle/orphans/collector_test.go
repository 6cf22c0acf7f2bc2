package orphans

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

func TestCollector_RemovesOrphanAfterGracePeriod(t *testing.T) {
	h := newHarness(t, "a")
	h.fleet(t, "a", 2)
	lost := h.vm("a", "lost")
	h.pass(t, 0)
	h.pass(t, period-time.Second) // it was triggered
	if !h.has(lost) {
		t.Fatal("removed before the grace period ended")
	}
	if got := h.value(t, "millwright_orphan_vms"); got != 1 {
		t.Errorf("%v orphans are reported, want 1", got)
	}
	h.pass(t, time.Second)
	if diff := cmp.Diff([]string{"a-0", "a-1"}, h.left()); diff != "" {
		t.Errorf("VMs: want - got +\n%s", diff)
	}
	want := []string{
		"a OrphansFound: found orphaned VMs, which are removed after 15m0s unless a machine owns them: " + lost + " (machine lost does not exist)",
		"a OrphanRemoved: Removed orphaned VM " + lost + ": machine lost does not exist",
	}
	if diff := cmp.Diff(want, h.events.lines); diff != "" {
		t.Errorf("events: want - got +\n%s", diff)
	}
	if orphans, removed := h.value(t, "millwright_orphan_vms"), h.value(t, "millwright_orphan_vms_removed_total"); orphans != 0 || removed != 1 {
		t.Errorf("metrics: %v orphans, %v removed", orphans, removed)
	}
	h.pass(t, period)
	if len(h.events.lines) != 2 {
		t.Errorf("more events: %q", h.events.lines[2:])
	}
}

// TestCollector_RestartDelaysRemoval checks that a restart, which loses the recorded sightings, only delays a removal.
func TestCollector_RestartDelaysRemoval(t *testing.T) {
	h := newHarness(t, "a")
	lost := h.vm("a", "lost")
	h.pass(t, 0)
	h.restart(Options{})
	h.pass(t, period)
	if !h.has(lost) {
		t.Fatal("the VM was removed when it was first seen")
	}
	h.pass(t, period)
	if h.has(lost) {
		t.Error("the VM was not removed")
	}
}

func TestCollector_OwnerRestartsGracePeriod(t *testing.T) {
	h := newHarness(t, "a")
	lost := h.vm("a", "lost")
	h.pass(t, 0)
	owner := machine("a", "lost", lost)
	h.put(t, owner)
	h.pass(t, period/2)
	if err := errors.Join(h.cache.Delete(t.Context(), owner.DeepCopy()), h.server.Delete(t.Context(), owner.DeepCopy())); err != nil {
		t.Fatal(err)
	}
	h.pass(t, period/2)
	if !h.has(lost) {
		t.Fatal("the VM was removed although it had an owner since it was first seen")
	}
	h.pass(t, period)
	if h.has(lost) {
		t.Error("the VM was not removed")
	}
}

// TestCollector_FailingClassDoesNotBlockOthers checks that a class whose VMs cannot be listed does not affect other classes,
// and that earlier sightings of its VMs are kept.
func TestCollector_FailingClassDoesNotBlockOthers(t *testing.T) {
	h := newHarness(t, "a", "b", "c")
	for _, class := range []string{"a", "b", "c"} {
		h.vm(class, "lost-"+class)
	}
	h.pass(t, 0)
	h.lists["b"] = status.Error(codes.Unavailable, "away")
	h.pass(t, period)
	if diff := cmp.Diff([]string{"lost-b"}, h.left()); diff != "" {
		t.Errorf("VMs: want - got +\n%s", diff)
	}
	if got := h.value(t, "millwright_orphan_vms"); got != 1 {
		t.Errorf("%v orphans are reported, want the one of the class whose VMs cannot be listed", got)
	}
	h.pass(t, period)
	if n := h.events.count("b OrphansNotLookedFor: "); n != 1 {
		t.Errorf("%d events report that VMs cannot be listed, want 1", n)
	}
	delete(h.lists, "b")
	h.pass(t, time.Second)
	if left := h.left(); len(left) != 0 {
		t.Errorf("left: %q, although it was first seen before the failure", left)
	}
}

func TestCollector_SkipsClassWithoutSecret(t *testing.T) {
	h := newHarness(t, "a")
	h.missing = "secret default/cloud does not exist"
	lost := h.vm("a", "lost")
	for range 3 {
		h.pass(t, period)
	}
	want := []string{"a OrphansNotLookedFor: cannot look for orphaned VMs: secret default/cloud does not exist"}
	if diff := cmp.Diff(want, h.events.lines); diff != "" || !h.has(lost) {
		t.Errorf("the VM exists: %t; events: want - got +\n%s", h.has(lost), diff)
	}
}

func TestCollector_ReportsMissingListOnce(t *testing.T) {
	h := newHarness(t, "a")
	h.lists["a"] = status.Error(codes.Unimplemented, "no")
	for range 3 {
		h.pass(t, period)
	}
	want := []string{"a OrphansNotLookedFor: cannot look for orphaned VMs: the driver cannot list its VMs"}
	if diff := cmp.Diff(want, h.events.lines); diff != "" {
		t.Errorf("events: want - got +\n%s", diff)
	}
}

// TestCollector_KeepsVMsWithChangedIDs is a regression test for gardener/machine-controller-manager#657: a driver
// changed the format of the IDs of all VMs, and every VM looked like an orphan.
func TestCollector_KeepsVMsWithChangedIDs(t *testing.T) {
	for name, rename := range map[string]string{"only the IDs": "", "the names of their machines too": "node-of-"} {
		for _, size := range []int{1, 3, 50} {
			h := newHarness(t, "a")
			h.fleet(t, "a", size)
			before := h.left()
			for _, vm := range h.driver.VMs() {
				h.driver.Remove(vm.ProviderID)
			}
			for _, m := range before {
				h.vm("a", rename+m)
			}
			for range 4 {
				h.pass(t, period)
			}
			if left := h.left(); len(left) != size {
				t.Errorf("%s of %d VMs changed, and %d are left", name, size, len(left))
			}
			if reported := h.events.count("a OrphansKept: ") == 1; reported != (rename != "") {
				t.Errorf("%s of %d VMs changed; events: %q", name, size, h.events.lines)
			}
		}
	}
}

// TestCollector_KeepsNewVM is a regression test for
// gardener/machine-controller-manager-provider-aws#127.
func TestCollector_KeepsNewVM(t *testing.T) {
	for reason, test := range map[string]struct {
		change func(*v1alpha1.Machine)
	}{
		"its ID is not stored yet":      {func(m *v1alpha1.Machine) { m.Spec.ProviderID = "" }},
		"its machine is new":            {func(m *v1alpha1.Machine) { m.Status.CurrentStatus.Phase = "" }},
		"its creation is being retried": {func(m *v1alpha1.Machine) { m.Status.CurrentStatus.Phase = v1alpha1.MachineCrashLoopBackOff }},
	} {
		t.Run(reason, func(t *testing.T) {
			h := newHarness(t, "a")
			id, other := h.vm("a", "new"), h.vm("a", "new")
			m := machine("a", "new", other)
			test.change(m)
			h.put(t, m)
			for range 3 {
				h.pass(t, period)
			}
			if !h.has(id) || !h.has(other) {
				t.Errorf("left: %q", h.left())
			}
		})
	}
	t.Run("it and its machine are created between the two lists", func(t *testing.T) {
		h := newHarness(t, "a")
		h.pass(t, 0)
		h.listed = func() { h.fleet(t, "a", 1); h.listed = nil }
		h.pass(t, period)
		h.pass(t, period)
		if len(h.left()) != 1 || len(h.events.lines) != 0 {
			t.Errorf("left: %q, events: %q", h.left(), h.events.lines)
		}
	})
}

func TestCollector_RemovesSecondVMOfMachine(t *testing.T) {
	h := newHarness(t, "a")
	first, second := h.vm("a", "twin"), h.vm("a", "twin")
	h.put(t, machine("a", "twin", second))
	h.pass(t, 0)
	h.pass(t, period)
	if h.has(first) || !h.has(second) {
		t.Errorf("the first VM exists: %t; the second, which belongs to the machine, exists: %t", h.has(first), h.has(second))
	}
}

// TestCollector_KeepsLastVMOfMachine: the VM with the stored ID no longer exists, so the remaining VM may belong to
// the Machine.
func TestCollector_KeepsLastVMOfMachine(t *testing.T) {
	h := newHarness(t, "a")
	only := h.vm("a", "m")
	h.put(t, machine("a", "m", "sim:///default/m/9-gone"))
	h.fleet(t, "a", 3)
	h.pass(t, 0)
	h.pass(t, period)
	if !h.has(only) {
		t.Error("the VM was removed")
	}
}

// TestCollector_KeepsVMAfterEditedID: if the ID of a Machine was changed to that of another VM, the VM that was created
// for the Machine may still be in use.
func TestCollector_KeepsVMAfterEditedID(t *testing.T) {
	h := newHarness(t, "a")
	own, others := h.vm("a", "edited"), h.vm("a", "other")
	h.put(t, machine("a", "edited", others))
	h.put(t, machine("a", "other", others))
	h.pass(t, 0)
	h.pass(t, period)
	if !h.has(own) || !h.has(others) {
		t.Errorf("left: %q, want both", h.left())
	}
}

// TestCollector_KeepsVMsWithoutNameOrID: a driver that lists such VMs would delete by name alone, and therefore also the VM
// that the Machine uses.
func TestCollector_KeepsVMsWithoutNameOrID(t *testing.T) {
	h := newHarness(t, "a")
	h.fleet(t, "a", 3)
	h.driver.OnList(func(_ context.Context, _ *driver.ListMachinesRequest, do func() (*driver.ListMachinesResponse, error)) (*driver.ListMachinesResponse, error) {
		response, err := do()
		response.MachineList[""], response.MachineList["sim:///unnamed"] = "a-0", ""
		return response, err
	})
	deleted := 0
	h.deletes = func(*driver.DeleteMachineRequest) error { deleted++; return nil }
	h.pass(t, 0)
	h.pass(t, period)
	if deleted > 0 || len(h.left()) != 3 {
		t.Errorf("%d calls to delete, left: %q", deleted, h.left())
	}
	want := []string{"a VMsWithoutName: the driver lists VMs without a name or provider ID, which are never removed as orphans: 2 (" +
		`name "a-0" without provider ID, provider ID "sim:///unnamed" without name)`}
	if diff := cmp.Diff(want, h.events.lines); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestCollector_ReportOfVMsWithoutNameIsShort checks that the event is short however many VMs the driver lists, and that it is sent
// again when the problem reappears.
func TestCollector_ReportOfVMsWithoutNameIsShort(t *testing.T) {
	h := newHarness(t, "a")
	lies := map[string]string{}
	h.driver.OnList(func(context.Context, *driver.ListMachinesRequest, func() (*driver.ListMachinesResponse, error)) (*driver.ListMachinesResponse, error) {
		return &driver.ListMachinesResponse{MachineList: maps.Clone(lies)}, nil
	})
	for i := range 1000 {
		lies[fmt.Sprintf("sim:///%04d\x1b[2J", i)+strings.Repeat("x", 10_000)] = ""
	}
	h.pass(t, 0)
	h.pass(t, period)
	if len(h.events.lines) != 1 || len(h.events.lines[0]) > 1024 || strings.Contains(h.events.lines[0], "\x1b") || !strings.Contains(h.events.lines[0], "1000 (") {
		t.Errorf("%d events: %.2000q", len(h.events.lines), h.events.lines)
	}
	kept := lies
	lies = map[string]string{}
	h.pass(t, period)
	lies = kept
	h.pass(t, period)
	if h.events.count("a VMsWithoutName") != 2 {
		t.Errorf("%d events", len(h.events.lines))
	}
}

func TestCollector_LimitRequiresConfirmation(t *testing.T) {
	h := newHarness(t, "a")
	h.fleet(t, "a", 10)
	for _, name := range []string{"v", "w", "x", "y", "z"} {
		h.vm("a", name)
	}
	for range 4 {
		h.pass(t, period)
	}
	if n := len(h.left()); n != 15 {
		t.Fatalf("%d VMs are left, want all 15", n)
	}
	const sentence = "a OrphansKept: orphaned VMs are kept: 5 of 15 VMs are orphans, more than may be removed at a time; " +
		"to remove them, annotate the class with safety.millwright.dev/remove-orphans-up-to=5. Orphaned VMs: "
	if h.events.count(sentence) != 1 || h.events.count("a OrphansKept") != 1 {
		t.Errorf("events: %q", h.events.lines)
	}
	for _, step := range []struct {
		value string
		left  int
	}{{"4", 15}, {"all", 15}, {"5", 10}} {
		class := &v1alpha1.MachineClass{}
		class.Namespace, class.Name = namespace, "a"
		if err := h.cache.Delete(t.Context(), class); err != nil {
			t.Fatal(err)
		}
		class.ResourceVersion, class.Annotations = "", map[string]string{AnnotationOrphans: step.value}
		if err := h.cache.Create(t.Context(), class); err != nil {
			t.Fatal(err)
		}
		h.pass(t, period)
		if n := len(h.left()); n != step.left {
			t.Errorf("with %q, %d VMs are left, want %d", step.value, n, step.left)
		}
	}
	if got := h.value(t, "millwright_orphan_vms_removed_total"); got != 5 {
		t.Errorf("%v are counted as removed", got)
	}
}

// TestCollector_LimitCountsOrphansNotYetDue: the limit counts all orphans, because a large
// number of them probably indicates an error.
func TestCollector_LimitCountsOrphansNotYetDue(t *testing.T) {
	h := newHarness(t, "a")
	h.vm("a", "first")
	h.pass(t, 0)
	for _, name := range []string{"x", "y", "z"} {
		h.vm("a", name)
	}
	h.pass(t, period)
	if n := len(h.left()); n != 4 {
		t.Errorf("%d VMs are left, want 4", n)
	}
}

func TestCollector_Modes(t *testing.T) {
	for mode, want := range map[Mode]struct {
		left   int
		events string
	}{
		"":     {0, "a OrphansFound, a OrphanRemoved"},
		Delete: {0, "a OrphansFound, a OrphanRemoved"},
		Report: {1, "a OrphansFound, a OrphansKept"},
	} {
		h := newHarness(t, "a")
		h.restart(Options{Mode: mode})
		h.vm("a", "lost")
		for range 4 {
			h.pass(t, period)
		}
		var reasons []string
		for _, line := range h.events.lines {
			reason, _, _ := strings.Cut(line, ":")
			reasons = append(reasons, reason)
		}
		if got := strings.Join(reasons, ", "); len(h.left()) != want.left || got != want.events {
			t.Errorf("mode %q: %d VMs are left; events: %s", mode, len(h.left()), got)
		}
	}
}

// TestCollector_ChecksOwnersOnAPIServer checks that an owner that only the API server returns, because the cache is
// behind, prevents a removal.
func TestCollector_ChecksOwnersOnAPIServer(t *testing.T) {
	for reason, name := range map[string]string{"a machine of that name": "m", "a machine of another name": "other"} {
		h := newHarness(t, "a")
		id := h.vm("a", "m")
		if err := h.server.Create(t.Context(), machine("a", name, id)); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			h.pass(t, period)
		}
		if !h.has(id) || h.events.count("a OrphanRemoved") > 0 {
			t.Errorf("the VM of %s, which the cache does not show, was removed", reason)
		}
	}
}

// TestCollector_KeepsVMsWithoutAPIServer checks that orphans are removed only once the API server can be
// reached again.
func TestCollector_KeepsVMsWithoutAPIServer(t *testing.T) {
	h := newHarness(t, "a")
	lost := h.vm("a", "lost")
	h.away = errors.New("connection refused")
	for range 3 {
		h.pass(t, period)
	}
	if !h.has(lost) {
		t.Fatal("the VM was removed")
	}
	h.away = nil
	h.pass(t, time.Second)
	if h.has(lost) {
		t.Error("the VM was not removed")
	}
}

// TestCollector_KeepsVMOfMachineCreatedDuringPass checks that a Machine created during other removals, which may
// take long, keeps its VM.
func TestCollector_KeepsVMOfMachineCreatedDuringPass(t *testing.T) {
	h := newHarness(t, "a")
	h.vm("a", "x")
	h.vm("a", "y")
	h.deletes = func(req *driver.DeleteMachineRequest) error {
		if req.Machine.Name == "x" {
			return h.server.Create(t.Context(), machine("a", "y", ""))
		}
		return nil
	}
	h.pass(t, 0)
	h.pass(t, period)
	if diff := cmp.Diff([]string{"y"}, h.left()); diff != "" {
		t.Errorf("VMs: want - got +\n%s", diff)
	}
}

func TestCollector_RetriesFailedRemoval(t *testing.T) {
	h := newHarness(t, "a")
	h.vm("a", "x")
	h.vm("a", "y")
	fails := true
	h.deletes = func(req *driver.DeleteMachineRequest) error {
		if fails && req.Machine.Name == "x" {
			return status.Error(codes.Internal, "no")
		}
		return nil
	}
	h.pass(t, 0)
	h.pass(t, period)
	if diff := cmp.Diff([]string{"x"}, h.left()); diff != "" {
		t.Fatalf("VMs: want - got +\n%s", diff)
	}
	if orphans, removed := h.value(t, "millwright_orphan_vms"), h.value(t, "millwright_orphan_vms_removed_total"); orphans != 1 || removed != 1 {
		t.Errorf("metrics: %v orphans, %v removed", orphans, removed)
	}
	fails = false
	h.pass(t, time.Second)
	if left := h.left(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestStart checks that passes are started by the period and by triggers, and that none is made at the start.
func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "a")
		h.Collector.Clock = clock.RealClock{} // synctest advances it when all goroutines are blocked
		var lists atomic.Int32
		h.listed = func() { lists.Add(1) }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- h.Start(ctx) }()
		expect := func(when string, want int32) {
			t.Helper()
			synctest.Wait()
			if n := lists.Load(); n != want {
				t.Errorf("%s: %d passes, want %d", when, n, want)
			}
		}
		expect("at the start", 0)
		h.Trigger()
		expect("triggered", 1)
		time.Sleep(period)
		expect("after a period", 2)
		time.Sleep(2 * period)
		expect("after three", 4)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Start returned %v", err)
		}
	})
}

func TestCollector_TriggersAreNotQueued(t *testing.T) {
	h := newHarness(t, "a")
	for range 3 {
		h.Trigger() // never blocks
	}
	<-h.trigger
	select {
	case <-h.trigger:
		t.Error("a second pass is queued")
	default:
	}
}

// TestCollector_ModeOffListsNothing checks that no VMs are ever listed.
func TestCollector_ModeOffListsNothing(t *testing.T) {
	for _, options := range []Options{{Mode: Off, Period: period}, {Period: 0}} {
		if err := New(options).Start(t.Context()); err != nil {
			t.Errorf("%+v: %v", options, err)
		}
	}
}
