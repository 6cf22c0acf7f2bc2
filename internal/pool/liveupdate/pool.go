package liveupdate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Pool is the live update of the Machines of a deployment whose template names a class that they do not have.
// Their drivers are asked what an update to it would change. If some instances need no replacement, the set
// with all Machines takes over the new class, and its Machines are updated. Only the others are replaced.
//
// A Pool is read-only. A nil Pool is valid and stands for no live update; its methods return zero values.
type Pool struct {
	// Set is the set that has all Machines of the deployment.
	Set *v1alpha1.MachineSet
	// Machines are the Machines of the set.
	Machines []*v1alpha1.Machine

	deployment *v1alpha1.MachineDeployment
	dryRun     bool
	now        time.Time
}

// Find returns the live update of a deployment that has an update strategy, or nil if its template is rolled
// out as usual. Current is the set of the template, or nil if there is none. Old are the other sets. The caller
// fills in the Machines.
func Find(deployment *v1alpha1.MachineDeployment, current *v1alpha1.MachineSet, old []*v1alpha1.MachineSet, now time.Time) *Pool {
	strategy, _ := Parse(deployment.Annotations)
	rolling := cmp.Or(deployment.Spec.Strategy.Type, v1alpha1.RollingUpdateMachineDeploymentStrategyType)
	if strategy == Keep || rolling != v1alpha1.RollingUpdateMachineDeploymentStrategyType || deployment.Spec.Paused {
		return nil
	}
	p := &Pool{deployment: deployment, dryRun: strategy == DryRun, now: now, Set: current}
	for _, set := range old {
		switch {
		case !used(set):
		case p.Set != nil && used(p.Set):
			return nil // a rollout is in progress
		default:
			p.Set = set
		}
	}
	if p.Set == nil || !used(p.Set) || !p.Set.DeletionTimestamp.IsZero() || !p.sameButForTheClass() {
		return nil
	}
	return p
}

// used reports whether a set has Machines, or may have some that it has not reported yet.
func used(set *v1alpha1.MachineSet) bool { return counts.Existing(set) > 0 || !counts.Settled(set) }

// sameButForTheClass reports whether the templates of deployment and set differ only in the name of the class.
func (p *Pool) sameButForTheClass() bool {
	template := p.deployment.Spec.Template.DeepCopy()
	template.Spec.Class.Name = p.Set.Spec.Template.Spec.Class.Name
	kind := func(template *v1alpha1.MachineTemplateSpec) string { return template.Spec.Class.Kind }
	return revision.Same(template, &p.Set.Spec.Template) && kind(template) == v1alpha1.MachineClassKind && kind(&p.Set.Spec.Template) == v1alpha1.MachineClassKind
}

// class returns the name of the class that the template names.
func (p *Pool) class() string { return p.deployment.Spec.Template.Spec.Class.Name }

// taken reports whether the set has taken over the class.
func (p *Pool) taken() bool { return p.Set.Spec.Template.Spec.Class.Name == p.class() }

// stage is the progress of a Machine.
type stage int

const (
	// done Machines have the class and a VM that matches it as far as possible, or use a fallback class.
	done stage = iota
	// updating Machines have the class, and their VMs are being updated.
	updating
	// waiting Machines do not run, so their drivers cannot be queried.
	waiting
	// unqueried Machines have drivers that must be queried.
	unqueried
	// queried Machines have drivers that have not responded yet.
	queried
	// updatable Machines have VMs that can be updated.
	updatable
	// replaceable Machines must be replaced.
	replaceable
)

func (p *Pool) stageOf(machine *v1alpha1.Machine) stage {
	_, fellBack := machine.Annotations[v1alpha1.AnnotationKeyClassReason]
	subject := RequestedClass(machine)
	switch {
	case machine.Spec.Class.Name == p.class() && subject == p.class():
		return updating
	case machine.Spec.Class.Name == p.class() || fellBack:
		return done
	case excepted(machine):
		return replaceable
	case !counts.Usable(machine):
		return waitingOrNew(machine)
	case subject != p.class():
		return unqueried
	}
	switch Read(machine.Annotations).EffectOn(p.class()) {
	case Undecided:
		return queried
	case Replaces:
		return replaceable
	}
	return updatable
}

