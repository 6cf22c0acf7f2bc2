// Package classchange decides how Machines get another class without being replaced.
//
// The template of a MachineDeployment names another class than the Machines have. Their drivers are asked what an update
// to it would change. If some VMs need no replacement, the set with all Machines takes the new class over, and
// its Machines follow, one after another becoming as the class says; only the rest is replaced. It is pure; the
// planner of the deployment makes operations of the answers.
package classchange

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
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Change is a change of the class of a deployment's Machines, or what is left of one. It is read-only. Nil is no
// change: its methods say that nothing is to be done.
type Change struct {
	// Set has all Machines of the deployment.
	Set *v1alpha1.MachineSet
	// Machines of the set.
	Machines []*v1alpha1.Machine

	deployment *v1alpha1.MachineDeployment
	dryRun     bool
	now        time.Time
}

// Find returns the change of a deployment that has an update strategy; nil if its template is to be rolled out as
// ever. Current is the set of the template, nil if there is none; old are the others. The Machines are the caller's to
// fill in.
func Find(deployment *v1alpha1.MachineDeployment, current *v1alpha1.MachineSet, old []*v1alpha1.MachineSet, now time.Time) *Change {
	strategy, _ := liveupdate.Parse(deployment.Annotations)
	rolling := cmp.Or(deployment.Spec.Strategy.Type, v1alpha1.RollingUpdateMachineDeploymentStrategyType)
	if strategy == liveupdate.Keep || rolling != v1alpha1.RollingUpdateMachineDeploymentStrategyType || deployment.Spec.Paused {
		return nil
	}
	c := &Change{deployment: deployment, dryRun: strategy == liveupdate.DryRun, now: now, Set: current}
	for _, set := range old {
		switch {
		case !used(set):
		case c.Set != nil && used(c.Set):
			return nil // a rollout is under way
		default:
			c.Set = set
		}
	}
	if c.Set == nil || !used(c.Set) || !c.Set.DeletionTimestamp.IsZero() || !c.sameButForTheClass() {
		return nil
	}
	return c
}

// used reports whether a set has Machines, or may have some that it did not report yet.
func used(set *v1alpha1.MachineSet) bool { return counts.Existing(set) > 0 || !counts.Settled(set) }

// sameButForTheClass reports whether the templates of deployment and set differ in the name of the class alone.
func (c *Change) sameButForTheClass() bool {
	template := c.deployment.Spec.Template.DeepCopy()
	template.Spec.Class.Name = c.Set.Spec.Template.Spec.Class.Name
	kind := func(template *v1alpha1.MachineTemplateSpec) string { return template.Spec.Class.Kind }
	return revision.Same(template, &c.Set.Spec.Template) && kind(template) == v1alpha1.MachineClassKind && kind(&c.Set.Spec.Template) == v1alpha1.MachineClassKind
}

// class is the name of the wanted class.
func (c *Change) class() string { return c.deployment.Spec.Template.Spec.Class.Name }

// taken reports whether the set has taken the class over.
func (c *Change) taken() bool { return c.Set.Spec.Template.Spec.Class.Name == c.class() }

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

func (c *Change) stageOf(machine *v1alpha1.Machine) stage {
	_, fellBack := machine.Annotations[v1alpha1.AnnotationKeyClassReason]
	subject := liveupdate.Asked(machine)
	switch {
	case machine.Spec.Class.Name == c.class() && subject == c.class():
		return following
	case machine.Spec.Class.Name == c.class() || fellBack:
		return over
	case excepted(machine):
		return replaceable
	case !scale.Available(machine):
		return waitingOrNew(machine)
	case subject != c.class():
		return unasked
	}
	switch liveupdate.Read(machine.Annotations).EffectOn(c.class()) {
	case liveupdate.Undecided:
		return asked
	case liveupdate.Replaces:
		return replaceable
	}
	return updatable
}

// excepted reports whether a Machine has an update strategy of its own by which its VM is not updated.
func excepted(machine *v1alpha1.Machine) bool {
	own, has := machine.Annotations[v1alpha1.AnnotationKeyUpdateStrategy]
	return has && own != string(liveupdate.Update)
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
func (c *Change) Active() []*v1alpha1.Machine {
	if c == nil {
		return nil
	}
	active := slices.DeleteFunc(slices.Clone(c.Machines), func(machine *v1alpha1.Machine) bool { return !scale.Active(machine) })
	slices.SortFunc(active, func(a, b *v1alpha1.Machine) int { return cmp.Compare(a.Name, b.Name) })
	return active
}

// at returns the Machines at one of the stages, sorted by name.
func (c *Change) at(stages ...stage) []*v1alpha1.Machine {
	return slices.DeleteFunc(c.Active(), func(machine *v1alpha1.Machine) bool { return !slices.Contains(stages, c.stageOf(machine)) })
}

// Unasked returns the Machines whose drivers are to be asked now.
func (c *Change) Unasked() []*v1alpha1.Machine { return c.at(unasked) }

// Forgotten returns the Machines that are asked about another class, since the template went back.
func (c *Change) Forgotten() []*v1alpha1.Machine {
	return slices.DeleteFunc(c.at(over), func(machine *v1alpha1.Machine) bool { return liveupdate.Asked(machine) == "" })
}

// Followers returns the Machines that get the class now.
func (c *Change) Followers() []*v1alpha1.Machine {
	if c == nil || !c.taken() || c.dryRun {
		return nil
	}
	return c.at(updatable)
}

// TakesOver reports whether the set takes the class over now: all drivers have answered, and at least one VM needs no
// replacement.
func (c *Change) TakesOver() bool {
	return c != nil && !c.taken() && !c.dryRun && len(c.at(unasked, asked)) == 0 && len(c.at(updatable, following, over)) > 0
}

// Holds reports whether the rollout waits: it is not known yet how many Machines are replaced, or this is a dry run.
func (c *Change) Holds() bool {
	return c != nil && !c.taken() && (c.dryRun || c.TakesOver() || len(c.at(unasked, asked)) > 0)
}

// DryRun reports whether nothing is changed but what the Machines say.
func (c *Change) DryRun() bool { return c != nil && c.dryRun && !c.taken() }

// Left returns how many Machines do not have the class of their set yet, or are being updated to it, without those that
// stay since they are preserved.
func (c *Change) Left() int32 {
	if c == nil || !c.taken() {
		return 0
	}
	return int32(len(c.at(following, waiting, unasked, asked, updatable)) + len(c.unpreserved(c.at(replaceable))))
}

// unpreserved returns the Machines that are not preserved.
func (c *Change) unpreserved(machines []*v1alpha1.Machine) []*v1alpha1.Machine {
	return slices.DeleteFunc(machines, func(machine *v1alpha1.Machine) bool { return preservation.Active(machine, c.now) })
}

// Rest returns the Machines that have to be replaced, in the order in which they go: those that do not run, then those
// in excess, and the oldest. Preserved ones stay.
func (c *Change) Rest() []*v1alpha1.Machine {
	if c == nil || !c.taken() || c.dryRun {
		return nil
	}
	rest := c.unpreserved(c.at(replaceable))
	slices.SortStableFunc(rest, func(a, b *v1alpha1.Machine) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time))
	})
	return rest
}

