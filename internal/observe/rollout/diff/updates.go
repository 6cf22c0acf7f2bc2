package diff

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Noted reports whether a Machine has annotations about the update of its VM.
func Noted(machine *v1alpha1.Machine) bool {
	state := liveupdate.Read(machine.Annotations)
	return state.Made != nil || state.Plan != nil
}

// OfVMs describes, for each Machine of a class, what is needed to make its VM match the class, as
// far as the drivers have reported it. It returns no lines if no Machine has an update strategy.
func OfVMs(class *v1alpha1.MachineClass, machines []*v1alpha1.Machine) []string {
	var lines, problems []string
	asked, dry, replaces := false, false, false
	machines = slices.SortedFunc(slices.Values(machines), func(a, b *v1alpha1.Machine) int { return cmp.Compare(a.Name, b.Name) })
	for _, machine := range machines {
		if machine.Spec.Class.Name != class.Name || !machine.DeletionTimestamp.IsZero() {
			continue
		}
		strategy, wrong := liveupdate.Of(machine, class)
		if wrong != "" && !slices.Contains(problems, wrong) {
			problems = append(problems, wrong)
		}
		asked = asked || strategy != liveupdate.Keep
		dry = dry || strategy == liveupdate.DryRun
		effect := liveupdate.Read(machine.Annotations).Effect(class)
		replaces = replaces || effect == liveupdate.Replaces
		lines = append(lines, fmt.Sprintf("  %s: %s", machine.Name, of(machine, strategy, effect)))
	}
	switch {
	case len(problems) > 0:
		lines = append(lines, "", "VMs are not updated: "+strings.Join(problems, "; "))
	case !asked:
		return nil
	}
	if dry {
		lines = append(lines, "", fmt.Sprintf("This is a dry run. To make the changes, set the annotation %s of the class to %q.", v1alpha1.AnnotationKeyUpdateStrategy, liveupdate.Update))
	}
	if replaces {
		lines = append(lines, "", `VMs that need a replacement stay until you replace them with "millwright rollout restart NAME" (add --machine to replace only one).`)
	}
	for i := range lines {
		lines[i] = messages.Line(lines[i])
	}
	return lines
}

// of describes what an update does to a Machine.
func of(machine *v1alpha1.Machine, strategy liveupdate.Strategy, effect liveupdate.Effect) string {
	plan := liveupdate.Read(machine.Annotations).Plan
	switch {
	case strategy == liveupdate.Keep:
		return "nothing (it has no update strategy)"
	case effect == liveupdate.Replaces, effect == liveupdate.Updates:
		return plan.Summary()
	case effect == liveupdate.None:
		return "nothing"
	}
	return "unknown: waiting for the driver"
}

// OfClassChange describes what happens to each Machine during a change of class. It returns no
// lines if no change is in progress.
func OfClassChange(change *liveupdate.Pool) []string {
	if !change.Holds() && change.Left() == 0 {
		return nil
	}
	var lines []string
	for _, machine := range change.Active() {
		lines = append(lines, messages.Line(fmt.Sprintf("  %s: %s", machine.Name, change.Describe(machine))))
	}
	return lines
}