// excepted reports whether a Machine has its own update strategy, which prevents updates of its VM.
func excepted(machine *v1alpha1.Machine) bool {
	own, has := machine.Annotations[v1alpha1.AnnotationKeyUpdateStrategy]
	return has && own != string(Update)
}

// waitingOrNew returns the stage of a Machine that does not run. A Machine without a VM can be replaced without
// a loss.
func waitingOrNew(machine *v1alpha1.Machine) stage {
	phase := machine.Status.CurrentStatus.Phase
	if machine.Spec.ProviderID == "" && (phase == "" || phase == v1alpha1.MachineCrashLoopBackOff) {
		return replaceable
	}
	return waiting
}

// Active returns the Machines that are not being deleted, sorted by name.
func (p *Pool) Active() []*v1alpha1.Machine {
	if p == nil {
		return nil
	}
	active := slices.DeleteFunc(slices.Clone(p.Machines), func(machine *v1alpha1.Machine) bool { return !counts.Active(machine) })
	slices.SortFunc(active, func(a, b *v1alpha1.Machine) int { return cmp.Compare(a.Name, b.Name) })
	return active
}

// at returns the Machines at one of the stages, sorted by name.
func (p *Pool) at(stages ...stage) []*v1alpha1.Machine {
	return slices.DeleteFunc(p.Active(), func(machine *v1alpha1.Machine) bool { return !slices.Contains(stages, p.stageOf(machine)) })
}

// ToQuery returns the Machines whose drivers must be queried now.
func (p *Pool) ToQuery() []*v1alpha1.Machine { return p.at(unqueried) }

// Obsolete returns the Machines with a request for another class, because the template was changed back.
func (p *Pool) Obsolete() []*v1alpha1.Machine {
	return slices.DeleteFunc(p.at(done), func(machine *v1alpha1.Machine) bool { return RequestedClass(machine) == "" })
}

// ToUpdate returns the Machines that get the class now.
func (p *Pool) ToUpdate() []*v1alpha1.Machine {
	if p == nil || !p.taken() || p.dryRun {
		return nil
	}
	return p.at(updatable)
}

// TakesOver reports whether the set takes over the class now: all drivers have responded, and at least one VM
// needs no replacement.
func (p *Pool) TakesOver() bool {
	return p != nil && !p.taken() && !p.dryRun && len(p.at(unqueried, queried)) == 0 && len(p.at(updatable, updating, done)) > 0
}

// Holds reports whether the rollout must wait because it is not known yet how many Machines need a replacement,
// or because this is a dry run.
func (p *Pool) Holds() bool {
	return p != nil && !p.taken() && (p.dryRun || p.TakesOver() || len(p.at(unqueried, queried)) > 0)
}

// DryRun reports whether this is a dry run, which changes only annotations of Machines.
func (p *Pool) DryRun() bool { return p != nil && p.dryRun && !p.taken() }

// Left returns how many Machines do not have the class of their set yet or are being updated to it. Preserved
// Machines that would be replaced do not count.
func (p *Pool) Left() int32 {
	if p == nil || !p.taken() {
		return 0
	}
	return int32(len(p.at(updating, waiting, unqueried, queried, updatable)) + len(p.unpreserved(p.at(replaceable))))
}

// unpreserved returns the Machines that are not preserved.
func (p *Pool) unpreserved(machines []*v1alpha1.Machine) []*v1alpha1.Machine {
	return slices.DeleteFunc(machines, func(machine *v1alpha1.Machine) bool { return preservation.Active(machine, p.now) })
}

// ToReplace returns the Machines that must be replaced, in the order of their deletion: Machines that do not
// run, then excess Machines, then the oldest. Preserved ones are left out.
func (p *Pool) ToReplace() []*v1alpha1.Machine {
	if p == nil || !p.taken() || p.dryRun {
		return nil
	}
	rest := p.unpreserved(p.at(replaceable))
	slices.SortStableFunc(rest, func(a, b *v1alpha1.Machine) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time))
	})
	return rest
}

