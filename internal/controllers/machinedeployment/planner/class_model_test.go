package planner_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/planner"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/planner/classchange"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/classupdate"
	"github.com/millwright-dev/millwright/test/fixture"
)

// pool is a deployment with an update strategy, whose controllers make their passes in any order.
type pool struct {
	deployment *v1alpha1.MachineDeployment
	sets       []*v1alpha1.MachineSet
	machines   map[string]*v1alpha1.Machine
	// stuck are the Machines whose VMs cannot be updated.
	stuck map[string]bool
	// made counts the Machines and sets, for their names.
	made int
	// gone are the Machines that were deleted.
	gone []string
}

// newPool returns a pool whose Machines are Running and have the class "a".
func newPool(replicas int32, surge, unavailable string) *pool {
	p := &pool{machines: map[string]*v1alpha1.Machine{}, stuck: map[string]bool{}}
	p.deployment = fixture.Deployment(replicas, fixture.Rolling(surge, unavailable))
	p.deployment.Annotations = map[string]string{v1alpha1.AnnotationKeyUpdateStrategy: string(classupdate.Update)}
	p.rounds(20)
	return p
}

// rounds lets every controller make passes.
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

// plan is a pass over the deployment.
func (p *pool) plan() {
	f := planner.NewFacts(p.deployment, p.sets, fixture.Noon)
	f.Class = classchange.Find(f.Deployment, f.Current, f.Old, f.Now)
	if f.Class != nil {
		f.Class.Machines = p.of(f.Class.Set)
	}
	outcome := planner.Outcome{Written: map[string]*v1alpha1.MachineSet{}}
	for _, op := range planner.Plan(f) {
		outcome.Ended = outcome.Ended || op.Ends()
		p.apply(f, op, &outcome)
	}
	if outcome.Ended {
		return
	}
	next := status.Next(f, outcome)
	p.deployment = planner.Annotated(f.After(outcome))
	p.deployment.Status = next
}

func (p *pool) apply(f planner.Facts, op planner.Operation, outcome *planner.Outcome) {
	switch op.Action {
	case planner.Create:
		p.made++
		set := op.Next.DeepCopy()
		set.Name, set.Generation, set.CreationTimestamp = fmt.Sprintf("pool-%03d", p.made), 1, metav1.NewTime(fixture.Noon)
		fixture.WithUID(set)
		p.sets, outcome.Created = append(p.sets, set), set
	case planner.Scale, planner.Refresh, planner.TakeClass:
		next := op.Next.DeepCopy()
		if !equality.Semantic.DeepEqual(next.Spec, op.Set.Spec) {
			next.Generation++
		}
		p.sets[slices.Index(p.sets, op.Set)] = next
		outcome.Written[next.Name] = next
	case planner.Prune:
		p.sets = slices.DeleteFunc(slices.Clone(p.sets), func(set *v1alpha1.MachineSet) bool { return set == op.Set })
	case planner.AskUpdate:
		f.Class.Ask(op.Machine)
	case planner.ForgetUpdate:
		f.Class.Forget(op.Machine)
	case planner.FollowClass:
		f.Class.Follow(op.Machine)
	case planner.Retire:
		f.Class.Retire(op.Machine)
	}
}

