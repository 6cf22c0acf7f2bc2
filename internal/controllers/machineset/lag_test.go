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

// errLost is the error if a response is lost.
var errLost = errors.New("connection reset by peer")

// trial is a set and its controller under adverse conditions.
type trial struct {
	*server
	controller *Controller
	// trouble is what happens to every other write of a pass: its response is "lost", it is "lost but done", or it
	// is "refused". Empty means no problem.
	trouble string
	// nth counts the creations of a pass. The order of deletions is not fixed, so for them the Machine decides.
	// Otherwise a run could not be repeated.
	nth      int
	troubled map[string]bool
	// surplus is the number of Machines that the pass may still delete although they did not fail.
	surplus int
	// broken is a violation that was observed. It is stored because writes happen in goroutines, which cannot stop
	// the test.
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
	tr.respond, tr.happens = tr.fail, tr.judge
	return tr
}

// judge checks a creation or deletion before it happens. The controller knows the desired number only from the
// cache, but must know the actual number.
func (tr *trial) judge(verb string, object client.Object) {
	set := tr.cachedSet()
	desired, exist := int(set.Spec.Replicas), tr.activeCount()
	switch {
	case verb == "create" && exist >= desired:
		tr.broken = fmt.Sprintf("a machine was created although %d of %d exist", exist, desired)
	case verb == "create" && scale.Frozen(set):
		tr.broken = "a frozen set created a machine"
	case verb == "delete":
		machine := tr.all()[object.GetName()]
		if preservation.Active(machine, noon) {
			tr.broken = "a preserved machine was deleted"
		}
		if machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed {
			return
		}
		if tr.surplus--; tr.surplus < 0 {
			tr.broken = fmt.Sprintf("a machine that did not fail was deleted although only %d of %d exist", exist, desired)
		}
	}
}

// cachedSet returns the set as the controller sees it.
func (tr *trial) cachedSet() *v1alpha1.MachineSet {
	if tr.shownSet != nil {
		return tr.shownSet
	}
	return tr.set()
}

// fail makes writes fail according to trouble.
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

// showOne updates one Machine in the cache.
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

// vanishOne completes a deletion.
func (tr *trial) vanishOne(t *rapid.T) {
	for _, name := range slices.Sorted(maps.Keys(tr.all())) {
		if !tr.all()[name].DeletionTimestamp.IsZero() {
			tr.vanish(name)
			return
		}
	}
	t.Skip("nothing is being deleted")
}

// one returns a random Machine.
func (tr *trial) one(t *rapid.T) *v1alpha1.Machine {
	all := tr.all()
	if len(all) == 0 {
		t.Skip("no machines")
	}
	return all[rapid.SampledFrom(slices.Sorted(maps.Keys(all))).Draw(t, "name")]
}

// changeOne changes the phase of a Machine, and with it its rank for deletion.
func (tr *trial) changeOne(t *rapid.T) {
	m := tr.one(t)
	m.Status.CurrentStatus.Phase = rapid.SampledFrom(phases).Draw(t, "phase")
	must(tr.live.Update(testContext, m))
}

// preserveOne starts or stops the preservation of a Machine like a user.
func (tr *trial) preserveOne(t *rapid.T) {
	m := tr.one(t)
	value := rapid.SampledFrom([]string{preservation.Now, preservation.WhenFailed, "false"}).Draw(t, "preserve value")
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.AnnotationKeyPreserve, value)
	must(tr.live.Update(testContext, m))
}

// freeze freezes the set like a user.
func (tr *trial) freeze(*rapid.T) {
	set := tr.set()
	frozenSet(set)
	must(tr.live.Update(testContext, set))
}

// thaw unfreezes the set like a user.
func (tr *trial) thaw(*rapid.T) {
	set := tr.set()
	set.Labels = nil
	must(tr.live.Update(testContext, set))
}

// holdSet keeps the current set in the cache until showSet.
func (tr *trial) holdSet(*rapid.T) { tr.shownSet = tr.set() }

func (tr *trial) showSet(*rapid.T) { tr.shownSet = nil }

// restart starts a new process with a current cache.
func (tr *trial) restart(t *rapid.T) {
	tr.controller = tr.newController()
	tr.catchUp()
	tr.showSet(t)
}

// end updates the cache, stops all problems, and checks the final state.
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
	if exist, desired := tr.activeCount(), max(preserved, int(set.Spec.Replicas)); exist != desired {
		t.Fatalf("%d machines after settling, want %d", exist, desired)
	}
	if status := set.Status; status.ObservedGeneration != set.Generation || int(status.Replicas) != len(tr.all()) {
		t.Fatalf("the status counts %d of %d machines, with generation %d of %d", status.Replicas, len(tr.all()), status.ObservedGeneration, set.Generation)
	}
}