func rank(machine *v1alpha1.Machine) int {
	switch {
	case !scale.Available(machine):
		return 0
	case reserve.In(&machine.Spec):
		return 1
	}
	return 2
}

// Step is the next step of replacing the rest.
type Step struct {
	// Replicas of the set.
	Replicas int32
	// Leaving are the Machines that it loses.
	Leaving []*v1alpha1.Machine
}

// Next returns the next step of replacing the rest, whose set is settled. As many Machines are wanted; there may be
// surge more, and unavailable fewer that are available.
func (c *Change) Next(wanted, surge, unavailable int32) Step {
	rest := c.Rest()
	desired := counts.Desired(c.Set)
	spare := counts.Available(c.Set) - max(0, wanted-unavailable)
	step := Step{Replicas: max(desired, min(wanted+surge, wanted+int32(len(rest))))}
	for _, machine := range rest {
		if scale.Available(machine) {
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
func (c *Change) Says() string {
	replaceable := c.at(replaceable)
	rest := c.unpreserved(slices.Clone(replaceable))
	parts := []struct {
		count int
		words string
	}{
		{len(c.at(over)), "done"},
		{len(c.at(following)), "being updated"},
		{len(c.at(updatable)), "to be updated"},
		{len(rest), "to be replaced"},
		{len(replaceable) - len(rest), "preserved as before"},
		{len(c.at(waiting)), "not running"},
		{len(c.at(unasked, asked)), "without an answer of the driver"},
	}
	total, text := 0, ""
	for _, part := range parts {
		if part.count > 0 {
			total += part.count
			text += fmt.Sprintf(", %d %s", part.count, part.words)
		}
	}
	return fmt.Sprintf("of %s for class %q%s", messages.Machines(total), c.class(), text)
}

// Describe says what becomes of a Machine, such as "updates (tags)".
func (c *Change) Describe(machine *v1alpha1.Machine) string {
	switch at := c.stageOf(machine); {
	case at == over:
		return "nothing"
	case at == following:
		return "is being updated"
	case at == waiting:
		return "not known: it does not run"
	case at == unasked, at == asked:
		return "not known: its driver has not answered"
	case at == replaceable && preservation.Active(machine, c.now):
		return "nothing (it is preserved)"
	case at == replaceable && excepted(machine):
		return fmt.Sprintf("replaces (its own update strategy is %q)", machine.Annotations[v1alpha1.AnnotationKeyUpdateStrategy])
	case at == replaceable && !scale.Available(machine):
		return "replaces (it has no VM)"
	}
	return liveupdate.Read(machine.Annotations).Plan.Says()
}

// Ask has the driver of a Machine asked about the class.
func (c *Change) Ask(machine *v1alpha1.Machine) {
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyUpdateClass, c.class())
}

// Forget ends that.
func (c *Change) Forget(machine *v1alpha1.Machine) {
	delete(machine.Annotations, v1alpha1.AnnotationKeyUpdateClass)
}

// Follow gives a Machine the class. Its choices are those of its set from then on.
func (c *Change) Follow(machine *v1alpha1.Machine) {
	machine.Spec.Class = c.Set.Spec.Template.Spec.Class
	if text := scarcity.Text(c.Set); text != "" {
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyClassChoices, text)
	} else {
		delete(machine.Annotations, v1alpha1.AnnotationKeyClassChoices)
	}
}

// Retire has the set of a Machine delete it before others.
func (c *Change) Retire(machine *v1alpha1.Machine) {
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyMachinePriority, first)
}

// Retired reports whether that was done.
func Retired(machine *v1alpha1.Machine) bool {
	return machine.Annotations[v1alpha1.AnnotationKeyMachinePriority] == first
}

// first is the priority of the Machines that are deleted first.
const first = "1"

// TakeOver gives the set the class of the deployment.
func (c *Change) TakeOver(set *v1alpha1.MachineSet) {
	set.Spec.Template.Spec.Class = c.deployment.Spec.Template.Spec.Class
}
