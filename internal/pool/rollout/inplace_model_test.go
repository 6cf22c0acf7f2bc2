package rollout_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/pool/rollout/status"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// store has the objects of one kind by name: those of the API server, or those in a cache.
type store[T any] map[string]*T

// updates is a model of in-place updates: the real planner of sets, a machine controller with an agent on each
// node, and caches of each kind that are independently out of date.
type updates struct {
	deployment *v1alpha1.MachineDeployment
	sets       store[v1alpha1.MachineSet]
	machines   store[v1alpha1.Machine]
	nodes      store[corev1.Node]
	// shown is the content of the caches.
	shown struct {
		sets     store[v1alpha1.MachineSet]
		machines store[v1alpha1.Machine]
		nodes    store[corev1.Node]
	}
	// wrote are the versions that the deployment's controller wrote to sets and nodes. counts are the versions
	// of sets that were written with a status.
	wrote, counts map[string]int
	// begun are passes of sets that have read their facts and have not written yet.
	begun map[string]scale.Facts
	// made are the Machines that a set created, and whether it deleted them.
	made    map[string]map[string]bool
	version int
	// writes counts the writes of the deployment's controller.
	writes int
	broken string
	log    []string
}

func newUpdates(deployment *v1alpha1.MachineDeployment) *updates {
	w := &updates{deployment: deployment, sets: store[v1alpha1.MachineSet]{}, machines: store[v1alpha1.Machine]{}, nodes: store[corev1.Node]{}}
	w.wrote, w.counts, w.made, w.begun = map[string]int{}, map[string]int{}, map[string]map[string]bool{}, map[string]scale.Facts{}
	w.showAll()
	return w
}

func (w *updates) logf(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *updates) breaks(format string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(format, args...)
	}
}

func versionOf(object metav1.Object) int {
	n, _ := strconv.Atoi(object.GetResourceVersion())
	return n
}

// next gives the next version to an object.
func (w *updates) next(object metav1.Object) {
	w.version++
	object.SetResourceVersion(strconv.Itoa(w.version))
}

func (w *updates) showSets() {
	w.shown.sets = store[v1alpha1.MachineSet]{}
	for name, set := range w.sets {
		w.shown.sets[name] = set.DeepCopy()
	}
}

func (w *updates) showMachines() {
	w.shown.machines = store[v1alpha1.Machine]{}
	for name, machine := range w.machines {
		w.shown.machines[name] = machine.DeepCopy()
	}
}

func (w *updates) showNodes() {
	w.shown.nodes = store[corev1.Node]{}
	for name, node := range w.nodes {
		w.shown.nodes[name] = node.DeepCopy()
	}
}

func (w *updates) showAll() {
	w.showSets()
	w.showMachines()
	w.showNodes()
}

// owned returns the Machines of a set that are in the cache.
func (w *updates) owned(set *v1alpha1.MachineSet) []*v1alpha1.Machine {
	var all []*v1alpha1.Machine
	for _, name := range slices.Sorted(maps.Keys(w.shown.machines)) {
		if metav1.IsControlledBy(w.shown.machines[name], set) {
			all = append(all, w.shown.machines[name].DeepCopy())
		}
	}
	return all
}

// facts returns the facts that the deployment's controller gathers, or nil if a cache does not show what it
// wrote.
func (w *updates) facts() *rollout.Facts {
	for name := range w.wrote {
		if w.sets[name] != nil && w.shown.sets[name] == nil {
			return nil
		}
	}
	var sets []*v1alpha1.MachineSet
	for _, name := range slices.Sorted(maps.Keys(w.shown.sets)) {
		if versionOf(w.shown.sets[name]) < w.wrote[name] {
			return nil
		}
		sets = append(sets, w.shown.sets[name].DeepCopy())
	}
	f := rollout.NewFacts(w.deployment, sets, fixture.Noon)
	machines := w.members(&f)
	if machines == nil {
		return nil
	}
	f.Machines = machines
	f.Nodes = w.nodesOf(f, machines)
	return &f
}