// reconcileSet creates and deletes Machines, those that failed or were retired first, and reports.
func (p *pool) reconcileSet(set *v1alpha1.MachineSet) {
	for _, machine := range p.of(set) {
		if machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed {
			p.delete(machine)
		}
	}
	machines := p.of(set)
	slices.SortStableFunc(machines, func(a, b *v1alpha1.Machine) int {
		switch retired := classchange.Retired(a); {
		case retired == classchange.Retired(b):
			return 0
		case retired:
			return -1
		}
		return 1
	})
	for len(machines) > int(set.Spec.Replicas) {
		p.delete(machines[0])
		machines = machines[1:]
	}
	for len(machines) < int(set.Spec.Replicas) {
		p.made++
		machine := fixture.Running(set, fmt.Sprintf("m-%03d", p.made))
		machine.Spec.Class, machine.Spec.ProviderID = set.Spec.Template.Spec.Class, "sim:///"+machine.Name
		machine.Status.CurrentStatus.Phase = v1alpha1.MachinePending
		p.machines[machine.Name] = machine
		machines = append(machines, machine)
	}
	set.Status.ObservedGeneration = set.Generation
	fixture.Reports(int32(len(machines)), int32(p.running(machines)))(set)
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

// reconcileMachine lets a Machine run, answer, and have its VM updated.
func (p *pool) reconcileMachine(machine *v1alpha1.Machine) {
	switch asked := classupdate.Asked(machine); {
	case machine.Status.CurrentStatus.Phase == v1alpha1.MachinePending:
		machine.Status.CurrentStatus.Phase = v1alpha1.MachineRunning
	case machine.Status.CurrentStatus.Phase != v1alpha1.MachineRunning || asked == "":
	case asked == machine.Spec.Class.Name:
		delete(machine.Annotations, v1alpha1.AnnotationKeyUpdateClass)
	default:
		plan := &classupdate.Plan{Class: asked, Digest: "of " + asked, Updates: []string{"tags"}}
		if p.stuck[machine.Name] {
			plan.Replacements = []string{"size"}
		}
		classupdate.State{Plan: plan}.Write(machine)
	}
}

// happens lets something happen.
func (p *pool) happens(t *rapid.T, event string) {
	switch event {
	case "deployment":
		p.plan()
	case "set":
		if len(p.sets) > 0 {
			p.reconcileSet(rapid.SampledFrom(p.sets).Draw(t, "which set"))
		}
	case "machine", "fails":
		if len(p.machines) == 0 {
			return
		}
		machine := rapid.SampledFrom(p.all()).Draw(t, "which machine")
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
	case "strategy":
		strategy := rapid.SampledFrom([]classupdate.Strategy{classupdate.Keep, classupdate.DryRun, classupdate.Update}).Draw(t, "strategy")
		p.deployment.Annotations[v1alpha1.AnnotationKeyUpdateStrategy] = string(strategy)
	}
}

func (p *pool) rollTo(class string) {
	p.deployment.Spec.Template.Spec.Class.Name = class
	p.deployment.Generation++
}

// wrong says what is not as it is to be in the end; empty if all is.
func (p *pool) wrong() string {
	if is := status.Progress(p.deployment.Status); is.Reason != v1alpha1.DeploymentReasonComplete {
		return fmt.Sprintf("Progressing says %s: %s", is.Reason, is.Message)
	}
	for _, machine := range p.all() {
		if class := p.deployment.Spec.Template.Spec.Class.Name; machine.Spec.Class.Name != class {
			return fmt.Sprintf("machine %s has the class %s, not %s", machine.Name, machine.Spec.Class.Name, class)
		}
	}
	if got := p.running(p.all()); got != int(p.deployment.Spec.Replicas) || got != len(p.machines) {
		return fmt.Sprintf("%d of %d machines run", got, len(p.machines))
	}
	return ""
}

// TestClassesThatFollow: in whatever order the controllers make their passes, the Machines whose VMs can be updated
// stay, the others are replaced within the bounds, and the rollout ends.
func TestClassesThatFollow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		replicas := rapid.Int32Range(1, 6).Draw(t, "replicas")
		bound := rapid.SampledFrom([]string{"0", "1", "2", "50%"})
		p := newPool(replicas, bound.Draw(t, "surge"), bound.Draw(t, "unavailable"))
		var stay []string
		for _, machine := range p.all() {
			if p.stuck[machine.Name] = rapid.Bool().Draw(t, machine.Name); !p.stuck[machine.Name] {
				stay = append(stay, machine.Name)
			}
		}
		surge, unavailable := planner.Bounds(p.deployment)
		p.rollTo("b")
		check := func() {
			if is := int32(len(p.machines)); is > replicas+surge {
				t.Fatalf("%d machines exist, at most %d may", is, replicas+surge)
			}
			if is := int32(p.running(p.all())); is < replicas-unavailable {
				t.Fatalf("%d machines run, at least %d have to", is, replicas-unavailable)
			}
		}
		for _, event := range rapid.SliceOfN(rapid.SampledFrom([]string{"deployment", "set", "machine"}), 0, 60).Draw(t, "events") {
			p.happens(t, event)
			check()
		}
		for range 60 {
			p.rounds(1)
			check()
		}
		if wrong := p.wrong(); wrong != "" {
			t.Fatal(wrong)
		}
		if len(stay) == 0 { // the template is rolled out as ever
			return
		}
		for _, name := range stay {
			if slices.Contains(p.gone, name) {
				t.Fatalf("machine %s could be updated, and was replaced", name)
			}
		}
		if len(p.sets) != 1 || len(p.gone) != int(replicas)-len(stay) {
			t.Fatalf("there are %d sets; %v are gone, and %v were to stay", len(p.sets), p.gone, stay)
		}
	})
}

