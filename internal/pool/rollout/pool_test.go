package rollout_test

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/deletion"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/pool/rollout/status"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// pool is a deployment with its controllers, which run in any order with their real plans.
type pool struct {
	deployment *v1alpha1.MachineDeployment
	sets       []*v1alpha1.MachineSet
	machines   map[string]*v1alpha1.Machine
	// stuck are the Machines whose VMs cannot be updated.
	stuck map[string]bool
	// made counts the created Machines and sets, for their names.
	made int
	// gone are the deleted Machines.
	gone []string
	// planned is the size of the deployment at its last plan.
	planned size
	// minAvailable is how many Machines for Pods must run, according to each plan that a set has not carried out
	// yet.
	minAvailable int
	// broken describes a violation.
	broken string
}

// size is how many Machines a deployment should have.
type size struct{ Replicas, Excess, Unavailable int32 }

func sizeOf(d *v1alpha1.MachineDeployment) size {
	_, unavailable := rollout.Bounds(d)
	return size{Replicas: d.Spec.Replicas, Excess: reserve.Excess(d), Unavailable: unavailable}
}

func (s size) String() string {
	return fmt.Sprintf("%d replicas desired, plus %d in excess", s.Replicas, s.Excess)
}

// newPool returns a pool whose Machines are Running and have class "a".
func newPool(deployment *v1alpha1.MachineDeployment) *pool {
	p := &pool{deployment: deployment, machines: map[string]*v1alpha1.Machine{}, stuck: map[string]bool{}}
	p.rounds(20)
	return p
}

// rounds runs every controller n times.
func (p *pool) rounds(n int) {
	for range n {
		p.plan()
		for _, set := range slices.Clone(p.sets) {
			p.reconcileSet(set)
		}
		for _, machine := range p.all() {
			p.reconcileMachine(machine)
		}
	}
}

// String describes the deployment, its sets and their Machines. Excess Machines have a star.
func (p *pool) String() string {
	text := sizeOf(p.deployment).String()
	for _, set := range p.sets {
		text += fmt.Sprintf("; %s of class %s has %d replicas, plus %d in excess:", set.Name, set.Spec.Template.Spec.Class.Name, set.Spec.Replicas-reserve.OfSet(set), reserve.OfSet(set))
		for _, machine := range p.of(set) {
			text += " " + machine.Name + map[bool]string{true: "*"}[reserve.In(&machine.Spec)] + ":" + string(machine.Status.CurrentStatus.Phase)
		}
	}
	return text
}

// all returns the Machines, sorted by name.
func (p *pool) all() []*v1alpha1.Machine {
	var all []*v1alpha1.Machine
	for _, name := range slices.Sorted(maps.Keys(p.machines)) {
		all = append(all, p.machines[name])
	}
	return all
}

func (p *pool) of(set *v1alpha1.MachineSet) []*v1alpha1.Machine {
	return slices.DeleteFunc(p.all(), func(machine *v1alpha1.Machine) bool { return !metav1.IsControlledBy(machine, set) })
}

// plan runs a pass over the deployment.
func (p *pool) plan() {
	p.planned = sizeOf(p.deployment)
	bound := int(p.planned.Replicas - p.planned.Unavailable)
	if p.minAvailable = min(p.minAvailable, bound); !slices.ContainsFunc(p.sets, func(set *v1alpha1.MachineSet) bool { return !p.idle(set) }) {
		p.minAvailable = bound
	}
	f := rollout.NewFacts(p.deployment, p.sets, fixture.Noon)
	f.LiveUpdate = liveupdate.Find(f.Deployment, f.Current, f.Old, f.Now)
	if f.LiveUpdate != nil {
		f.LiveUpdate.Machines = p.of(f.LiveUpdate.Set)
	}
	outcome := rollout.Outcome{Written: map[string]*v1alpha1.MachineSet{}}
	r := rollout.New(f)
	for _, op := range rollout.Plan(r) {
		outcome.Ended = outcome.Ended || op.StopsPass()
		p.apply(f, op, &outcome)
	}
	if outcome.Ended {
		return
	}
	next := status.Next(r, outcome)
	p.deployment = r.After(outcome).Annotated(p.deployment)
	p.deployment.Status = next
}