// members returns the Machines of all sets, or nil if the cache does not show what was written. It adds the
// retained Machines to the facts.
func (w *updates) members(f *rollout.Facts) map[string][]*v1alpha1.Machine {
	machines := map[string][]*v1alpha1.Machine{}
	f.Retained = map[string]int32{}
	for _, set := range f.All() {
		machines[set.Name] = w.owned(set)
		for _, machine := range machines[set.Name] {
			if versionOf(machine) < w.wrote["machine "+machine.Name] {
				return nil
			}
		}
		f.Retained[set.Name] = rollout.Retained(set, machines[set.Name], fixture.Noon)
	}
	return machines
}

func (w *updates) nodesOf(f rollout.Facts, machines map[string][]*v1alpha1.Machine) *rollout.Nodes {
	nodes := &rollout.Nodes{Protect: true}
	for _, set := range f.All() {
		for _, machine := range machines[set.Name] {
			node := w.shown.nodes[machine.Name]
			switch {
			case node == nil || !machine.DeletionTimestamp.IsZero():
			case versionOf(node) < w.wrote["node "+node.Name]:
				nodes.Stale = true
			case set == f.Current:
				nodes.OfCurrent = append(nodes.OfCurrent, rollout.Node{Machine: machine, Node: node})
			default:
				nodes.OfOld = append(nodes.OfOld, rollout.Node{Machine: machine, Node: node})
			}
		}
	}
	return nodes
}

// reconcile runs a pass of the deployment's controller.
func (w *updates) reconcile() {
	f := w.facts()
	if f == nil {
		return
	}
	o := rollout.Outcome{Written: map[string]*v1alpha1.MachineSet{}}
	r := rollout.New(*f)
	for _, op := range rollout.Plan(r) {
		if o.Ended && !op.StopsPass() {
			break
		}
		if !w.apply(*f, op, &o) {
			return // a conflict stops the pass
		}
		o.Ended = o.Ended || op.StopsPass()
	}
	if o.Ended {
		return
	}
	w.deployment.Status = status.Next(r, o)
	w.deployment.Annotations = r.After(o).Annotated(w.deployment).Annotations
}

func (w *updates) apply(f rollout.Facts, op rollout.Operation, o *rollout.Outcome) bool {
	w.logf("  %s %s: %s", op.Action, subject(op), op.Reason)
	w.writes++
	switch op.Action {
	case rollout.Create:
		return w.createSet(op, o)
	case rollout.Scale, rollout.Refresh:
		return w.changeSet(f, op, o)
	case rollout.PatchNodes:
		for _, change := range op.Nodes {
			w.patchNode(f, change)
		}
	case rollout.Transfer, rollout.Settle:
		stored := w.machines[op.Machine.Name]
		if stored == nil || versionOf(stored) != versionOf(op.Machine) {
			return false
		}
		stored = stored.DeepCopy()
		if op.Action == rollout.Transfer {
			inplaceupdate.Transfer(stored, op.From, op.Set)
		} else {
			inplaceupdate.Settle(stored)
		}
		w.next(stored)
		w.machines[stored.Name], w.wrote["machine "+stored.Name] = stored, w.version
	case rollout.Prune:
		delete(w.sets, op.Set.Name)
	default:
		w.breaks("unexpected operation %s", op.Action)
	}
	return true
}

func subject(op rollout.Operation) string {
	switch {
	case op.Machine != nil:
		return op.Machine.Name
	case op.Set != nil:
		return fmt.Sprintf("%s to %d", op.Set.Spec.Template.Spec.Class.Name, op.Replicas)
	}
	return fmt.Sprintf("%d (%d nodes)", op.Replicas, len(op.Nodes))
}

func (w *updates) createSet(op rollout.Operation, o *rollout.Outcome) bool {
	if w.sets[op.Next.Name] != nil {
		return false // the cache does not show it yet, or it is being deleted
	}
	set := op.Next.DeepCopy()
	set.Generation, set.CreationTimestamp = 1, metav1.NewTime(fixture.Noon)
	w.next(set)
	set.UID = types.UID("uid-" + set.ResourceVersion)
	w.sets[set.Name], w.wrote[set.Name] = set, w.version
	o.Created = set.DeepCopy()
	return true
}

func (w *updates) changeSet(f rollout.Facts, op rollout.Operation, o *rollout.Outcome) bool {
	stored := w.sets[op.Set.Name]
	if stored == nil || versionOf(stored) != versionOf(op.Set) {
		return false
	}
	w.checkSize(f, op)
	next := op.Next.DeepCopy()
	if next.Spec.Replicas != stored.Spec.Replicas {
		next.Generation++
	}
	w.next(next)
	w.sets[next.Name], w.wrote[next.Name] = next, w.version
	o.Written[next.Name] = next.DeepCopy()
	return true
}