// TestWhateverHappensToAClassItEnds: users scale, change the class again and the strategy, and machines fail.
func TestWhateverHappensToAClassItEnds(t *testing.T) {
	t.Parallel()
	events := []string{"deployment", "deployment", "set", "set", "machine", "machine", "machine", "fails", "scale", "class", "strategy"}
	rapid.Check(t, func(t *rapid.T) {
		p := newPool(rapid.Int32Range(0, 5).Draw(t, "replicas"), "1", "0")
		for _, event := range rapid.SliceOfN(rapid.SampledFrom(events), 0, 80).Draw(t, "events") {
			if event == "fails" && len(p.machines) > 0 { // its VM is not for every class
				p.stuck[rapid.SampledFrom(p.all()).Draw(t, "stuck").Name] = true
			}
			p.happens(t, event)
		}
		p.deployment.Annotations[v1alpha1.AnnotationKeyUpdateStrategy] = string(classupdate.Update)
		p.rounds(100)
		if wrong := p.wrong(); wrong != "" {
			t.Fatal(wrong)
		}
	})
}

// TestADryRunOfAClass: the Machines are asked, and nothing else changes until the strategy does.
func TestADryRunOfAClass(t *testing.T) {
	p := newPool(3, "1", "0")
	p.stuck[p.all()[0].Name] = true
	p.deployment.Annotations[v1alpha1.AnnotationKeyUpdateStrategy] = string(classupdate.DryRun)
	p.rollTo("b")
	p.rounds(20)
	is := status.Progress(p.deployment.Status)
	if want := "of 3 machines for class \"b\", 2 to be updated, 1 to be replaced"; is.Reason != v1alpha1.DeploymentReasonDryRun || !strings.Contains(is.Message, want) {
		t.Errorf("Progressing says %s: %s", is.Reason, is.Message)
	}
	if len(p.gone) > 0 || p.sets[0].Spec.Template.Spec.Class.Name != "a" {
		t.Errorf("%v are gone, and the set is of class %s", p.gone, p.sets[0].Spec.Template.Spec.Class.Name)
	}
	p.rollTo("a")
	p.rounds(20)
	for _, machine := range p.all() {
		if asked := classupdate.Asked(machine); asked != "" {
			t.Errorf("machine %s is still asked about %s", machine.Name, asked)
		}
	}
	if wrong := p.wrong(); wrong != "" {
		t.Error(wrong)
	}
}

// TestWithoutAStrategyAClassReplaces is MCM's behaviour.
func TestWithoutAStrategyAClassReplaces(t *testing.T) {
	p := newPool(3, "1", "0")
	delete(p.deployment.Annotations, v1alpha1.AnnotationKeyUpdateStrategy)
	p.rollTo("b")
	p.rounds(40)
	if wrong := p.wrong(); wrong != "" || len(p.gone) != 3 || len(p.sets) != 2 {
		t.Errorf("%s; %v are gone, and there are %d sets", wrong, p.gone, len(p.sets))
	}
}
