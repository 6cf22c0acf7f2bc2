package machineset

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

var phases = []v1alpha1.MachinePhase{v1alpha1.MachinePending, v1alpha1.MachineUnknown, v1alpha1.MachineRunning, v1alpha1.MachineFailed}

var request = ctrl.Request{NamespacedName: client.ObjectKey{Namespace: fixture.Namespace, Name: pool}}

// errLost is an answer that did not arrive.
var errLost = errors.New("connection reset by peer")

// trial is a set and its controller under adverse conditions.
type trial struct {
	*server
	controller *Controller
	// trouble is what happens to every other write of a pass: its answer is "lost", it
	// is "lost but done", or "refused". Empty is none.
	trouble string
	// nth counts the creations of a pass. Deletions come in any order, so for them the
	// Machine decides, or no story could be told twice.
	nth      int
	troubled map[string]bool
	// surplus is how many Machines that did not fail the pass may yet delete.
	surplus int
	// broken is what was seen that must not be. It is kept, since writes happen in
	// goroutines, which cannot end the test.
	broken string
}

func newTrial(t *rapid.T) *trial {
	objects := []client.Object{newSet(rapid.Int32Range(0, 5).Draw(t, "replicas"))}
	for _, m := range machines(rapid.IntRange(0, 5).Draw(t, "machines")) {
		objects = append(objects, m)
	}
	tr := &trial{server: newServer(objects...)}
	if rapid.Bool().Draw(t, "overshoot") {
		tr.overshoot = &Overshoot{Up: 2, Down: 1}
	}
	tr.controller = tr.newController()
	tr.answer, tr.happens = tr.fail, tr.judge
	return tr
}

// judge checks a creation or deletion that happens. What is wanted, the controller knows only
// from the cache; what there is, it has to know.
func (tr *trial) judge(verb string, object client.Object) {
	set := tr.cachedSet()
	wanted, there := int(set.Spec.Replicas), tr.activeCount()
	switch {
	case verb == "create" && there >= wanted:
		tr.broken = fmt.Sprintf("a machine is created, though %d of %d exist", there, wanted)
	case verb == "create" && scale.Frozen(set):
		tr.broken = "a frozen set creates a machine"
	case verb == "delete":
		machine := tr.all()[object.GetName()]
		if preservation.Active(machine, noon) {
			tr.broken = "a preserved machine is deleted"
		}
		if machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed {
			return
		}
		if tr.surplus--; tr.surplus < 0 {
			tr.broken = fmt.Sprintf("a machine that did not fail is deleted, though only %d of %d exist", there, wanted)
		}
	}
}

// cachedSet is the set as the controller knows it.
func (tr *trial) cachedSet() *v1alpha1.MachineSet {
	if tr.shownSet != nil {
		return tr.shownSet
	}
	return tr.set()
}

// fail makes trouble.
func (tr *trial) fail(verb string, object client.Object) (error, bool) {
	switch verb {
	case "create":
		if tr.nth++; tr.nth%2 == 0 {
			return nil, false
		}
	case "delete":
		if !tr.troubled[object.GetName()] {
			return nil, false
		}
	default:
		return nil, false
	}
	switch tr.trouble {
	case "lost":
		return errLost, false
	case "lost but done":
		return errLost, true
	case "refused":
		return apierrors.NewTooManyRequests("later", 1), false
	}
	return nil, false
}

func (tr *trial) check(t *rapid.T) {
	if tr.broken != "" {
		t.Fatal(tr.broken)
	}
}

func (tr *trial) pass(t *rapid.T) {
	tr.trouble, tr.nth = rapid.SampledFrom([]string{"", "", "lost", "lost but done", "refused"}).Draw(t, "trouble"), 0
	tr.troubled = map[string]bool{}
	parity := rapid.IntRange(0, 1).Draw(t, "parity")
	for i, name := range slices.Sorted(maps.Keys(tr.all())) {
		tr.troubled[name] = i%2 == parity
	}
	tr.passOnce(t)
}

func (tr *trial) passOnce(t *rapid.T) {
	tr.surplus = tr.activeCount() - int(tr.cachedSet().Spec.Replicas)
	pass(t, tr.controller)
}

// showOne has the cache show one machine as it is.
func (tr *trial) showOne(t *rapid.T) {
	names := map[string]bool{}
	for name := range tr.all() {
		names[name] = true
	}
	for name := range tr.shown {
		names[name] = true
	}
	if len(names) == 0 {
		t.Skip("no machines")
	}
	tr.show(rapid.SampledFrom(slices.Sorted(maps.Keys(names))).Draw(t, "name"))
}

// vanishOne ends a deletion.
func (tr *trial) vanishOne(t *rapid.T) {
	for _, name := range slices.Sorted(maps.Keys(tr.all())) {
		if !tr.all()[name].DeletionTimestamp.IsZero() {
			tr.vanish(name)
			return
		}
	}
	t.Skip("nothing is being deleted")
}