// checkSize checks that a set is not scaled so that it must delete a Machine during its update while Machines
// are desired. It must wait until the update is complete. A paused deployment is scaled immediately, because
// the update may never complete.
func (w *updates) checkSize(f rollout.Facts, op rollout.Operation) {
	if op.Action != rollout.Scale || op.Replicas >= op.Set.Spec.Replicas || f.Deployment.Spec.Paused {
		return
	}
	updating, others := w.parts(op.Set)
	if int(op.Replicas) < min(updating, int(reserve.Desired(f.Deployment))) && updating+others > int(op.Replicas) {
		w.breaks("set %s is scaled to %d with %d machines, %d of them being updated", op.Set.Name, op.Replicas, updating+others, updating)
	}
}

// parts returns how many Machines of a set are being updated, and how many are not.
func (w *updates) parts(set *v1alpha1.MachineSet) (updating, others int) {
	for _, machine := range w.owned(set) {
		switch {
		case !machine.DeletionTimestamp.IsZero():
		case inplaceupdate.Updating(machine) && !inplaceupdate.Failed(machine, w.shown.nodes[machine.Name]) && !inplaceupdate.Updated(machine, w.shown.nodes[machine.Name]):
			updating++
		default:
			others++
		}
	}
	return updating, others
}

// patchNode writes the differences. Taints are written only to the version that was read.
func (w *updates) patchNode(f rollout.Facts, change rollout.NodeChange) {
	stored := w.nodes[change.Old.Name]
	taints := !slices.EqualFunc(change.Old.Spec.Taints, change.New.Spec.Taints, rollout.SameTaint)
	if stored == nil || taints && versionOf(stored) != versionOf(change.Old) {
		return
	}
	node := stored.DeepCopy()
	merge(node.Labels, change.Old.Labels, change.New.Labels)
	merge(node.Annotations, change.Old.Annotations, change.New.Annotations)
	if taints {
		node.Spec.Taints = change.New.Spec.Taints
	}
	if change.Old.Spec.Unschedulable != change.New.Spec.Unschedulable {
		node.Spec.Unschedulable = change.New.Spec.Unschedulable
	}
	selects := !inplaceupdate.Selected(stored) && inplaceupdate.Selected(node)
	w.next(node)
	w.nodes[node.Name], w.wrote["node "+node.Name] = node, w.version
	if selects {
		w.logf("    selected %s", node.Name)
	}
}

func merge(into, was, is map[string]string) {
	for key := range was {
		if _, ok := is[key]; !ok {
			delete(into, key)
		}
	}
	for key, value := range is {
		if was[key] != value {
			into[key] = value
		}
	}
}

// runSet runs a pass of a set's controller, or completes a pass that has begun.
func (w *updates) runSet(name string) {
	w.beginSet(name)
	if f, ok := w.begun[name]; ok {
		delete(w.begun, name)
		w.finishSet(name, f)
	}
}

// beginSet reads the facts for a pass of a set's controller, unless a pass has begun.
func (w *updates) beginSet(name string) {
	set := w.shown.sets[name]
	if _, begun := w.begun[name]; begun || set == nil || w.sets[name] == nil || versionOf(set) < w.counts[name] {
		return
	}
	f := scale.Facts{Set: set.DeepCopy(), Owned: w.owned(set), Parent: w.deployment.DeepCopy(), Now: fixture.Noon, Current: w.current(name)}
	f.Reserve = scale.Members(f.Set, f.Owned, f.Now)
	for _, machine := range f.Owned {
		if mark := f.Reserve.MarkFor(f.Set, machine); mark != reserve.MarkOf(&machine.Spec) && counts.Active(machine) {
			f.Outdated = append(f.Outdated, scale.Outdated{Machine: machine, Differences: []string{"node template"}, Mark: mark})
		}
	}
	w.begun[name] = f
}

