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

// toFirstChoice replaces the machines that have another class than their first choice, one after the other, each
// once a better one is available. It ends when a new one is no better.
func (r replacement) toFirstChoice(ctx context.Context, cmd *cobra.Command, d deployment, facts rollout.Facts) error {
	all := fallenBack(facts)
	if len(all) == 0 {
		return d.report(cmd, "has no machine of another class than its first choice")
	}
	for i, machine := range all {
		plan, err := change.Replace(facts, machine.Name, time.Now())
		switch {
		case err != nil:
			return err
		case !plan.First:
			return fmt.Errorf("the strategy of machine deployment %s allows no machine more, so that each would be deleted before it is known whether there is capacity for another one: raise maxSurge, or replace them with --machine", d.key)
		case r.dryRun:
			if err := d.report(cmd, "machine %s of class %s is replaced when one of class %s is available (dry run)", machine.Name, machine.Spec.Class.Name, scarcity.OfMachine(machine)[0]); err != nil {
				return err
			}
			continue
		}
		r.machine = machine.Name
		if err := r.improve(ctx, cmd, d, plan, facts); err != nil {
			return fmt.Errorf("%w. Of %s, %d were replaced", err, messages.Machines(len(all)), i)
		}
		if facts, err = rollout.Read(ctx, d.Client, d.key); err != nil {
			return err
		}
	}
	return nil
}

// improve replaces a machine by one of a better class. A new one that is no better is deleted instead of it.
func (r replacement) improve(ctx context.Context, cmd *cobra.Command, d deployment, plan change.Replacement, before rollout.Facts) error {
	if err := r.another(ctx, cmd, d, plan); err != nil {
		return err
	}
	after, err := rollout.Read(ctx, d.Client, d.key)
	if err != nil {
		return err
	}
	newest := newestBeside(plan, before, after)
	if newest != nil && scarcity.Rank(newest) < scarcity.Rank(plan.Machine) {
		if err := d.report(cmd, "machine %s of class %s replaces %s of class %s", newest.Name, newest.Spec.Class.Name, plan.Machine.Name, plan.Machine.Spec.Class.Name); err != nil {
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
	return fmt.Errorf("class %s has no capacity left: machine %s stays", scarcity.OfMachine(kept)[0], kept.Name)
}

// fallenBack returns the machines of the current set that have another class than their first choice: first the
// one whose replacement was begun, then the latest choices.
func fallenBack(f rollout.Facts) []*v1alpha1.Machine {
	var all []*v1alpha1.Machine
	for _, machine := range f.Machines {
		if current := f.Current(); current != nil && metav1.IsControlledBy(machine, current) && scarcity.Rank(machine) > 0 && !report.Leaves(machine) {
			all = append(all, machine)
		}
	}
	begun, _, _ := strings.Cut(f.Deployment.Annotations[change.AnnotationReplacing], "/")
	slices.SortFunc(all, func(a, b *v1alpha1.Machine) int {
		switch begun {
		case a.Name:
			return -1
		case b.Name:
			return 1
		}
		return cmp.Or(cmp.Compare(scarcity.Rank(b), scarcity.Rank(a)), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// newestBeside returns the machine that came last beside the one of the plan; nil if there is none. One that did not
// exist before is newer than any that did: creation times are whole seconds. If the replacement had begun before, the
// new machine may be among those, and the time decides.
func newestBeside(plan change.Replacement, before, after rollout.Facts) *v1alpha1.Machine {
	known := func(machine *v1alpha1.Machine) bool {
		return !plan.Begun && slices.ContainsFunc(before.Machines, func(old *v1alpha1.Machine) bool { return old.UID == machine.UID })
	}
	beside := slices.DeleteFunc(slices.Clone(after.Machines), func(machine *v1alpha1.Machine) bool {
		return machine.UID == plan.Machine.UID || report.Leaves(machine)
	})
	if len(beside) == 0 {
		return nil
	}
	return slices.MaxFunc(beside, func(a, b *v1alpha1.Machine) int {
		switch knownA, knownB := known(a), known(b); {
		case knownA && !knownB:
			return -1
		case knownB && !knownA:
			return 1
		}
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
}
