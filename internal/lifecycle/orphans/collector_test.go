package orphans

import (
	"context"
	"errors"
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

func TestAnOrphanIsRemovedWhenItWasSeenTwiceLongEnoughApart(t *testing.T) {
	w := newWorld(t, "a")
	w.fleet(t, "a", 2)
	lost := w.vm(t, "a", "lost")
	w.pass(t, 0)
	w.pass(t, period-time.Second) // it was triggered
	if !w.has(t, lost) {
		t.Fatal("removed before the grace was over")
	}
	if got := w.value(t, "millwright_orphan_vms"); got != 1 {
		t.Errorf("%v orphans are reported, want 1", got)
	}
	w.pass(t, time.Second)
	if diff := cmp.Diff([]string{"a-0", "a-1"}, w.left(t)); diff != "" {
		t.Errorf("VMs: want - got +\n%s", diff)
	}
	want := []string{
		"a OrphansFound: nobody owns these VMs, which are removed if that stays so for 15m0s: " + lost + " (there is no machine lost)",
		"a OrphanRemoved: VM " + lost + " was removed, as nobody owns it: there is no machine lost",
	}
	if diff := cmp.Diff(want, w.events.lines); diff != "" {
		t.Errorf("events: want - got +\n%s", diff)
	}
	if orphans, removed := w.value(t, "millwright_orphan_vms"), w.value(t, "millwright_orphan_vms_removed_total"); orphans != 0 || removed != 1 {
		t.Errorf("metrics: %v orphans, %v removed", orphans, removed)
	}
	w.pass(t, period)
	if len(w.events.lines) != 2 {
		t.Errorf("more events: %q", w.events.lines[2:])
	}
}

// TestARestartOnlyDelays: sightings are lost with the process.
func TestARestartOnlyDelays(t *testing.T) {
	w := newWorld(t, "a")
	lost := w.vm(t, "a", "lost")
	w.pass(t, 0)
	w.restart(Options{})
	w.pass(t, period)
	if !w.has(t, lost) {
		t.Fatal("removed at its first sighting")
	}
	w.pass(t, period)
	if w.has(t, lost) {
		t.Error("it stays")
	}
}

func TestAnInterruptedAbsenceStartsAgain(t *testing.T) {
	w := newWorld(t, "a")
	lost := w.vm(t, "a", "lost")
	w.pass(t, 0)
	owner := machine("a", "lost", lost)
	w.put(t, owner)
	w.pass(t, period/2)
	if err := errors.Join(w.cache.Delete(t.Context(), owner.DeepCopy()), w.server.Delete(t.Context(), owner.DeepCopy())); err != nil {
		t.Fatal(err)
	}
	w.pass(t, period/2)
	if !w.has(t, lost) {
		t.Fatal("removed though it was owned since its first sighting")
	}
	w.pass(t, period)
	if w.has(t, lost) {
		t.Error("it stays")
	}
}

// TestAFailingClassStopsNoOther, and what is known of it stays known.
func TestAFailingClassStopsNoOther(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	for _, class := range []string{"a", "b", "c"} {
		w.vm(t, class, "lost-"+class)
	}
	w.pass(t, 0)
	w.driver.lists["b"] = status.Error(codes.Unavailable, "away")
	w.pass(t, period)
	if diff := cmp.Diff([]string{"lost-b"}, w.left(t)); diff != "" {
		t.Errorf("VMs: want - got +\n%s", diff)
	}
	if got := w.value(t, "millwright_orphan_vms"); got != 1 {
		t.Errorf("%v orphans are reported, want the one that nobody could look at", got)
	}
	w.pass(t, period)
	if n := w.events.count("b OrphansNotLookedFor: "); n != 1 {
		t.Errorf("it was said %d times that nobody looked, want once", n)
	}
	delete(w.driver.lists, "b")
	w.pass(t, time.Second)
	if left := w.left(t); len(left) != 0 {
		t.Errorf("left: %q, though it is known for long", left)
	}
}

func TestAClassWithoutItsSecretIsSkipped(t *testing.T) {
	w := newWorld(t, "a")
	w.missing = "secret default/cloud does not exist"
	lost := w.vm(t, "a", "lost")
	for range 3 {
		w.pass(t, period)
	}
	want := []string{"a OrphansNotLookedFor: VMs that nobody owns are not looked for: secret default/cloud does not exist"}
	if diff := cmp.Diff(want, w.events.lines); diff != "" || !w.has(t, lost) {
		t.Errorf("the VM exists: %t; events: want - got +\n%s", w.has(t, lost), diff)
	}
}

func TestADriverThatCannotListSaysSoOnce(t *testing.T) {
	w := newWorld(t, "a")
	w.driver.lists["a"] = status.Error(codes.Unimplemented, "no")
	for range 3 {
		w.pass(t, period)
	}
	want := []string{"a OrphansNotLookedFor: VMs that nobody owns are not looked for: the driver cannot list its VMs"}
	if diff := cmp.Diff(want, w.events.lines); diff != "" {
		t.Errorf("events: want - got +\n%s", diff)
	}
}

// TestChangedIDsAreNobodysFault: gardener/machine-controller-manager#657. A driver came to
// write the IDs of all VMs in another way, and every one of them seemed to be an orphan.
func TestChangedIDsAreNobodysFault(t *testing.T) {
	for name, rename := range map[string]string{"only the IDs": "", "the names of their machines, too": "node-of-"} {
		for _, size := range []int{1, 3, 50} {
			w := newWorld(t, "a")
			w.fleet(t, "a", size)
			before := w.left(t)
			if _, err := w.cloud.Vanish("*"); err != nil {
				t.Fatal(err)
			}
			for _, m := range before {
				w.vm(t, "a", rename+m)
			}
			for range 4 {
				w.pass(t, period)
			}
			if left := w.left(t); len(left) != size {
				t.Errorf("%s of %d VMs changed, and %d are left", name, size, len(left))
			}
			if said := w.events.count("a OrphansKept: ") == 1; said != (rename != "") {
				t.Errorf("%s of %d VMs changed; events: %q", name, size, w.events.lines)
			}
		}
	}
}

// TestAVMThatWasJustMadeIsNoOrphan: gardener/machine-controller-manager-provider-aws#127.
func TestAVMThatWasJustMadeIsNoOrphan(t *testing.T) {
	for reason, test := range map[string]struct {
		change func(*v1alpha1.Machine)
	}{
		"its ID is not stored yet":          {func(m *v1alpha1.Machine) { m.Spec.ProviderID = "" }},
		"its machine is new":                {func(m *v1alpha1.Machine) { m.Status.CurrentStatus.Phase = "" }},
		"its creation is being tried again": {func(m *v1alpha1.Machine) { m.Status.CurrentStatus.Phase = v1alpha1.MachineCrashLoopBackOff }},
	} {
		t.Run(reason, func(t *testing.T) {
			w := newWorld(t, "a")
			id, other := w.vm(t, "a", "new"), w.vm(t, "a", "new")
			m := machine("a", "new", other)
			test.change(m)
			w.put(t, m)
			for range 3 {
				w.pass(t, period)
			}
			if !w.has(t, id) || !w.has(t, other) {
				t.Errorf("left: %q", w.left(t))
			}
		})
	}
	t.Run("it and its machine are made between the two lists", func(t *testing.T) {
		w := newWorld(t, "a")
		w.pass(t, 0)
		w.driver.listed = func() { w.fleet(t, "a", 1); w.driver.listed = nil }
		w.pass(t, period)
		w.pass(t, period)
		if len(w.left(t)) != 1 || len(w.events.lines) != 0 {
			t.Errorf("left: %q, events: %q", w.left(t), w.events.lines)
		}
	})
}

func TestASecondVMOfALivingMachineIsAnOrphan(t *testing.T) {
	w := newWorld(t, "a")
	first, second := w.vm(t, "a", "twin"), w.vm(t, "a", "twin")
	w.put(t, machine("a", "twin", second))
	w.pass(t, 0)
	w.pass(t, period)
	if w.has(t, first) || !w.has(t, second) {
		t.Errorf("the first exists: %t, the second, which is the machine's: %t", w.has(t, first), w.has(t, second))
	}
}

// TestTheLastVMOfAMachineIsKept: its stored one is gone, so this one may be it.
func TestTheLastVMOfAMachineIsKept(t *testing.T) {
	w := newWorld(t, "a")
	only := w.vm(t, "a", "m")
	w.put(t, machine("a", "m", "sim:///default/m/9-gone"))
	w.fleet(t, "a", 3)
	w.pass(t, 0)
	w.pass(t, period)
	if !w.has(t, only) {
		t.Error("it was removed")
	}
}

// TestAnEditedIDCostsNoVM: a Machine that was pointed to the VM of another one may still
// have the VM that was made for it.
func TestAnEditedIDCostsNoVM(t *testing.T) {
	w := newWorld(t, "a")
	own, others := w.vm(t, "a", "edited"), w.vm(t, "a", "other")
	w.put(t, machine("a", "edited", others))
	w.put(t, machine("a", "other", others))
	w.pass(t, 0)
	w.pass(t, period)
	if !w.has(t, own) || !w.has(t, others) {
		t.Errorf("left: %q, want both", w.left(t))
	}
}

func TestMoreThanTheLimitAreKeptUntilSomebodyAgrees(t *testing.T) {
	w := newWorld(t, "a")
	w.fleet(t, "a", 10)
	for _, name := range []string{"v", "w", "x", "y", "z"} {
		w.vm(t, "a", name)
	}
	for range 4 {
		w.pass(t, period)
	}
	if n := len(w.left(t)); n != 15 {
		t.Fatalf("%d VMs are left, want all 15", n)
	}
	const sentence = "a OrphansKept: VMs that nobody owns are kept: 5 of 15 VMs are more than may be removed at once; " +
		"if they are to go, annotate the class with safety.millwright.dev/remove-orphans-up-to=5. They are "
	if w.events.count(sentence) != 1 || w.events.count("a OrphansKept") != 1 {
		t.Errorf("events: %q", w.events.lines)
	}
	for _, step := range []struct {
		value string
		left  int
	}{{"4", 15}, {"all", 15}, {"5", 10}} {
		class := &v1alpha1.MachineClass{}
		class.Namespace, class.Name = namespace, "a"
		if err := w.cache.Delete(t.Context(), class); err != nil {
			t.Fatal(err)
		}
		class.ResourceVersion, class.Annotations = "", map[string]string{AnnotationOrphans: step.value}
		if err := w.cache.Create(t.Context(), class); err != nil {
			t.Fatal(err)
		}
		w.pass(t, period)
		if n := len(w.left(t)); n != step.left {
			t.Errorf("with %q, %d VMs are left, want %d", step.value, n, step.left)
		}
	}
	if got := w.value(t, "millwright_orphan_vms_removed_total"); got != 5 {
		t.Errorf("%v are counted as removed", got)
	}
}

// TestOrphansThatAreNotDueYetSpeakAgainstThoseThatAre: many at once are likelier an error.
func TestOrphansThatAreNotDueYetSpeakAgainstThoseThatAre(t *testing.T) {
	w := newWorld(t, "a")
	w.vm(t, "a", "first")
	w.pass(t, 0)
	for _, name := range []string{"x", "y", "z"} {
		w.vm(t, "a", name)
	}
	w.pass(t, period)
	if n := len(w.left(t)); n != 4 {
		t.Errorf("%d VMs are left, want 4", n)
	}
}

func TestModes(t *testing.T) {
	for mode, want := range map[Mode]struct {
		left   int
		events string
	}{
		"":     {0, "a OrphansFound, a OrphanRemoved"},
		Delete: {0, "a OrphansFound, a OrphanRemoved"},
		Report: {1, "a OrphansFound, a OrphansKept"},
	} {
		w := newWorld(t, "a")
		w.restart(Options{Mode: mode})
		w.vm(t, "a", "lost")
		for range 4 {
			w.pass(t, period)
		}
		var reasons []string
		for _, line := range w.events.lines {
			reason, _, _ := strings.Cut(line, ":")
			reasons = append(reasons, reason)
		}
		if got := strings.Join(reasons, ", "); len(w.left(t)) != want.left || got != want.events {
			t.Errorf("mode %q: %d VMs are left; events: %s", mode, len(w.left(t)), got)
		}
	}
}

// TestTheAPIServerHasTheLastWord: the cache is older.
func TestTheAPIServerHasTheLastWord(t *testing.T) {
	for reason, name := range map[string]string{"a machine of that name": "m", "a machine of another name": "other"} {
		w := newWorld(t, "a")
		id := w.vm(t, "a", "m")
		if err := w.server.Create(t.Context(), machine("a", name, id)); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			w.pass(t, period)
		}
		if !w.has(t, id) || w.events.count("a OrphanRemoved") > 0 {
			t.Errorf("the VM of %s, which the cache does not show, was removed", reason)
		}
	}
}