// markMachine moves a Machine into or out of the reserve, unless it changed since it was read.
func (w *updates) markMachine(f scale.Facts, op scale.Operation) {
	stored := w.machines[op.Machine.Name]
	if stored == nil || versionOf(stored) != versionOf(op.Machine) {
		return
	}
	machine := stored.DeepCopy()
	scale.TakeOver(reserve.Marked(&f.Set.Spec.Template.Spec, f.Reserve.MarkFor(f.Set, op.Machine)), &machine.Spec)
	w.next(machine)
	w.machines[machine.Name] = machine
	w.logf("  %s: %s", machine.Name, op.Reason)
}

// finishSet carries out the plan of a pass. Like the controller, it writes no counts if the cache does not show
// everything that the set created and deleted.
func (w *updates) finishSet(name string, f scale.Facts) {
	set := f.Set
	if w.sets[name] == nil || w.sets[name].UID != set.UID {
		return
	}
	count, leaving, conflict := int32(0), map[string]bool{}, false
	plan := scale.Plan(f)
	for _, op := range plan {
		switch op.Action {
		case scale.Create:
			for i := range op.Count {
				w.createMachine(set, i >= op.Count-op.Excess)
				count++
			}
		case scale.Update:
			w.markMachine(f, op)
		case scale.Delete:
			done := w.deleteMachine(f, op, plan)
			leaving[op.Machine.Name], conflict = true, conflict || !done
		default:
			w.breaks("unexpected operation in the set's plan: %s", op.Action)
		}
	}
	if f.Current && !conflict {
		staying := slices.DeleteFunc(slices.Clone(f.Owned), func(machine *v1alpha1.Machine) bool { return leaving[machine.Name] })
		w.count(set, staying, int32(len(leaving))+count)
	}
}

// current reports whether the cache shows what a set created and deleted.
func (w *updates) current(name string) bool {
	for made, deleted := range w.made[name] {
		stored, shown := w.machines[made], w.shown.machines[made]
		if stored != nil && shown == nil || deleted && shown != nil && shown.DeletionTimestamp.IsZero() {
			return false
		}
	}
	return true
}

// remember records what a set created or deleted.
func (w *updates) remember(set, machine string, deleted bool) {
	if w.made[set] == nil {
		w.made[set] = map[string]bool{}
	}
	w.made[set][machine] = deleted
}

func (w *updates) createMachine(set *v1alpha1.MachineSet, excess bool) {
	machine := fixture.Running(set, "")
	if excess {
		machine.Spec = *reserve.Marked(&machine.Spec, reserve.MarkIn(set))
	}
	w.next(machine)
	machine.Name = fmt.Sprintf("%s-%s", set.Spec.Template.Spec.Class.Name, machine.ResourceVersion)
	machine.UID, machine.Labels = types.UID(machine.Name), maps.Clone(set.Spec.Template.Labels)
	machine.Status.CurrentStatus.Phase = v1alpha1.MachinePending
	w.machines[machine.Name] = machine
	w.remember(set.Name, machine.Name, false)
	w.logf("  created %s", machine.Name)
}

// deleteMachine reports whether the Machine was deleted or is gone. Otherwise it changed since it was read.
func (w *updates) deleteMachine(f scale.Facts, op scale.Operation, plan []scale.Operation) bool {
	stored := w.machines[op.Machine.Name]
	if stored == nil || versionOf(stored) != versionOf(op.Machine) {
		return stored == nil
	}
	for _, other := range f.Owned {
		waits := scale.Replaced(f) && inplaceupdate.Waits(other)
		idle := !inplaceupdate.Updating(other) && !waits && !inplaceupdate.Moved(other) && counts.Active(other)
		goes := slices.ContainsFunc(plan, func(op scale.Operation) bool { return op.Machine != nil && op.Machine.Name == other.Name })
		if inplaceupdate.Updating(op.Machine) && idle && !goes {
			w.breaks("%s is deleted during its update instead of %s", stored.Name, other.Name)
		}
	}
	machine := stored.DeepCopy()
	machine.DeletionTimestamp = &metav1.Time{Time: fixture.Noon}
	w.next(machine)
	w.machines[machine.Name] = machine
	w.remember(f.Set.Name, machine.Name, true)
	w.logf("  deleted %s: %s", machine.Name, op.Reason)
	return true
}