func (p *pool) apply(f rollout.Facts, op rollout.Operation, outcome *rollout.Outcome) {
	switch op.Action {
	case rollout.Create:
		p.made++
		set := op.Next.DeepCopy()
		set.Name, set.Generation, set.CreationTimestamp = fmt.Sprintf("pool-%03d", p.made), 1, metav1.NewTime(fixture.Noon)
		fixture.WithUID(set)
		p.sets, outcome.Created = append(p.sets, set), set
	case rollout.Scale, rollout.Refresh, rollout.TakeClass:
		next := op.Next.DeepCopy()
		if !equality.Semantic.DeepEqual(next.Spec, op.Set.Spec) {
			next.Generation++
		}
		p.sets[slices.Index(p.sets, op.Set)] = next
		outcome.Written[next.Name] = next
	case rollout.Prune:
		p.sets = slices.DeleteFunc(slices.Clone(p.sets), func(set *v1alpha1.MachineSet) bool { return set == op.Set })
	case rollout.AskUpdate:
		f.LiveUpdate.Ask(op.Machine)
	case rollout.ForgetUpdate:
		f.LiveUpdate.Forget(op.Machine)
	case rollout.FollowClass:
		f.LiveUpdate.Follow(op.Machine)
	case rollout.Retire:
		deletion.Prefer(op.Machine)
	}
}

// factsOf returns the facts for the plan of a set.
func (p *pool) factsOf(set *v1alpha1.MachineSet) scale.Facts {
	f := scale.Facts{Set: set, Owned: p.of(set), Current: true, Parent: p.deployment, Now: fixture.Noon}
	f.Reserve = scale.Members(set, f.Owned, f.Now)
	for _, machine := range f.Owned {
		mark := f.Reserve.MarkFor(set, machine)
		if differences := scale.Differences(reserve.Marked(&set.Spec.Template.Spec, mark), &machine.Spec); len(differences) > 0 {
			f.Outdated = append(f.Outdated, scale.Outdated{Machine: machine, Differences: differences, Mark: mark})
		}
	}
	return f
}

// idle reports whether a set has carried out its last change.
func (p *pool) idle(set *v1alpha1.MachineSet) bool {
	return counts.Observed(set) && len(scale.Plan(p.factsOf(set))) == 0
}

// reconcileSet runs a pass over a set with the plan of its own controller. A deleted Machine is gone
// immediately.
func (p *pool) reconcileSet(set *v1alpha1.MachineSet) {
	f := p.factsOf(set)
	for _, op := range scale.Plan(f) {
		switch op.Action {
		case scale.Update:
			scale.TakeOver(reserve.Marked(&set.Spec.Template.Spec, f.Reserve.MarkFor(set, op.Machine)), &op.Machine.Spec)
		case scale.Delete:
			p.delete(op.Machine)
		case scale.Create:
			p.create(set, op)
		default:
			panic(fmt.Sprintf("unexpected operation of a set: %v", op))
		}
	}
	set.Status.ObservedGeneration = set.Generation
	machines := p.of(set)
	fixture.Reports(int32(len(machines)), int32(p.running(machines)))(set)
}

func (p *pool) create(set *v1alpha1.MachineSet, op scale.Operation) {
	free, all := p.forPods()
	for _, other := range p.sets {
		if other != set { // it removes its taints in its own passes, or its machines are replaced first
			free += p.inExcess(other)
		}
	}
	if free < min(int(p.planned.Replicas), all) {
		p.broken = fmt.Sprintf("machines are created for %s while %d of %d are for pods", p.planned, free, all)
	}
	for n := range op.Count {
		p.made++
		machine := fixture.Running(set, fmt.Sprintf("m-%03d", p.made))
		machine.UID, machine.CreationTimestamp = types.UID(machine.Name), metav1.NewTime(fixture.Noon.Add(time.Duration(p.made)*time.Second-time.Hour))
		machine.Labels = maps.Clone(set.Spec.Template.Labels)
		set.Spec.Template.Spec.DeepCopyInto(&machine.Spec)
		if n >= op.Count-op.Excess {
			machine.Spec = *reserve.Marked(&machine.Spec, reserve.MarkIn(set))
		}
		machine.Spec.ProviderID = "sim:///" + machine.Name
		machine.Status.CurrentStatus.Phase = v1alpha1.MachinePending
		p.machines[machine.Name] = machine
	}
}

// forPods returns how many Machines are not in excess, and how many there are in total.
func (p *pool) forPods() (free, all int) {
	for _, set := range p.sets {
		for _, machine := range p.of(set) {
			if machine.Status.CurrentStatus.Phase != v1alpha1.MachineFailed {
				all++
			}
		}
		free -= p.inExcess(set)
	}
	return free + all, all
}

