package rollout

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/wording"
)

// mostMachines is how many machines that are going are named.
const mostMachines = 3

// waits says what a rollout waits for: first what holds up the whole of it, then what its
// machines say.
func waits(f Facts, s Status) []Wait {
	var found []Wait
	add := func(is bool, format string, args ...any) {
		if is {
			found = append(found, Wait{Text: sentence(format, args...)})
		}
	}
	d := f.Deployment
	add(f.Problem != "", "the API server does not answer, so this may be old: %s", f.Problem)
	add(!d.DeletionTimestamp.IsZero(), "the deployment is being deleted")
	refused := progressing(d).Reason == reasonInvalid
	add(!s.Observed && !refused, "the manager has not looked at the last change of the deployment yet")
	add(d.Spec.Paused, "the deployment is paused: machines are replaced when it is resumed")
	add(d.Spec.RollbackTo != nil, "%s", wished(d))
	found = append(found, said(d)...)
	// What is wrong counts as not observed, so whether the manager has looked cannot be told.
	add(!s.Observed && refused, "the manager has done nothing about the last change of the deployment")
	found = append(found, failing(f)...)
	return append(found, going(f)...)
}

// wished says what became of a wish to roll back that is not answered.
func wished(d *v1alpha1.MachineDeployment) string {
	if d.Spec.RollbackTo == nil {
		return ""
	}
	if d.Spec.RollbackTo.Revision == 0 {
		return "the manager has not answered the wish to roll back to the revision before yet"
	}
	return fmt.Sprintf("the manager has not answered the wish to roll back to revision %d yet", d.Spec.RollbackTo.Revision)
}

// said is what the conditions of a deployment complain of.
func said(d *v1alpha1.MachineDeployment) []Wait {
	var found []Wait
	for _, is := range d.Status.Conditions {
		bad := is.Status == v1alpha1.ConditionTrue
		switch is.Type {
		case v1alpha1.MachineDeploymentProgressing: // that it is late is not why it is late
			bad = is.Status == v1alpha1.ConditionFalse && is.Reason != reasonTimedOut
		case v1alpha1.MachineDeploymentAvailable: // the numbers tell
			bad = false
		}
		if bad {
			found = append(found, Wait{Text: sentence("%s", cmp.Or(is.Message, is.Reason)), Since: is.LastTransitionTime.Time})
		}
	}
	return found
}

// failing says how many machines fail, and what the newest failure is.
func failing(f Facts) []Wait {
	var newest *v1alpha1.Machine
	count := 0
	for _, set := range f.Sets {
		for _, machine := range f.Machines[set.UID] {
			if !fails(machine) {
				continue
			}
			count++
			if newest == nil || newest.Status.LastOperation.LastUpdateTime.Before(&machine.Status.LastOperation.LastUpdateTime) {
				newest = machine
			}
		}
	}
	if newest == nil {
		return nil
	}
	text := sentence("machine %s (%s): %s", newest.Name, phaseOf(newest), failure(newest))
	if count > 1 {
		text = fmt.Sprintf("%d machines fail, the last of them %s", count, text)
	}
	return []Wait{{Text: text, Since: newest.Status.LastOperation.LastUpdateTime.Time}}
}

func fails(machine *v1alpha1.Machine) bool {
	return machine.Status.LastOperation.State == v1alpha1.MachineStateFailed ||
		slices.Contains([]string{string(v1alpha1.MachineUnknown), string(v1alpha1.MachineFailed), string(v1alpha1.MachineCrashLoopBackOff)}, phaseOf(machine))
}

// sayNext are sentences at the end of a description that tell MCM which step is next.
var sayNext = []string{
	wording.Terminating, wording.Drain, wording.DeleteAttachments, wording.DeleteVM, wording.DeleteNode, wording.RemoveFinalizer,
	wording.Initialize,
}

// failure is what went wrong with a machine. The error of a driver is taken out of what
// the manager says around it.
func failure(machine *v1alpha1.Machine) string {
	last := machine.Status.LastOperation
	text := withoutNext(last.Description)
	for _, prefix := range []string{wording.Provider, wording.ProviderError} {
		text = strings.TrimPrefix(text, prefix)
	}
	code := last.ErrorCode
	if parsed, ok := status.FromError(errors.New(strings.TrimSuffix(text, "."))); ok {
		text, code = parsed.Message(), cmp.Or(code, parsed.Code().String())
	}
	if text == "" {
		return "it does not say why"
	}
	if code != "" {
		text = fmt.Sprintf("%s (%s)", sentence("%s", text), code)
	}
	return text
}

// withoutNext is a description without the sentence on what is next, unless it says nothing
// else.
func withoutNext(description string) string {
	for _, next := range sayNext {
		if rest := strings.TrimSpace(strings.TrimSuffix(description, next)); rest != "" && rest != description {
			return rest
		}
	}
	return description
}

// going says what the machines do that are being deleted: first those that are longest.
func going(f Facts) []Wait {
	var leaving []*v1alpha1.Machine
	for _, set := range f.Sets {
		for _, machine := range f.Machines[set.UID] {
			if !machine.DeletionTimestamp.IsZero() && !fails(machine) {
				leaving = append(leaving, machine)
			}
		}
	}
	slices.SortStableFunc(leaving, func(a, b *v1alpha1.Machine) int { return a.DeletionTimestamp.Compare(b.DeletionTimestamp.Time) })
	var found []Wait
	for _, machine := range leaving[:min(mostMachines, len(leaving))] {
		found = append(found, Wait{Text: sentence("machine %s is being deleted: %s", machine.Name, doing(machine)), Since: machine.DeletionTimestamp.Time})
	}
	if more := len(leaving) - mostMachines; more > 0 {
		found = append(found, Wait{Text: fmt.Sprintf("%d more machines are being deleted", more)})
	}
	return found
}

// doing is how far the deletion of a machine is. Until the manager has begun with it, the last
// operation is one of its life.
func doing(machine *v1alpha1.Machine) string {
	const nothing = "the manager has not begun with it"
	last := machine.Status.LastOperation
	if last.Type != v1alpha1.MachineOperationDelete {
		return nothing
	}
	return cmp.Or(withoutNext(last.Description), nothing)
}

// sentence is a text in one line without its full stop.
func sentence(format string, args ...any) string {
	return strings.TrimSuffix(strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "), ".")
}