// count writes the status of a set. Staying are its remaining Machines, and others is the number of other
// Machines.
func (w *updates) count(set *v1alpha1.MachineSet, staying []*v1alpha1.Machine, others int32) {
	next := set.DeepCopy()
	next.Status = v1alpha1.MachineSetStatus{Replicas: int32(len(staying)) + others, ObservedGeneration: set.Generation}
	for _, machine := range staying {
		if counts.Active(machine) && counts.Usable(machine) {
			next.Status.AvailableReplicas++
			next.Status.ReadyReplicas++
		}
	}
	if fmt.Sprint(next.Status) == fmt.Sprint(set.Status) || versionOf(w.sets[set.Name]) != versionOf(set) {
		return
	}
	w.next(next)
	w.sets[next.Name], w.counts[next.Name] = next, w.version
}

// hasOwner reports whether the set of a Machine exists. The garbage collector deletes Machines without a set.
// This happens when a Machine is moved to a set that is deleted at the same time.
func (w *updates) hasOwner(machine *v1alpha1.Machine) bool {
	owner := machine.OwnerReferences[0]
	set := w.sets[owner.Name]
	return set != nil && set.UID == owner.UID
}

// turn runs the next step of a Machine, either of the machine controller or of the agent on its node.
func (w *updates) turn(name string) {
	machine := w.machines[name].DeepCopy()
	node := w.nodes[name]
	if node != nil {
		node = node.DeepCopy()
	}
	switch phase := &machine.Status.CurrentStatus.Phase; {
	case !machine.DeletionTimestamp.IsZero(), !w.hasOwner(machine):
		delete(w.machines, name)
		delete(w.nodes, name)
		return
	case *phase == v1alpha1.MachinePending:
		*phase = v1alpha1.MachineRunning
		machine.Labels[v1alpha1.NodeLabelKey] = name
		node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{}}}
	case *phase == v1alpha1.MachineFailed, node == nil:
		return
	default:
		before := node.DeepCopy()
		w.update(machine, node)
		if fmt.Sprint(before) == fmt.Sprint(node) && fmt.Sprint(machine) == fmt.Sprint(w.machines[name]) {
			return
		}
	}
	w.put(machine, node)
}

func (w *updates) put(machine *v1alpha1.Machine, node *corev1.Node) {
	w.next(machine)
	w.machines[machine.Name] = machine
	w.next(node)
	w.nodes[node.Name] = node
}

// update runs one step of an update.
func (w *updates) update(machine *v1alpha1.Machine, node *corev1.Node) {
	result := node.Labels[v1alpha1.LabelKeyNodeUpdateResult]
	phase, reason := &machine.Status.CurrentStatus.Phase, inplaceupdate.State(machine)
	become := func(reason string) {
		condition := corev1.NodeCondition{Type: v1alpha1.NodeInPlaceUpdate, Status: corev1.ConditionTrue, Reason: reason}
		node.Status.Conditions, machine.Status.Conditions = []corev1.NodeCondition{condition}, []corev1.NodeCondition{condition}
	}
	updating := *phase == v1alpha1.MachineInPlaceUpdating || *phase == v1alpha1.MachineInPlaceUpdateFailed
	switch {
	case *phase == v1alpha1.MachineInPlaceUpdateSuccessful:
		*phase = v1alpha1.MachineRunning
	case updating && result == v1alpha1.LabelValueNodeUpdateSuccessful:
		*phase = v1alpha1.MachineInPlaceUpdateSuccessful
	case *phase == v1alpha1.MachineInPlaceUpdating && result == v1alpha1.LabelValueNodeUpdateFailed:
		*phase = v1alpha1.MachineInPlaceUpdateFailed
	default:
		w.condition(node, phase, reason, become)
	}
}

// condition runs a step that the labels and the condition of a node require.
func (w *updates) condition(node *corev1.Node, phase *v1alpha1.MachinePhase, reason string, become func(string)) {
	result := node.Labels[v1alpha1.LabelKeyNodeUpdateResult]
	if node.Labels[v1alpha1.LabelKeyNodeCandidateForUpdate] == "" {
		return
	}
	switch {
	case reason == "" || reason == v1alpha1.UpdateSuccessful && result == "":
		become(v1alpha1.CandidateForUpdate)
	case result == v1alpha1.LabelValueNodeUpdateSuccessful && reason != v1alpha1.UpdateSuccessful:
		become(v1alpha1.UpdateSuccessful)
	case result == v1alpha1.LabelValueNodeUpdateFailed && reason != v1alpha1.UpdateFailed:
		become(v1alpha1.UpdateFailed)
	case reason == v1alpha1.CandidateForUpdate && inplaceupdate.Selected(node):
		become(v1alpha1.SelectedForUpdate)
	case reason == v1alpha1.SelectedForUpdate:
		node.Spec.Unschedulable, *phase = true, v1alpha1.MachineInPlaceUpdating
		become(v1alpha1.ReadyForUpdate)
	case reason == v1alpha1.ReadyForUpdate:
		node.Labels[v1alpha1.LabelKeyNodeUpdateResult] = v1alpha1.LabelValueNodeUpdateSuccessful
	}
}