// one is any Machine that there is.
func (tr *trial) one(t *rapid.T) *v1alpha1.Machine {
	all := tr.all()
	if len(all) == 0 {
		t.Skip("no machines")
	}
	return all[rapid.SampledFrom(slices.Sorted(maps.Keys(all))).Draw(t, "name")]
}

// changeOne gives a machine another phase, and with it another rank.
func (tr *trial) changeOne(t *rapid.T) {
	m := tr.one(t)
	m.Status.CurrentStatus.Phase = rapid.SampledFrom(phases).Draw(t, "phase")
	must(tr.live.Update(testContext, m))
}

// preserveOne is what a user does who wants to keep a machine, or not any more.
func (tr *trial) preserveOne(t *rapid.T) {
	m := tr.one(t)
	wish := rapid.SampledFrom([]string{preservation.Now, preservation.WhenFailed, "false"}).Draw(t, "wish")
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.AnnotationKeyPreserve, wish)
	must(tr.live.Update(testContext, m))
}

// freeze is what a user does who does not want more machines.
func (tr *trial) freeze(*rapid.T) {
	set := tr.set()
	frozenSet(set)
	must(tr.live.Update(testContext, set))
}

// thaw is the reverse.
func (tr *trial) thaw(*rapid.T) {
	set := tr.set()
	set.Labels = nil
	must(tr.live.Update(testContext, set))
}

// holdSet has the cache show the set as it is now, whatever happens, until the set is shown.
func (tr *trial) holdSet(*rapid.T) { tr.shownSet = tr.set() }

func (tr *trial) showSet(*rapid.T) { tr.shownSet = nil }

// restart is a new process, whose cache begins with all that there is.
func (tr *trial) restart(t *rapid.T) {
	tr.controller = tr.newController()
	tr.catchUp()
	tr.showSet(t)
}

// end is when the cache is in step and nothing goes wrong any more.
func (tr *trial) end(t *rapid.T) {
	tr.trouble = ""
	tr.thaw(t)
	tr.showSet(t)
	for range 20 {
		tr.catchUp()
		tr.passOnce(t)
	}
	tr.check(t)
	set := tr.set()
	preserved := 0
	for _, m := range tr.all() {
		if counts.Active(m) && preservation.Active(m, noon) {
			preserved++
		}
	}
	if there, wanted := tr.activeCount(), max(preserved, int(set.Spec.Replicas)); there != wanted {
		t.Fatalf("%d machines in the end, want %d", there, wanted)
	}
	if status := set.Status; status.ObservedGeneration != set.Generation || int(status.Replicas) != len(tr.all()) {
		t.Fatalf("status counts %d of %d machines at generation %d of %d", status.Replicas, len(tr.all()), status.ObservedGeneration, set.Generation)
	}
}

