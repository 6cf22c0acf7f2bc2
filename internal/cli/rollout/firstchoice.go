package rollout

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/rollout/change"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// toFirstChoice replaces the machines whose class is not their first choice. It replaces one machine at a time, each
// after a machine of a preferred class is available, and stops when a new machine does not have a preferred class.
func (r replacement) toFirstChoice(ctx context.Context, cmd *cobra.Command, d deployment, facts rollout.Facts) error {
	all := fallenBack(facts)
	if len(all) == 0 {
		return r.print(cmd, facts.Deployment, "unchanged: all machines have the class of their first choice")
	}
	for i, machine := range all {
		plan, err := change.Replace(facts, machine.Name, time.Now())
		switch {
		case err != nil:
			return err
		case !plan.First:
			return fmt.Errorf("cannot replace machines of machine deployment %s: its strategy does not allow additional machines, so each machine would be deleted before the capacity for a new one is known; increase maxSurge, or use --machine", d.key)
		case r.dry.On():
			if err := r.try(ctx, d, plan); err != nil {
				return err
			}
			if err := r.report(cmd, d, "machine %s of class %s would be replaced by one of class %s", machine.Name, machine.Spec.Class.Name, scarcity.OfMachine(machine)[0]); err != nil {
				return err
			}
			continue
		}
		r.machine = machine.Name
		if err := r.improve(ctx, cmd, d, plan, facts); err != nil {
			return fmt.Errorf("%w; %d of %s replaced", err, i, messages.Machines(len(all)))
		}
		if facts, err = rollout.Read(ctx, d.Client, d.key); err != nil {
			return err
		}
	}
	if r.format.IsText() {
		return nil
	}
	return r.print(cmd, facts.Deployment, "")
}

// report prints a line of progress.
func (r replacement) report(cmd *cobra.Command, d deployment, format string, values ...any) error {
	if !r.format.IsText() {
		return nil
	}
	return r.print(cmd, &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Name: d.key.Name}}, fmt.Sprintf(format, values...))
}

// improve replaces a machine by one of a preferred class. If the new machine does not have a preferred class, improve
// deletes the new machine and returns an error.
func (r replacement) improve(ctx context.Context, cmd *cobra.Command, d deployment, plan change.Replacement, before rollout.Facts) error {
	if err := r.addMachine(ctx, cmd, d, plan); err != nil {
		return err
	}
	after, err := rollout.Read(ctx, d.Client, d.key)
	if err != nil {
		return err
	}
	newest := newestOther(plan, before, after)
	if newest != nil && scarcity.Rank(newest) < scarcity.Rank(plan.Machine) {
		if err := r.report(cmd, d, "machine %s of class %s replaces %s of class %s", newest.Name, newest.Spec.Class.Name, plan.Machine.Name, plan.Machine.Spec.Class.Name); err != nil {
			return err
		}
		return r.finish(ctx, cmd, d, plan)
	}
	kept := plan.Machine
	if newest != nil {
		plan.Machine, r.machine = newest, newest.Name
	}
	if err := r.finish(ctx, cmd, d, plan); err != nil {
		return err
	}
	return fmt.Errorf("class %s has no capacity: machine %s is not replaced", scarcity.OfMachine(kept)[0], kept.Name)
}

// fallenBack returns the machines of the current set whose class is not their first choice. The machine whose
// replacement has started comes first, followed by those with the least preferred classes.
func fallenBack(f rollout.Facts) []*v1alpha1.Machine {
	var all []*v1alpha1.Machine
	for _, machine := range f.Machines {
		if current := f.Current(); current != nil && metav1.IsControlledBy(machine, current) && scarcity.Rank(machine) > 0 && !report.IsDeleting(machine) {
			all = append(all, machine)
		}
	}
	started, _, _ := strings.Cut(f.Deployment.Annotations[change.AnnotationReplacing], "/")
	slices.SortFunc(all, func(a, b *v1alpha1.Machine) int {
		switch started {
		case a.Name:
			return -1
		case b.Name:
			return 1
		}
		return cmp.Or(cmp.Compare(scarcity.Rank(b), scarcity.Rank(a)), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// newestOther returns the newest machine other than that of the plan, or nil. A machine that is not in before is newer
// than those that are, because creation times have a resolution of one second. If the replacement had already started,
// the new machine may be in before, so only the creation times are compared.
func newestOther(plan change.Replacement, before, after rollout.Facts) *v1alpha1.Machine {
	known := func(machine *v1alpha1.Machine) bool {
		return !plan.Started && slices.ContainsFunc(before.Machines, func(old *v1alpha1.Machine) bool { return old.UID == machine.UID })
	}
	others := slices.DeleteFunc(slices.Clone(after.Machines), func(machine *v1alpha1.Machine) bool {
		return machine.UID == plan.Machine.UID || report.IsDeleting(machine)
	})
	if len(others) == 0 {
		return nil
	}
	return slices.MaxFunc(others, func(a, b *v1alpha1.Machine) int {
		switch knownA, knownB := known(a), known(b); {
		case knownA && !knownB:
			return -1
		case knownB && !knownA:
			return 1
		}
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
}