// controllers runs all controllers and updates the caches.
func (w *updates) controllers() {
	w.reconcile()
	for _, name := range slices.Sorted(maps.Keys(w.sets)) {
		w.runSet(name)
	}
	w.showAll()
}

// settle runs all controllers until the update is complete, and reports whether it completes.
func (w *updates) settle(seed *rand.Rand) bool {
	for range 400 {
		w.showAll()
		w.controllers()
		names := slices.Sorted(maps.Keys(w.machines))
		if seed != nil {
			seed.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			names = names[:len(names)-seed.IntN(len(names)+1)/2]
		}
		for _, name := range names {
			w.turn(name)
		}
		if w.over() {
			return true
		}
	}
	return false
}

// over reports whether everything is complete: the desired Machines are available in the current set, their
// nodes have no marks of an update, and the controller has nothing to write.
func (w *updates) over() bool {
	w.showAll()
	f := w.facts()
	if f == nil || !rollout.New(*f).RolledOut || len(rollout.Plan(rollout.New(*f))) > 0 || len(w.machines) != int(reserve.Desired(w.deployment)) {
		return false
	}
	held := int32(0)
	for _, machine := range w.machines {
		if reserve.In(&machine.Spec) {
			held++
		}
	}
	if held != reserve.Excess(w.deployment) {
		return false
	}
	for name, machine := range w.machines {
		if inplaceupdate.Moved(machine) || inplaceupdate.Labelled(w.nodes[name]) || w.nodes[name].Spec.Unschedulable {
			return false
		}
	}
	return true
}

// undergoing returns how many Machines are part of the update, and how many available ones are not.
func (w *updates) undergoing() (undergoing, usable int) {
	for name, machine := range w.machines {
		switch {
		case !machine.DeletionTimestamp.IsZero():
		case inplaceupdate.Undergoing(machine, w.nodes[name]):
			if !inplaceupdate.Updated(machine, nodeOr(w.nodes[name])) {
				undergoing++
			} else if counts.Usable(machine) {
				usable++
			}
		case counts.Usable(machine):
			usable++
		}
	}
	return undergoing, usable
}

func nodeOr(node *corev1.Node) *corev1.Node {
	if node == nil {
		return &corev1.Node{}
	}
	return node
}

// active returns how many Machines are not being deleted.
func (w *updates) active() int {
	n := 0
	for _, machine := range w.machines {
		if counts.Active(machine) {
			n++
		}
	}
	return n
}

// String describes the model.
func (w *updates) String() string {
	var b strings.Builder
	for _, line := range w.log {
		fmt.Fprintln(&b, line)
	}
	fmt.Fprintf(&b, "desired %d of %s, paused %t\n", w.deployment.Spec.Replicas, w.deployment.Spec.Template.Spec.Class.Name, w.deployment.Spec.Paused)
	for _, name := range slices.Sorted(maps.Keys(w.sets)) {
		set := w.sets[name]
		fmt.Fprintf(&b, "%s %s: %d, %+v %v\n", name, set.Spec.Template.Spec.Class.Name, set.Spec.Replicas, set.Status.Replicas, set.Labels[v1alpha1.LabelKeyMachineSetScaleUpDisabled])
	}
	for _, name := range slices.Sorted(maps.Keys(w.machines)) {
		machine := w.machines[name]
		fmt.Fprintf(&b, "%s of %s: %s %s moved=%t deleted=%t", name, machine.OwnerReferences[0].Name, machine.Status.CurrentStatus.Phase, inplaceupdate.State(machine), inplaceupdate.Moved(machine), !machine.DeletionTimestamp.IsZero())
		if node := w.nodes[name]; node != nil {
			fmt.Fprintf(&b, " %v unschedulable=%t", node.Labels, node.Spec.Unschedulable)
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}
