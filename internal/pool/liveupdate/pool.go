package liveupdate

import (
	"cmp"
	"fmt"
	"slices"
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

// Pool is the live update of the Machines of a deployment, whose template names another class than they have. Their
// drivers are asked what an update to it would change. If some instances need no replacement, the set with all
// Machines takes the new class over, and its Machines follow; only the rest is replaced.
//
// It is read-only. Nil is no live update: its methods say that nothing is to be done.
type Pool struct {
	// Set has all Machines of the deployment.
	Set *v1alpha1.MachineSet
	// Machines of the set.
	Machines []*v1alpha1.Machine

	deployment *v1alpha1.MachineDeployment
	dryRun     bool
	now        time.Time
}

// Find returns the live update of a deployment that has an update strategy; nil if its template is rolled out as usual. Current is the set of the template, nil if there is none; old are the others. The Machines are the caller's to
// fill in.
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
			return nil // a rollout is under way
		default:
			p.Set = set
		}
	}
	if p.Set == nil || !used(p.Set) || !p.Set.DeletionTimestamp.IsZero() || !p.sameButForTheClass() {
		return nil
	}
	return p
}

// used reports whether a set has Machines, or may have some that it did not report yet.
func used(set *v1alpha1.MachineSet) bool { return counts.Existing(set) > 0 || !counts.Settled(set) }

// sameButForTheClass reports whether the templates of deployment and set differ in the name of the class alone.
func (p *Pool) sameButForTheClass() bool {
	template := p.deployment.Spec.Template.DeepCopy()
	template.Spec.Class.Name = p.Set.Spec.Template.Spec.Class.Name
	kind := func(template *v1alpha1.MachineTemplateSpec) string { return template.Spec.Class.Kind }
	return revision.Same(template, &p.Set.Spec.Template) && kind(template) == v1alpha1.MachineClassKind && kind(&p.Set.Spec.Template) == v1alpha1.MachineClassKind
}

// class is the name of the class that the template names.
func (p *Pool) class() string { return p.deployment.Spec.Template.Spec.Class.Name }

// taken reports whether the set has taken the class over.
func (p *Pool) taken() bool { return p.Set.Spec.Template.Spec.Class.Name == p.class() }

// stage is how far a Machine is.
type stage int

const (
	// over: it has the class and its VM is as that says, as far as it can be; or it has fallen back to another class.
	over stage = iota
	// following: it has the class, and its VM is being updated.
	following
	// waiting: it does not run, so its driver cannot be asked.
	waiting
	// unasked: its driver is to be asked.
	unasked
	// asked: its driver has not answered.
	asked
	// updatable: its VM can be updated.
	updatable
	// replaceable: it has to be replaced.
	replaceable
)

func (p *Pool) stageOf(machine *v1alpha1.Machine) stage {
	_, fellBack := machine.Annotations[v1alpha1.AnnotationKeyClassReason]
	subject := Asked(machine)
	switch {
	case machine.Spec.Class.Name == p.class() && subject == p.class():
		return following
	case machine.Spec.Class.Name == p.class() || fellBack:
		return over
	case excepted(machine):
		return replaceable
	case !counts.Usable(machine):
		return waitingOrNew(machine)
	case subject != p.class():
		return unasked
	}
	switch Read(machine.Annotations).EffectOn(p.class()) {
	case Undecided:
		return asked
	case Replaces:
		return replaceable
	}
	return updatable
}

// excepted reports whether a Machine has an update strategy of its own by which its VM is not updated.
func excepted(machine *v1alpha1.Machine) bool {
	own, has := machine.Annotations[v1alpha1.AnnotationKeyUpdateStrategy]
	return has && own != string(Update)
}

// waitingOrNew is the stage of a Machine that does not run. One without a VM loses nothing by a replacement.
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

// Unasked returns the Machines whose drivers are to be asked now.
func (p *Pool) Unasked() []*v1alpha1.Machine { return p.at(unasked) }

// Forgotten returns the Machines that are asked about another class, since the template went back.
func (p *Pool) Forgotten() []*v1alpha1.Machine {
	return slices.DeleteFunc(p.at(over), func(machine *v1alpha1.Machine) bool { return Asked(machine) == "" })
}

// Followers returns the Machines that get the class now.
func (p *Pool) Followers() []*v1alpha1.Machine {
	if p == nil || !p.taken() || p.dryRun {
		return nil
	}
	return p.at(updatable)
}

// TakesOver reports whether the set takes the class over now: all drivers have answered, and at least one VM needs no
// replacement.
func (p *Pool) TakesOver() bool {
	return p != nil && !p.taken() && !p.dryRun && len(p.at(unasked, asked)) == 0 && len(p.at(updatable, following, over)) > 0
}

