package rollout_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/pool/rollout/status"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// model is a model of the environment of a deployment's plan: sets with slow controllers, machines that become
// available, fail and are deleted at any time, and an outdated cache.
type model struct {
	deployment *v1alpha1.MachineDeployment
	sets       []*modelSet
	now        time.Time
	// broken describes a violation. It is empty if there is none.
	broken string
	// gone is how many machines had failed in sets that no longer exist.
	gone int
	// strict enables a check that nothing modifies the facts of a pass.
	strict bool
	// logf logs an event.
	logf func(format string, args ...any)
}

// modelSet is a MachineSet with the state of its controller.
type modelSet struct {
	stored *v1alpha1.MachineSet
	// history are the versions of the set that the deployment's cache has not shown yet. The first one is the
	// version that it shows now.
	history  []version
	machines []*modelMachine
	// failed counts the machines that failed after they were available, or are preserved.
	failed int
	// minAvailable is how many machines must stay available according to the plans whose deletions are still
	// pending. known is how many machines in all sets had failed, as far as these plans could know.
	minAvailable int32
	known        int
	pending      bool
	// desired is the number of desired machines when the set was last scaled.
	desired int32
	// scaled reports that machines are deleted because a user scaled the deployment.
	scaled bool
}

type version struct {
	set *v1alpha1.MachineSet
	// failed is how many machines of the set had failed when the status was written.
	failed int
}

type modelMachine struct {
	phase    v1alpha1.MachinePhase
	deleting bool
	// preserved reports that the set never deletes the machine. If it was named, the set deletes no other one
	// instead.
	preserved, named bool
	// excused reports that the machine is deleted because it failed or because a user scaled the deployment. Its
	// set does not wait until it is gone.
	excused bool
}

func (m *modelMachine) available() bool { return m.phase == v1alpha1.MachineRunning && !m.deleting }

func newModel(deployment *v1alpha1.MachineDeployment) *model {
	return &model{deployment: deployment, now: fixture.Noon, logf: func(string, ...any) {}}
}

// store writes a version of a set.
func (w *model) store(s *modelSet, failed int) {
	s.history = append(s.history, version{s.stored.DeepCopy(), failed})
}

// reconcile runs a pass of the deployment's controller with the objects in its cache.
func (w *model) reconcile() {
	var shown []*v1alpha1.MachineSet
	known := w.gone
	for _, s := range w.sets {
		shown = append(shown, s.history[0].set.DeepCopy())
		known += s.history[0].failed
	}
	f := rollout.NewFacts(w.deployment, shown, w.now)
	f.Retained = map[string]int32{}
	for _, set := range shown {
		f.Retained[set.Name] = rollout.Retained(set, w.find(set.Name).objects(), w.now)
	}
	if w.strict {
		defer w.unchanged(f)()
	}
	o := rollout.Outcome{Written: map[string]*v1alpha1.MachineSet{}}
	r := rollout.New(f)
	plan := rollout.Plan(r)
	w.checkReserve(f, plan)
	for _, op := range plan {
		if op.Action == rollout.Create {
			if o.Created, o.Failure = w.create(f, op); o.Failure != nil {
				break
			}
			continue
		}
		s := w.find(op.Set.Name)
		if len(s.history) > 1 {
			return // a conflict stops the pass
		}
		was := s.stored
		s.stored = op.Next.DeepCopy()
		if op.Action == rollout.Refresh {
			last := s.history[len(s.history)-1].failed
			s.history = nil // a change of annotations does not change the generation
			w.store(s, last)
		} else {
			w.scale(s, was, op, f, known)
		}
		o.Written[op.Set.Name] = s.stored.DeepCopy()
	}
	w.deployment.Status = status.Next(r, o)
	if o.Failure == nil {
		w.deployment.Annotations = r.After(o).Annotated(w.deployment).Annotations
	}
}

// checkReserve checks that the reserve of a plan does not include machines for pods and, if the sets have
// enough replicas, is complete.
func (w *model) checkReserve(f rollout.Facts, plan []rollout.Operation) {
	after := map[string]*v1alpha1.MachineSet{}
	for _, set := range f.All() {
		after[set.Name] = set
	}
	for _, op := range plan {
		if op.Next != nil {
			after[op.Next.Name] = op.Next
		}
	}
	var asked, held int32
	for _, set := range after {
		asked, held = asked+counts.Desired(set), held+reserve.OfSet(set)
	}
	beyond, excess := max(0, asked-f.Deployment.Spec.Replicas), reserve.Excess(f.Deployment)
	if held > beyond || held < min(beyond, excess) {
		w.broken = fmt.Sprintf("%d of %d machines are in excess of %d replicas, want %d", held, asked, f.Deployment.Spec.Replicas, min(beyond, excess))
	}
}