// TestMachineSet_ReplicasUnderFaults runs a set with a stale cache that shows changes in any order, while Machines
// fail and are preserved, the set is frozen, responses are lost, requests are refused, and processes restart. No
// Machine may be created if there are enough or the set is frozen. No preserved Machine may be deleted, and a pass
// may delete no more healthy Machines than there are too many. After settling, the number of Machines is the
// desired number, or that of the preserved Machines.
func TestMachineSet_ReplicasUnderFaults(t *testing.T) {
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

// pass runs one reconcile. Errors that the test causes are ignored.
func pass(t fataler, c *Controller) {
	t.Helper()
	_, err := c.Reconcile(ctrl.LoggerInto(testContext, ctrl.Log), request)
	if err != nil && !errors.Is(err, errLost) && !apierrors.IsTooManyRequests(err) {
		t.Fatalf("reconciling: %v", err)
	}
}

func TestMachineSet_StaleCacheCausesNoDuplicates(t *testing.T) {
	s := newServer(newSet(10))
	c := s.newController()
	for range 5 {
		pass(t, c)
	}
	if n := len(s.all()); n != 10 {
		t.Fatalf("%d machines, want 10", n)
	}
	if status := s.set().Status; status.Replicas != 10 || status.ObservedGeneration != 1 {
		t.Errorf("the status counts %d machines, want 10 although the cache contains none", status.Replicas)
	}
	for _, name := range slices.Sorted(maps.Keys(s.all())) {
		s.show(name)
		pass(t, c)
	}
	if n := len(s.all()); n != 10 {
		t.Fatalf("%d machines, want 10", n)
	}
	if n := s.count("patch status"); n != 1 {
		t.Errorf("%d writes of the status, want one", n)
	}
}

// TestMachineSetStatus_WaitsForCurrentCache checks that a pass with a stale cache does not update the numbers of the
// status. They would count as current because of the observed generation.
func TestMachineSetStatus_WaitsForCurrentCache(t *testing.T) {
	s := newServer(newSet(3), machine("a"), machine("b"), machine("c"))
	c := s.newController()
	pass(t, c)
	s.scale(1)
	pass(t, c)
	before := s.set().Status
	if before.ObservedGeneration != 2 || before.Replicas != 3 || before.AvailableReplicas != 1 {
		t.Fatalf("after the deletions: %+v", before)
	}
	pass(t, c) // the cache still contains all three unchanged
	if after := s.set().Status; after.AvailableReplicas != 1 {
		t.Errorf("%d machines count as available although two are being deleted", after.AvailableReplicas)
	}
	s.scale(0)
	pass(t, c)
	if after := s.set().Status; after.ObservedGeneration != 2 {
		t.Error("a generation was observed without counting its machines")
	}
	s.catchUp()
	pass(t, c)
	if after := s.set().Status; after.ObservedGeneration != 3 || after.AvailableReplicas != 0 || after.Replicas != 3 {
		t.Errorf("after the cache caught up: %+v", after)
	}
}

// TestMachineSet_RestartNeedsNoList checks that a new process needs no list from the API server, since its cache contains
// all previous writes.
func TestMachineSet_RestartNeedsNoList(t *testing.T) {
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

// TestMachineSet_LostResponseCausesRead checks that the API server is read before the next write if the outcome of a write is unknown,
// but not if the write was refused.
func TestMachineSet_LostResponseCausesRead(t *testing.T) {
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
				s.respond = func(requested string, _ client.Object) (error, bool) {
					if requested == verb {
						return test.err, false
					}
					return nil, false
				}
				c := s.newController()
				for range 2 {
					if _, err := c.Reconcile(t.Context(), request); !errors.Is(err, test.err) {
						t.Fatalf("error %v", err)
					}
				}
				if s.lists != test.lists {
					t.Errorf("%d lists from the API server, want %d", s.lists, test.lists)
				}
			})
		}
	}
}

// TestMachineSet_ComparesOnlyOwnMachines checks that after a write with an unknown outcome, the cached Machines of a
// set are compared with the set's Machines in the API server only, not with all Machines that its selector
// matches.
func TestMachineSet_ComparesOnlyOwnMachines(t *testing.T) {
	other := machine("others", func(m *v1alpha1.Machine) { m.OwnerReferences[0].UID = "uid-of-other" })
	s := newServer(newSet(1), machine("a"), other, machine("relabelled", unlabelled))
	c := s.newController()
	c.memory.Of(request.NamespacedName).machines.Uncertain()
	pass(t, c)
	if set := s.set(); set.Status.ObservedGeneration != set.Generation {
		t.Errorf("the numbers were not updated: %+v", set.Status)
	}
}

// TestMachineSet_LostResponseKeepsFinalizer checks that the finalizer remains while the API server has a Machine
// of the set that the cache lacks, whatever its labels are.
func TestMachineSet_LostResponseKeepsFinalizer(t *testing.T) {
	s := newServer(newSet(1, heldBy(v1alpha1.FinalizerMCM)), machine("relabelled", unlabelled))
	c := s.newController()
	c.memory.Of(request.NamespacedName).machines.Uncertain()
	must(s.live.Delete(t.Context(), s.set()))
	s.shown = map[string]*v1alpha1.Machine{}
	pass(t, c)
	if !slices.Contains(s.set().Finalizers, v1alpha1.FinalizerMCM) {
		t.Fatal("the finalizer was removed although the set has a machine")
	}
	s.vanishNow("relabelled")
	pass(t, c)
	if !s.setIsGone() {
		t.Error("the finalizer was not removed although the set has no machine")
	}
}