// Holds reports whether the rollout waits: it is not known yet how many Machines are replaced, or this is a dry run.
func (p *Pool) Holds() bool {
	return p != nil && !p.taken() && (p.dryRun || p.TakesOver() || len(p.at(unasked, asked)) > 0)
}

// DryRun reports whether nothing is changed but what the Machines say.
func (p *Pool) DryRun() bool { return p != nil && p.dryRun && !p.taken() }

// Left returns how many Machines do not have the class of their set yet, or are being updated to it, without those that
// stay since they are preserved.
func (p *Pool) Left() int32 {
	if p == nil || !p.taken() {
		return 0
	}
	return int32(len(p.at(following, waiting, unasked, asked, updatable)) + len(p.unpreserved(p.at(replaceable))))
}

// unpreserved returns the Machines that are not preserved.
func (p *Pool) unpreserved(machines []*v1alpha1.Machine) []*v1alpha1.Machine {
	return slices.DeleteFunc(machines, func(machine *v1alpha1.Machine) bool { return preservation.Active(machine, p.now) })
}

// Rest returns the Machines that have to be replaced, in the order in which they go: those that do not run, then those
// in excess, and the oldest. Preserved ones stay.
func (p *Pool) Rest() []*v1alpha1.Machine {
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

// Replacements are the next step of replacing the rest.
type Replacements struct {
	// Replicas of the set.
	Replicas int32
	// Leaving are the Machines that it loses.
	Leaving []*v1alpha1.Machine
}

// Next returns the next step of replacing the rest, whose set is settled. As many Machines are wanted; there may be
// surge more, and unavailable fewer that are available.
func (p *Pool) Next(wanted, surge, unavailable int32) Replacements {
	rest := p.Rest()
	desired := counts.Desired(p.Set)
	spare := counts.Available(p.Set) - max(0, wanted-unavailable)
	step := Replacements{Replicas: max(desired, min(wanted+surge, wanted+int32(len(rest))))}
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
		step.Replicas = max(0, desired-n)
	}
	return step
}

// Says returns how many Machines are how far.
func (p *Pool) Says() string {
	replaceable := p.at(replaceable)
	rest := p.unpreserved(slices.Clone(replaceable))
	parts := []struct {
		count int
		words string
	}{
		{len(p.at(over)), "done"},
		{len(p.at(following)), "being updated"},
		{len(p.at(updatable)), "to be updated"},
		{len(rest), "to be replaced"},
		{len(replaceable) - len(rest), "preserved as before"},
		{len(p.at(waiting)), "not running"},
		{len(p.at(unasked, asked)), "without an answer of the driver"},
	}
	total, text := 0, ""
	for _, part := range parts {
		if part.count > 0 {
			total += part.count
			text += fmt.Sprintf(", %d %s", part.count, part.words)
		}
	}
	return fmt.Sprintf("of %s for class %q%s", messages.Machines(total), p.class(), text)
}

// Describe says what becomes of a Machine, such as "updates (tags)".
func (p *Pool) Describe(machine *v1alpha1.Machine) string {
	switch at := p.stageOf(machine); {
	case at == over:
		return "nothing"
	case at == following:
		return "is being updated"
	case at == waiting:
		return "not known: it does not run"
	case at == unasked, at == asked:
		return "not known: its driver has not answered"
	case at == replaceable && preservation.Active(machine, p.now):
		return "nothing (it is preserved)"
	case at == replaceable && excepted(machine):
		return fmt.Sprintf("replaces (its own update strategy is %q)", machine.Annotations[v1alpha1.AnnotationKeyUpdateStrategy])
	case at == replaceable && !counts.Usable(machine):
		return "replaces (it has no VM)"
	}
	return Read(machine.Annotations).Plan.Says()
}

// Ask makes a Machine say that its driver is to be asked about the class.
func (p *Pool) Ask(machine *v1alpha1.Machine) {
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyUpdateClass, p.class())
}

// Forget takes that back.
func (p *Pool) Forget(machine *v1alpha1.Machine) {
	delete(machine.Annotations, v1alpha1.AnnotationKeyUpdateClass)
}

// Follow gives a Machine the class. Its choices are those of its set from then on.
func (p *Pool) Follow(machine *v1alpha1.Machine) {
	machine.Spec.Class = p.Set.Spec.Template.Spec.Class
	if text := scarcity.Text(p.Set); text != "" {
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyClassChoices, text)
	} else {
		delete(machine.Annotations, v1alpha1.AnnotationKeyClassChoices)
	}
}

// TakeOver gives the set the class of the deployment.
func (p *Pool) TakeOver(set *v1alpha1.MachineSet) {
	set.Spec.Template.Spec.Class = p.deployment.Spec.Template.Spec.Class
}