// unchanged returns a check that the sets and the deployment of the facts have not changed. The API server
// stores later versions of the deployment as other objects.
func (w *model) unchanged(f rollout.Facts) func() {
	objects := func() (all []any) {
		for _, set := range f.All() {
			all = append(all, set.DeepCopy())
		}
		return append(all, f.Deployment.DeepCopy())
	}
	before := objects()
	w.deployment = w.deployment.DeepCopy()
	return func() {
		if diff := cmp.Diff(before, objects()); diff != "" {
			w.broken = "the facts changed: " + diff
		}
	}
}

func (w *model) find(name string) *modelSet {
	return w.sets[slices.IndexFunc(w.sets, func(s *modelSet) bool { return s.stored.Name == name })]
}

// create creates a set, unless a set with the same name is being deleted.
func (w *model) create(f rollout.Facts, op rollout.Operation) (*v1alpha1.MachineSet, error) {
	set := op.Next.DeepCopy()
	for _, s := range w.sets {
		switch {
		case s.stored.Name != set.Name:
		case s.leaves():
			return nil, rollout.ErrNameTaken
		default:
			w.broken = fmt.Sprintf("set %s is created twice", set.Name)
			return nil, rollout.ErrNameTaken
		}
	}
	set.Generation, set.CreationTimestamp = 1, metav1.NewTime(w.now)
	set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange] = fixture.Later
	s := &modelSet{stored: set, desired: reserve.Desired(f.Deployment)}
	w.store(s, 0)
	w.sets = append(w.sets, s)
	w.logf("create %s with %d: %s", w.name(s), op.Replicas, op.Reason)
	return set.DeepCopy(), nil
}

func (w *model) scale(s *modelSet, was *v1alpha1.MachineSet, op rollout.Operation, f rollout.Facts, known int) {
	w.logf("scale %s from %d to %d: %s", w.name(s), was.Spec.Replicas, op.Replicas, op.Reason)
	if op.Replicas < was.Spec.Replicas {
		s.scaled = f.Current == op.Set // a rollout never takes from that one
		// If too few machines are available as far as the plan knows, it must not take any of them. But a machine
		// that it takes may become available meanwhile. Preserved machines count as desired, even if their set
		// has more than its replicas.
		preserved := counts.Total(f.All(), func(set *v1alpha1.MachineSet) int32 { return set.Status.PreservedFailedReplicas })
		_, unavailable := rollout.Bounds(f.Deployment)
		minAvailable := int32(min(int64(reserve.Desired(f.Deployment)-unavailable)-preserved, counts.Total(f.All(), counts.Available)))
		for _, other := range w.sets {
			if other.pending { // the deployment may have fewer replicas now
				other.minAvailable = min(other.minAvailable, minAvailable)
			}
		}
		if !s.pending {
			s.minAvailable, s.known = minAvailable, known
		}
		s.minAvailable, s.known, s.pending = min(s.minAvailable, minAvailable), min(s.known, known), true
	}
	if s.desired != reserve.Desired(f.Deployment) {
		s.excuse()
	}
	s.desired = reserve.Desired(f.Deployment)
	s.stored.Generation++
	last := s.history[len(s.history)-1].failed
	s.history = nil // the controller knows its own writes
	w.store(s, last)
}

// name returns the set's class, which is more readable than a hash.
func (w *model) name(s *modelSet) string { return s.stored.Spec.Template.Spec.Class.Name }

// runSet runs a pass of the set's controller.
func (w *model) runSet(s *modelSet) {
	if s.leaves() {
		w.empty(s)
	} else {
		w.fill(s)
	}
	status := w.count(s)
	status.ObservedGeneration = s.stored.Generation
	s.pending, s.scaled = false, false
	if fmt.Sprint(status) != fmt.Sprint(s.stored.Status) {
		s.stored.Status = status
		w.store(s, s.failed)
	}
}

// empty deletes the machines of a set that is being deleted, and then the set.
func (w *model) empty(s *modelSet) {
	for _, m := range s.machines {
		m.deleting, m.excused, m.preserved = true, m.excused || m.preserved, false
	}
	if len(s.machines) == 0 {
		w.gone += s.failed
		w.sets = slices.DeleteFunc(w.sets, func(other *modelSet) bool { return other == s })
	}
}

// fill creates and deletes machines until the set has its replicas.
func (w *model) fill(s *modelSet) {
	active := slices.DeleteFunc(slices.Clone(s.machines), func(m *modelMachine) bool { return m.deleting })
	desired := int(s.stored.Spec.Replicas)
	if len(active) < desired {
		for range desired - len(active) {
			s.machines = append(s.machines, &modelMachine{phase: v1alpha1.MachinePending})
		}
	} else {
		surpluses := len(active) - desired - int(s.named())
		active = slices.DeleteFunc(active, func(m *modelMachine) bool { return m.preserved })
		slices.SortStableFunc(active, func(a, b *modelMachine) int { return usefulness(a) - usefulness(b) })
		for i, m := range active {
			surplus := i < surpluses
			if surplus || m.phase == v1alpha1.MachineFailed {
				w.remove(s, m, surplus)
			}
		}
	}
}

