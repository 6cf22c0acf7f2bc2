package explain

import (
	"strings"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
)

// liveUpdate adds how the VM of a Machine that is in use differs from its class, if an update strategy is set.
func (e *explainer) liveUpdate() {
	if e.Class == nil {
		return
	}
	strategy, wrong := liveupdate.Of(e.Machine, e.Class)
	if wrong != "" {
		e.Why(strategyBad, "", time.Time{}, "{text}", wrong)
		return
	}
	state := liveupdate.Read(e.Machine.Annotations)
	step, _ := state.Next(e.Class, strategy)
	what := []string{"{annotation}", v1alpha1.AnnotationKeyUpdateStrategy, "{what}"}
	switch effect := state.Effect(e.Class); {
	case strategy == liveupdate.Keep:
	case effect == liveupdate.Replaces:
		e.Why(vmToReplace, "", time.Time{}, append(what, strings.Join(state.Plan.Replacements, ", "))...)
	case strategy == liveupdate.DryRun && effect == liveupdate.Updates:
		e.Why(vmUpdatable, "", time.Time{}, append(what, strings.Join(state.Plan.Updates, ", "))...)
	case step == liveupdate.Ask:
		e.Why(vmToUpdate, "", time.Time{}, "{what}", ": its driver has not reported the changes yet", "{text}", e.updateFailure())
	case step == liveupdate.Change:
		e.Why(vmToUpdate, "", time.Time{}, "{what}", ": "+strings.Join(state.Plan.Updates, ", "), "{text}", e.updateFailure())
	}
}

// updateFailure returns why the update fails if that is the manager's last message, and an empty string otherwise.
func (e *explainer) updateFailure() string {
	if e.last.Type != v1alpha1.MachineOperationUpdate || e.last.State != v1alpha1.MachineStateProcessing {
		return ""
	}
	return ". The manager reports: " + e.last.Description
}