// TestNeverMoreNorFewerThanWanted lets a cache lag behind, show things in any order and
// lose nothing but time; Machines fail and are preserved, the set is frozen, answers get lost,
// requests are refused, and processes start anew. At no creation may there be enough Machines
// already, or the set be frozen. No preserved Machine is deleted, and a pass deletes no more of
// those that did not fail than there are too many. In the end there are as many as wanted, or as
// are preserved.
func TestNeverMoreNorFewerThanWanted(t *testing.T) {
	t.Parallel()
	tier.Check(t, func(t *rapid.T) {
		tr := newTrial(t)
		t.Repeat(map[string]func(*rapid.T){
			"":         tr.check,
			"pass":     tr.pass,
			"restart":  tr.restart,
			"scale":    func(t *rapid.T) { tr.scale(rapid.Int32Range(0, 5).Draw(t, "replicas")) },
			"show all": func(*rapid.T) { tr.catchUp() },
			"show":     tr.showOne,
			"change":   tr.changeOne,
			"preserve": tr.preserveOne,
			"freeze":   tr.freeze,
			"thaw":     tr.thaw,
			"vanish":   tr.vanishOne,
			"hold set": tr.holdSet,
			"show set": tr.showSet,
		})
		tr.end(t)
	})
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// pass is one reconcile. Trouble that the test has made is no failure.
func pass(t fataler, c *Controller) {
	t.Helper()
	_, err := c.Reconcile(ctrl.LoggerInto(testContext, ctrl.Log), request)
	if err != nil && !errors.Is(err, errLost) && !apierrors.IsTooManyRequests(err) {
		t.Fatalf("reconciling: %v", err)
	}
}

func TestManyPassesBeforeTheCacheShowsTheCreations(t *testing.T) {
	s := newServer(newSet(10))
	c := s.newController()
	for range 5 {
		pass(t, c)
	}
	if n := len(s.all()); n != 10 {
		t.Fatalf("%d machines, want 10", n)
	}
	if status := s.set().Status; status.Replicas != 10 || status.ObservedGeneration != 1 {
		t.Errorf("status counts %d machines, want 10 although the cache shows none", status.Replicas)
	}
	for _, name := range slices.Sorted(maps.Keys(s.all())) {
		s.show(name)
		pass(t, c)
	}
	if n := len(s.all()); n != 10 {
		t.Fatalf("%d machines, want 10", n)
	}
	if n := s.count("patch status"); n != 1 {
		t.Errorf("the status was written %d times, want once: nothing changed", n)
	}
}

// TestStatusSaysNothingWhileTheCacheLags: a count from a cache that lags would be taken
// for the truth, since it bears the set's generation.
func TestStatusSaysNothingWhileTheCacheLags(t *testing.T) {
	s := newServer(newSet(3), machine("a"), machine("b"), machine("c"))
	c := s.newController()
	pass(t, c)
	s.scale(1)
	pass(t, c)
	before := s.set().Status
	if before.ObservedGeneration != 2 || before.Replicas != 3 || before.AvailableReplicas != 1 {
		t.Fatalf("after the deletions: %+v", before)
	}
	pass(t, c) // the cache shows all three as they were
	if after := s.set().Status; after.AvailableReplicas != 1 {
		t.Errorf("%d machines count as available, of which two are being deleted", after.AvailableReplicas)
	}
	s.scale(0)
	pass(t, c)
	if after := s.set().Status; after.ObservedGeneration != 2 {
		t.Error("a generation counts as observed, for which nothing was counted")
	}
	s.catchUp()
	pass(t, c)
	if after := s.set().Status; after.ObservedGeneration != 3 || after.AvailableReplicas != 0 || after.Replicas != 3 {
		t.Errorf("after the cache caught up: %+v", after)
	}
}

// TestARestartCostsNoList: a new process begins with a cache that is newer than all that was written
// before.
func TestARestartCostsNoList(t *testing.T) {
	s := newServer(newSet(3), machine("a"), machine("b"), machine("c"))
	for range 2 {
		c := s.newController()
		for range 4 {
			pass(t, c)
		}
		if s.lists != 0 {
			t.Fatalf("%d lists of machines", s.lists)
		}
	}
}

// TestLostAnswer: if nobody knows whether a write has happened, the API server is asked
// before the next one. If it said no, it need not be asked.
func TestLostAnswer(t *testing.T) {
	forbidden := apierrors.NewForbidden(resource, "", errLost)
	for _, test := range []struct {
		err   error
		lists int
	}{
		{errLost, 1},
		{apierrors.NewTimeoutError("slow", 1), 1},
		{apierrors.NewServerTimeout(resource, "create", 1), 1},
		{apierrors.NewInternalError(errLost), 1},
		{apierrors.NewServiceUnavailable("down"), 1},
		{forbidden, 0},
		{apierrors.NewTooManyRequests("later", 1), 0},
		{apierrors.NewInvalid(kind, "", nil), 0},
		{apierrors.NewAlreadyExists(resource, "x"), 0},
	} {
		for _, verb := range []string{"create", "delete"} {
			t.Run(fmt.Sprintf("%s %v", verb, test.err), func(t *testing.T) {
				replicas := map[string]int32{"create": 2, "delete": 0}[verb]
				s := newServer(newSet(replicas), machine("a"))
				s.answer = func(asked string, _ client.Object) (error, bool) {
					if asked == verb {
						return test.err, false
					}
					return nil, false
				}
				c := s.newController()
				for range 2 {
					if _, err := c.Reconcile(t.Context(), request); !errors.Is(err, test.err) {
						t.Fatalf("got the error %v", err)
					}
				}
				if s.lists != test.lists {
					t.Errorf("%d lists from the API server, want %d", s.lists, test.lists)
				}
			})
		}
	}
}

// TestMachinesOfOthersAreNotCompared: after a write of unknown outcome, the cache of one set is
// compared with what the API server has of that set, not with all that its selector matches.
func TestMachinesOfOthersAreNotCompared(t *testing.T) {
	other := machine("others", func(m *v1alpha1.Machine) { m.OwnerReferences[0].UID = "uid-of-other" })
	s := newServer(newSet(1), machine("a"), other, machine("relabelled", unlabelled))
	c := s.newController()
	c.memory.Of(request.NamespacedName).machines.Doubt()
	pass(t, c)
	if set := s.set(); set.Status.ObservedGeneration != set.Generation {
		t.Errorf("the set is not counted: %+v", set.Status)
	}
}

// TestADeletedSetIsNotLetGoAfterALostAnswer: as long as the API server has a Machine of it that
// the cache lacks, whatever its labels.
func TestADeletedSetIsNotLetGoAfterALostAnswer(t *testing.T) {
	s := newServer(newSet(1, heldBy(v1alpha1.FinalizerMCM)), machine("relabelled", unlabelled))
	c := s.newController()
	c.memory.Of(request.NamespacedName).machines.Doubt()
	must(s.live.Delete(t.Context(), s.set()))
	s.shown = map[string]*v1alpha1.Machine{}
	pass(t, c)
	if !slices.Contains(s.set().Finalizers, v1alpha1.FinalizerMCM) {
		t.Fatal("the set is let go, though it has a machine")
	}
	s.vanishNow("relabelled")
	pass(t, c)
	if !s.setIsGone() {
		t.Error("the set is not let go, though it has no machine")
	}
}