// TestNothingIsRemovedWithoutTheAPIServer, and it is when that is back.
func TestNothingIsRemovedWithoutTheAPIServer(t *testing.T) {
	w := newWorld(t, "a")
	lost := w.vm(t, "a", "lost")
	w.away = errors.New("connection refused")
	for range 3 {
		w.pass(t, period)
	}
	if !w.has(t, lost) {
		t.Fatal("it was removed")
	}
	w.away = nil
	w.pass(t, time.Second)
	if w.has(t, lost) {
		t.Error("it stays")
	}
}

// TestAMachineThatComesWhileOthersAreRemoved: calls take long.
func TestAMachineThatComesWhileOthersAreRemoved(t *testing.T) {
	w := newWorld(t, "a")
	w.vm(t, "a", "x")
	w.vm(t, "a", "y")
	w.driver.deletes = func(req *driver.DeleteMachineRequest) error {
		if req.Machine.Name == "x" {
			return w.server.Create(t.Context(), machine("a", "y", ""))
		}
		return nil
	}
	w.pass(t, 0)
	w.pass(t, period)
	if diff := cmp.Diff([]string{"y"}, w.left(t)); diff != "" {
		t.Errorf("VMs: want - got +\n%s", diff)
	}
}

func TestARemovalThatFailsIsTriedAgain(t *testing.T) {
	w := newWorld(t, "a")
	w.vm(t, "a", "x")
	w.vm(t, "a", "y")
	fails := true
	w.driver.deletes = func(req *driver.DeleteMachineRequest) error {
		if fails && req.Machine.Name == "x" {
			return status.Error(codes.Internal, "no")
		}
		return nil
	}
	w.pass(t, 0)
	w.pass(t, period)
	if diff := cmp.Diff([]string{"x"}, w.left(t)); diff != "" {
		t.Fatalf("VMs: want - got +\n%s", diff)
	}
	if orphans, removed := w.value(t, "millwright_orphan_vms"), w.value(t, "millwright_orphan_vms_removed_total"); orphans != 1 || removed != 1 {
		t.Errorf("metrics: %v orphans, %v removed", orphans, removed)
	}
	fails = false
	w.pass(t, time.Second)
	if left := w.left(t); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestStart has passes come by time and by triggers, and none at the start.
func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		w.Collector.Clock = clock.RealClock{} // which the bubble makes go on when nobody has anything to do
		var lists atomic.Int32
		w.driver.listed = func() { lists.Add(1) }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Start(ctx) }()
		expect := func(when string, want int32) {
			t.Helper()
			synctest.Wait()
			if n := lists.Load(); n != want {
				t.Errorf("%s: %d passes, want %d", when, n, want)
			}
		}
		expect("at the start", 0)
		w.Trigger()
		expect("triggered", 1)
		time.Sleep(period)
		expect("after a period", 2)
		time.Sleep(2 * period)
		expect("after three", 4)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("it ended with %v", err)
		}
	})
}

func TestTriggersAreNotQueued(t *testing.T) {
	w := newWorld(t, "a")
	for range 3 {
		w.Trigger() // blocks never
	}
	<-w.trigger
	select {
	case <-w.trigger:
		t.Error("a second pass is asked for")
	default:
	}
}

// TestOff: nothing is ever looked for.
func TestOff(t *testing.T) {
	for _, options := range []Options{{Mode: Off, Period: period}, {Period: 0}} {
		if err := New(options).Start(t.Context()); err != nil {
			t.Errorf("%+v: %v", options, err)
		}
	}
}