func usefulness(m *modelMachine) int {
	return slices.Index([]v1alpha1.MachinePhase{v1alpha1.MachineFailed, v1alpha1.MachinePending, v1alpha1.MachineRunning}, m.phase)
}

// remove deletes a machine. If too few machines remain available, it must be because of failures that no plan
// could know.
func (w *model) remove(s *modelSet, m *modelMachine, surplus bool) {
	was := m.available()
	m.deleting, m.excused = true, !surplus || s.scaled
	unforeseen := w.gone - s.known
	for _, other := range w.sets {
		unforeseen += other.failed
	}
	if minAvailable := min(s.minAvailable, w.minAvailable()); was && w.available() < int(minAvailable)-unforeseen {
		w.broken = fmt.Sprintf("a machine of %s is deleted and %d remain available, at least %d required", w.name(s), w.available(), minAvailable)
	}
}

func (w *model) count(s *modelSet) v1alpha1.MachineSetStatus {
	status := v1alpha1.MachineSetStatus{Replicas: int32(len(s.machines)), ObservedGeneration: s.stored.Status.ObservedGeneration}
	for _, m := range s.machines {
		if m.available() {
			status.AvailableReplicas++
			status.ReadyReplicas++
		}
		if m.preserved && m.phase == v1alpha1.MachineFailed {
			status.PreservedFailedReplicas++
		}
	}
	return status
}

func (w *model) available() int {
	n := 0
	for _, s := range w.sets {
		n += int(w.count(s).AvailableReplicas)
	}
	return n
}

// total returns how many machines exist.
func (w *model) total() int {
	n := 0
	for _, s := range w.sets {
		n += len(s.machines)
	}
	return n
}

// promised returns how many machines exist or will be created for the replicas of the sets, without machines
// that are deleted because they failed or because a user scaled the deployment.
func (w *model) promised() int {
	n := 0
	for _, s := range w.sets {
		active := 0
		for _, m := range s.machines {
			switch {
			case !m.deleting:
				active++
			case !m.excused:
				n++
			}
		}
		n += max(active, int(counts.Desired(s.stored)))
	}
	return n
}

// desired returns the total number of replicas of all sets.
func (w *model) desired() int32 {
	var n int32
	for _, s := range w.sets {
		n += counts.Desired(s.stored)
	}
	return n
}

// preserved returns how many machines the set will not delete.
func (s *modelSet) preserved() int32 {
	var n int32
	for _, m := range s.machines {
		if m.preserved {
			n++
		}
	}
	return n
}

// named returns how many of the preserved machines were named for deletion.
func (s *modelSet) named() int32 {
	var n int32
	for _, m := range s.machines {
		if m.preserved && m.named {
			n++
		}
	}
	return n
}

// objects returns the machines as the deployment reads them.
func (s *modelSet) objects() []*v1alpha1.Machine {
	var objects []*v1alpha1.Machine
	for _, m := range s.machines {
		object := &v1alpha1.Machine{}
		if m.deleting {
			object.DeletionTimestamp = &metav1.Time{Time: fixture.Noon}
		}
		if m.preserved {
			fixture.PreservedUntil(fixture.Noon.Add(24 * time.Hour))(object)
		}
		if m.named {
			fixture.MarkedAt(fixture.Early)(object)
		}
		objects = append(objects, object)
	}
	return objects
}

// leaves reports whether the set is being deleted.
func (s *modelSet) leaves() bool { return !s.stored.DeletionTimestamp.IsZero() }

// deleteSet deletes a set as a user. No plan could know that its machines are deleted.
func (w *model) deleteSet(s *modelSet) {
	if s.leaves() {
		return
	}
	s.failed += int(w.count(s).AvailableReplicas)
	s.stored.DeletionTimestamp = &metav1.Time{Time: w.now}
	s.stored.Generation++
	w.store(s, s.failed)
}

// scaleTo scales the deployment as a user.
func (w *model) scaleTo(replicas int32) {
	w.deployment.Generation++
	w.deployment.Spec.Replicas = replicas
	for _, s := range w.sets {
		s.excuse()
	}
}

// excuse excuses the machines that are being deleted when a user scales the deployment.
func (s *modelSet) excuse() {
	for _, m := range s.machines {
		m.excused = m.excused || m.deleting
	}
}

func (w *model) minAvailable() int32 {
	_, unavailable := rollout.Bounds(w.deployment)
	return reserve.Desired(w.deployment) - unavailable
}