// inExcess returns how many Machines of a set are in excess.
func (p *pool) inExcess(set *v1alpha1.MachineSet) (n int) {
	for _, machine := range p.of(set) {
		if machine.Status.CurrentStatus.Phase != v1alpha1.MachineFailed && reserve.In(&machine.Spec) {
			n++
		}
	}
	return n
}

func (p *pool) delete(machine *v1alpha1.Machine) {
	delete(p.machines, machine.Name)
	p.gone = append(p.gone, machine.Name)
}

func (p *pool) running(machines []*v1alpha1.Machine) (n int) {
	for _, machine := range machines {
		if machine.Status.CurrentStatus.Phase == v1alpha1.MachineRunning {
			n++
		}
	}
	return n
}

// reconcileMachine runs a Machine, responds to requests, and updates its VM.
func (p *pool) reconcileMachine(machine *v1alpha1.Machine) {
	switch asked := liveupdate.RequestedClass(machine); {
	case machine.Status.CurrentStatus.Phase == v1alpha1.MachinePending:
		machine.Status.CurrentStatus.Phase = v1alpha1.MachineRunning
	case machine.Status.CurrentStatus.Phase != v1alpha1.MachineRunning || asked == "":
	case asked == machine.Spec.Class.Name:
		delete(machine.Annotations, v1alpha1.AnnotationKeyUpdateClass)
	default:
		plan := &liveupdate.Plan{Class: asked, Digest: "of " + asked, Updates: []string{"tags"}}
		if p.stuck[machine.Name] {
			plan.Replacements = []string{"size"}
		}
		liveupdate.State{Plan: plan}.Write(machine)
	}
}

// happens applies an event.
func (p *pool) happens(t *rapid.T, event string) {
	switch event {
	case "deployment":
		p.plan()
	case "set":
		if len(p.sets) > 0 {
			p.reconcileSet(p.sets[rapid.IntRange(0, len(p.sets)-1).Draw(t, "which set")])
		}
	case "machine", "fails":
		if len(p.machines) == 0 {
			return
		}
		machine := p.all()[rapid.IntRange(0, len(p.machines)-1).Draw(t, "which machine")]
		if event == "fails" {
			machine.Status.CurrentStatus.Phase = v1alpha1.MachineFailed
			return
		}
		p.reconcileMachine(machine)
	case "scale":
		p.deployment.Spec.Replicas = rapid.Int32Range(0, 8).Draw(t, "replicas")
		p.deployment.Generation++
	case "class":
		p.rollTo(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "class"))
	case "excess":
		p.deployment.Spec.ExcessReplicas = ptr.To(intstr.Parse(rapid.SampledFrom(excesses).Draw(t, "excess")))
		p.deployment.Generation++
	case "pause", "resume":
		p.deployment.Spec.Paused = event == "pause"
		p.deployment.Generation++
	case "strategy":
		strategy := rapid.SampledFrom([]liveupdate.Strategy{liveupdate.Keep, liveupdate.DryRun, liveupdate.Update}).Draw(t, "strategy")
		p.deployment.Annotations[v1alpha1.AnnotationKeyUpdateStrategy] = string(strategy)
	}
}

func (p *pool) rollTo(class string) {
	p.deployment.Spec.Template.Spec.Class.Name = class
	p.deployment.Generation++
}

// wrong returns an error in the final state, or an empty string.
func (p *pool) wrong() string {
	if is := status.Progress(p.deployment.Status); is.Reason != v1alpha1.DeploymentReasonComplete {
		return fmt.Sprintf("Progressing is %s: %s", is.Reason, is.Message)
	}
	for _, machine := range p.all() {
		if class := p.deployment.Spec.Template.Spec.Class.Name; machine.Spec.Class.Name != class {
			return fmt.Sprintf("machine %s has the class %s, not %s", machine.Name, machine.Spec.Class.Name, class)
		}
	}
	if got := p.running(p.all()); got != int(reserve.Desired(p.deployment)) || got != len(p.machines) {
		return fmt.Sprintf("%d of %d machines run", got, len(p.machines))
	}
	if free, _ := p.forPods(); free != int(p.deployment.Spec.Replicas) {
		return fmt.Sprintf("%d machines are for pods", free)
	}
	return ""
}
