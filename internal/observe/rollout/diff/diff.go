// Package diff predicts what a change of a MachineDeployment or a MachineClass does to Machines.
package diff

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	rules "github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Effect is what the change of a field does to Machines.
type Effect int

// The effects.
const (
	// Replaces means that the template changes: Machines are replaced, or their nodes are updated in
	// place.
	Replaces Effect = iota
	// Updates means that existing Machines and their nodes are kept and changed.
	Updates
	// Scales means that the number of Machines changes.
	Scales
	// Keeps means that Machines are not affected.
	Keeps

	effects
)

// Diff is what a change does to the Machines of a deployment.
type Diff struct {
	// Changes are the fields that differ, by effect.
	Changes [effects][]Change
	// Verdict contains sentences about what happens to the Machines.
	Verdict []string
}

// OfDeployment returns what happens to the Machines if the deployment is changed to desired. The
// facts describe the deployment as it is. If both are equal, the result is the remaining work of
// the current rollout.
func OfDeployment(f rollout.Facts, desired *v1alpha1.MachineDeployment, now time.Time) (Diff, error) {
	is, err := content(f.Deployment)
	if err != nil {
		return Diff{}, err
	}
	becomes, err := content(desired)
	if err != nil {
		return Diff{}, err
	}
	changes := changesOf("", is, becomes)
	then := f
	then.Deployment = desired
	if len(changes) == 0 {
		if changes, err = unreleased(f); err != nil {
			return Diff{}, err
		}
	}
	d := Diff{}
	for _, change := range changes {
		effect := effectOf(change.Path)
		d.Changes[effect] = append(d.Changes[effect], change)
	}
	d.Verdict = verdict(f, then, now)
	return d, nil
}

// unreleased returns how the template of a deployment differs from that of its newest set, if no
// set has the template yet.
func unreleased(f rollout.Facts) ([]Change, error) {
	sets := revision.Sorted(f.Sets)
	if len(sets) == 0 || f.Current() != nil {
		return nil, nil
	}
	last := f.Deployment.DeepCopy()
	last.Spec.Template = *sets[len(sets)-1].Spec.Template.DeepCopy()
	delete(last.Spec.Template.Labels, v1alpha1.DefaultMachineDeploymentUniqueLabelKey)
	is, err := content(last)
	if err != nil {
		return nil, err
	}
	becomes, err := content(f.Deployment)
	return changesOf("", is, becomes), err
}

// OfClass returns what happens to the Machines of a namespace if a class is changed to desired.
func OfClass(is, desired *v1alpha1.MachineClass, machines []v1alpha1.Machine) (Diff, error) {
	before, err := content(is)
	if err != nil {
		return Diff{}, err
	}
	after, err := content(desired)
	if err != nil {
		return Diff{}, err
	}
	d := Diff{}
	for _, change := range changesOf("", before, after) {
		effect := Keeps
		if strings.HasPrefix(change.Path, "nodeTemplate.virtualCapacity") {
			effect = Updates
		}
		d.Changes[effect] = append(d.Changes[effect], change)
	}
	used := int32(0)
	for i := range machines {
		if machines[i].Spec.Class.Name == is.Name && machines[i].DeletionTimestamp.IsZero() {
			used++
		}
	}
	switch {
	case d.Same():
		d.Verdict = []string{"Nothing changes."}
	case used == 0:
		d.Verdict = []string{"No machine uses this class."}
	case updates(desired, machines):
		d.Verdict = []string{
			fmt.Sprintf("Existing VMs (%s) are updated as far as their driver supports it, because of the annotation %s. New VMs use the changed class.", messages.Machines(used), v1alpha1.AnnotationKeyUpdateStrategy),
			fmt.Sprintf(`To preview the updates, apply the class with the annotation set to %q, and run "millwright rollout diff NAME".`, liveupdate.DryRun),
		}
	default:
		d.Verdict = []string{
			fmt.Sprintf("Existing VMs (%s) are not changed. New VMs use the changed class.", messages.Machines(used)),
			`To replace existing VMs, run "millwright rollout restart NAME" for their deployments.`,
		}
	}
	return d, nil
}

// updates reports whether existing VMs are updated to the desired class.
func updates(desired *v1alpha1.MachineClass, machines []v1alpha1.Machine) bool {
	return slices.ContainsFunc(machines, func(machine v1alpha1.Machine) bool {
		strategy, _ := liveupdate.Of(&machine, desired)
		return machine.Spec.Class.Name == desired.Name && strategy == liveupdate.Update
	})
}

// Same reports whether nothing differs.
func (d Diff) Same() bool {
	return !slices.ContainsFunc(d.Changes[:], func(changes []Change) bool { return len(changes) > 0 })
}

// headings are printed above the changes of each effect.
var headings = [effects]string{
	Replaces: "Machines are replaced, or updated in place, for:",
	Updates:  "Machines and their nodes are updated without replacement for:",
	Scales:   "The number of machines changes for:",
	Keeps:    "Machines are not changed for:",
}

// Lines returns the diff as text.
func (d Diff) Lines() []string {
	var lines []string
	for effect, changes := range d.Changes {
		if len(changes) == 0 {
			continue
		}
		lines = append(lines, headings[effect])
		for _, change := range changes {
			lines = append(lines, fmt.Sprintf("  %s: %s -> %s", change.Path, cmp.Or(change.From, "(none)"), cmp.Or(change.To, "(none)")))
		}
	}
	if len(lines) > 0 {
		lines = append(lines, "")
	}
	lines = append(lines, d.Verdict...)
	for i := range lines {
		lines[i] = messages.Line(lines[i])
	}
	return lines
}