// most returns how many machines may exist: those of the rollout, and preserved machines beyond the replicas of
// their set.
func (w *model) most() int {
	surge, _ := rollout.Bounds(w.deployment)
	most := reserve.Desired(w.deployment) + surge
	for _, s := range w.sets {
		is := s.stored.DeepCopy()
		is.Status.Replicas = int32(len(s.machines))
		most += rollout.Retained(is, s.objects(), w.now)
	}
	return int(most)
}

// each calls a function for all machines.
func (w *model) each(do func(*modelSet, *modelMachine)) {
	for _, s := range w.sets {
		for _, m := range slices.Clone(s.machines) {
			do(s, m)
		}
	}
}

// turn runs the next event of a machine, if there is one: it becomes available or is gone.
func (w *model) turn(s *modelSet, m *modelMachine) {
	switch {
	case m == nil:
	case m.deleting:
		s.machines = slices.DeleteFunc(s.machines, func(other *modelMachine) bool { return other == m })
	case m.phase == v1alpha1.MachinePending:
		m.phase = v1alpha1.MachineRunning
	}
}

// fail makes a machine fail, if that is possible.
func (s *modelSet) fail(m *modelMachine) {
	if m == nil || m.deleting {
		return
	}
	if m.available() {
		s.failed++
	}
	m.phase = v1alpha1.MachineFailed
}

// preserve preserves a machine, which fails if it has not. No plan could know that its set must delete another
// one instead.
func (s *modelSet) preserve(m *modelMachine) {
	if m == nil || m.deleting || m.preserved || s.leaves() {
		return
	}
	if !m.available() {
		s.failed++
	}
	s.fail(m)
	m.preserved = true
}

// hold preserves a usable machine.
func (s *modelSet) hold(m *modelMachine) {
	if m != nil && m.available() {
		m.preserved = true
		s.failed++ // its set must delete another one instead
	}
}

// controllers runs all controllers and updates the cache.
func (w *model) controllers() {
	w.reconcile()
	for _, s := range slices.Clone(w.sets) {
		w.runSet(s)
		s.history = s.history[len(s.history)-1:]
	}
}

// round runs all controllers and machines in an order that depends on the seed.
func (w *model) round(seed *rand.Rand) {
	parts := []func(){w.reconcile}
	for _, s := range w.sets {
		parts = append(parts, func() { w.runSet(s) }, func() { s.history = s.history[len(s.history)-1:] })
	}
	w.each(func(s *modelSet, m *modelMachine) { parts = append(parts, func() { w.turn(s, m) }) })
	if seed != nil {
		seed.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	}
	for _, part := range parts {
		part()
	}
	w.now = w.now.Add(time.Second)
}

// done reports whether the rollout is complete and all statuses show it.
func (w *model) done() bool {
	desired, current := int(reserve.Desired(w.deployment)), 0
	for _, s := range w.sets {
		if s.leaves() {
			return false
		}
		mine := w.current(s)
		if mine {
			current++
		}
		if !mine && len(s.machines) > int(s.preserved()) || len(s.history) > 1 {
			return false
		}
	}
	return current == 1 && w.total()-int(w.preserved()) == w.available() && w.available() == desired
}

// preserved returns how many machines are never deleted.
func (w *model) preserved() int32 {
	var n int32
	for _, s := range w.sets {
		n += s.preserved()
	}
	return n
}

// current reports whether a set has the current template.
func (w *model) current(s *modelSet) bool {
	return revision.Same(&s.stored.Spec.Template, &w.deployment.Spec.Template)
}

// settle runs rounds until the rollout is complete, and reports whether there was no violation.
func (w *model) settle(seed *rand.Rand) bool { return w.completes(seed) && w.broken == "" }

// completes runs rounds until the rollout is complete and all statuses show it.
func (w *model) completes(seed *rand.Rand) bool {
	for range 300 {
		w.round(seed)
		if w.done() {
			for range 4 {
				w.round(nil)
			}
			return w.done()
		}
	}
	return false
}

// String describes the sets by class, with their replicas and machines, in one line.
func (w *model) String() string {
	var sets []string
	for _, s := range w.sets {
		counts := map[string]int{}
		for _, m := range s.machines {
			switch {
			case m.deleting:
				counts["leaving"]++
			case m.preserved:
				counts["preserved"]++
			default:
				counts[strings.ToLower(string(m.phase))]++
			}
		}
		line := fmt.Sprintf("%s (%d desired):", w.name(s), s.stored.Spec.Replicas)
		for _, state := range []string{"running", "pending", "failed", "preserved", "leaving"} {
			if counts[state] > 0 {
				line += fmt.Sprintf(" %d %s", counts[state], state)
			}
		}
		sets = append(sets, strings.TrimSuffix(line, ":"))
	}
	return strings.Join(sets, "; ")
}