func rank(machine *v1alpha1.Machine) int {
	if !counts.Usable(machine) {
		return -1
	}
	return reserve.Rank(machine)
}

// Replacements is the next step of the replacement of Machines that cannot be updated.
type Replacements struct {
	// Replicas is the number of replicas of the set.
	Replicas int32
	// Leaving are the Machines that the set loses.
	Leaving []*v1alpha1.Machine
}

// Next returns the next step of replacing Machines. The set must be settled. Desired is the desired number of
// Machines. At most surge more may exist, and at most unavailable fewer may be available.
func (p *Pool) Next(desired, surge, unavailable int32) Replacements {
	rest := p.ToReplace()
	current := counts.Desired(p.Set)
	spare := counts.Available(p.Set) - max(0, desired-unavailable)
	step := Replacements{Replicas: max(current, min(desired+surge, desired+int32(len(rest))))}
	for _, machine := range rest {
		if counts.Usable(machine) {
			if spare <= 0 {
				break
			}
			spare--
		}
		step.Leaving = append(step.Leaving, machine)
	}
	if n := int32(len(step.Leaving)); n > 0 {
		step.Replicas = max(0, current-n)
	}
	return step
}

// Summary describes how many Machines are at which stage.
func (p *Pool) Summary() string {
	replaceable := p.at(replaceable)
	rest := p.unpreserved(slices.Clone(replaceable))
	parts := []struct {
		count int
		what  string
	}{
		{len(p.at(done)), "done"},
		{len(p.at(updating)), "being updated"},
		{len(p.at(updatable)), "to be updated"},
		{len(rest), "to be replaced"},
		{len(replaceable) - len(rest), "preserved without an update"},
		{len(p.at(waiting)), "not running"},
		{len(p.at(unqueried, queried)), "waiting for the driver"},
	}
	total, text := 0, []string(nil)
	for _, part := range parts {
		if part.count > 0 {
			total += part.count
			text = append(text, fmt.Sprintf("%d %s", part.count, part.what))
		}
	}
	return fmt.Sprintf("%s for class %q: %s", messages.Machines(total), p.class(), strings.Join(text, ", "))
}

// Describe describes the effect on a Machine, such as "updates (tags)".
func (p *Pool) Describe(machine *v1alpha1.Machine) string {
	switch at := p.stageOf(machine); {
	case at == done:
		return "nothing"
	case at == updating:
		return "being updated"
	case at == waiting:
		return "unknown: not running"
	case at == unqueried, at == queried:
		return "unknown: waiting for the driver"
	case at == replaceable && preservation.Active(machine, p.now):
		return "nothing (preserved)"
	case excepted(machine):
		return fmt.Sprintf("replaces (its own update strategy is %q)", machine.Annotations[v1alpha1.AnnotationKeyUpdateStrategy])
	case !counts.Usable(machine):
		return "replaces (no VM)"
	}
	return Read(machine.Annotations).Plan.Summary()
}

// Ask requests that the driver of a Machine reports the effect of an update to the class.
func (p *Pool) Ask(machine *v1alpha1.Machine) {
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyUpdateClass, p.class())
}

// Forget withdraws that request.
func (p *Pool) Forget(machine *v1alpha1.Machine) {
	delete(machine.Annotations, v1alpha1.AnnotationKeyUpdateClass)
}

// Follow gives a Machine the class. From then on, it has the class choices of its set.
func (p *Pool) Follow(machine *v1alpha1.Machine) {
	machine.Spec.Class = p.Set.Spec.Template.Spec.Class
	if text := scarcity.Text(p.Set); text != "" {
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyClassChoices, text)
	} else {
		delete(machine.Annotations, v1alpha1.AnnotationKeyClassChoices)
	}
}

// TakeOver gives the class of the deployment to the set.
func (p *Pool) TakeOver(set *v1alpha1.MachineSet) {
	set.Spec.Template.Spec.Class = p.deployment.Spec.Template.Spec.Class
}