// content returns what users declare in an object, without what the API server, the controllers and
// kubectl add.
func content(object any) (map[string]any, error) {
	all, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("comparing: %w", err)
	}
	delete(all, "status")
	delete(all, "apiVersion")
	delete(all, "kind")
	metadata, _ := all["metadata"].(map[string]any)
	kept := map[string]any{}
	if labels, ok := metadata["labels"]; ok {
		kept["labels"] = labels
	}
	annotations, _ := metadata["annotations"].(map[string]any)
	annotations = maps.Clone(annotations)
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	delete(annotations, v1alpha1.AnnotationKeyRevision)
	if len(annotations) > 0 {
		kept["annotations"] = annotations
	}
	all["metadata"] = kept
	return all, nil
}

// replacing lists the parts of the template that make up the Essence of a revision. All other parts
// are copied to existing Machines.
var replacing = []string{"metadata", "spec.class.name", "spec.class.apiGroup", "spec.providerID"}

// effectOf returns what changing a field of a deployment does to Machines.
func effectOf(path string) Effect {
	inTemplate, isTemplate := strings.CutPrefix(path, "spec.template.")
	within := func(of string) bool {
		rest, ok := strings.CutPrefix(inTemplate, of)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
	}
	switch {
	case path == "spec.replicas", path == "spec.excessReplicas", path == below("metadata.annotations", v1alpha1.AnnotationKeyExcessReplicas):
		return Scales
	case !isTemplate:
		return Keeps
	case slices.ContainsFunc(replacing, within):
		return Replaces
	}
	return Updates
}

func verdict(f, then rollout.Facts, now time.Time) []string {
	d := then.Deployment
	if problem := rules.Invalid(d, then.Sets); problem != "" {
		return []string{"The manager does not act until the spec is corrected: " + problem + "."}
	}
	sentences := append(replaced(f, then, now), scaled(f.Deployment, d)...)
	if d.Spec.Paused {
		sentences = append(sentences, "The deployment is paused: no machine is replaced or updated until it is resumed.")
	}
	return sentences
}

// replaced describes which Machines are replaced, by which revision, and in which steps.
func replaced(f, then rollout.Facts, now time.Time) []string {
	d, current := then.Deployment, then.Current()
	old := rollout.StatusOf(then, now)
	count := old.Old() - old.Preserved
	change := then.ClassChange(now)
	switch {
	case change.DryRun():
		return []string{"No machine is replaced and no VM is updated (dry run): " + change.Summary() + "."}
	case change.Holds():
		return []string{fmt.Sprintf("Machines whose VMs can be updated stay and get the new class. The others are replaced, %s. Known so far: %s.", steps(d), change.Summary())}
	case change.Left() > 0:
		return []string{fmt.Sprintf("Machine set %s has the class: %s, %s.", change.Set.Name, change.Summary(), steps(d))}
	case count <= 0 && current == f.Current():
		return []string{"No machine is replaced."}
	case count <= 0:
		return []string{"No machine needs to be replaced. " + arrival(current)}
	case d.Spec.Strategy.Type == v1alpha1.InPlaceUpdateMachineDeploymentStrategyType:
		return []string{fmt.Sprintf("The nodes of %s are updated in place, %s. %s", messages.Machines(count), steps(d), arrival(current))}
	}
	return []string{fmt.Sprintf("%s %s replaced, %s. %s", messages.Machines(count), messages.Are(count), steps(d), arrival(current))}
}

// arrival describes which revision becomes the current one.
func arrival(current *v1alpha1.MachineSet) string {
	if current == nil {
		return "A new revision is created."
	}
	return fmt.Sprintf("Revision %d (machine set %s) then becomes current.", revision.Number(current), current.Name)
}

// steps describes how many Machines are replaced or updated at the same time.
func steps(d *v1alpha1.MachineDeployment) string {
	switch {
	case d.Spec.Strategy.Type == v1alpha1.RecreateMachineDeploymentStrategyType:
		return "all at the same time, after the old ones are deleted (Recreate)"
	case d.Spec.Strategy.Type == v1alpha1.InPlaceUpdateMachineDeploymentStrategyType && inplaceupdate.Manual(d):
		return "if selected by the label " + v1alpha1.LabelKeyNodeSelectedForUpdate
	}
	surge, unavailable := rules.Bounds(d)
	return fmt.Sprintf("with at most %d more (maxSurge) and %d fewer (maxUnavailable) than the %d desired", surge, unavailable, reserve.Desired(d))
}

// scaled describes how many Machines are created or deleted because the number of replicas changes.
func scaled(from, to *v1alpha1.MachineDeployment) []string {
	switch before, after := reserve.Desired(from), reserve.Desired(to); {
	case after > before:
		return []string{fmt.Sprintf("%s %s created: %d instead of %d.", messages.Machines(after-before), messages.Are(after-before), after, before)}
	case after < before:
		return []string{fmt.Sprintf("%s %s deleted: %d of %d stay.", messages.Machines(before-after), messages.Are(before-after), after, before)}
	}
	return nil
}
