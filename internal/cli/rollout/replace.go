package rollout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millwright-dev/millwright/internal/cli/rollout/change"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// replacement replaces one machine, or several one at a time. Its fields are the flags of the command.
type replacement struct {
	result

	machine string
	// fallenBack replaces all machines whose class is not their first choice.
	fallenBack bool
	timeout    time.Duration
}

// run replaces the machines, and waits until that is complete.
func (r replacement) run(cmd *cobra.Command, d deployment) error {
	ctx, cancel := cmd.Context(), context.CancelFunc(func() {})
	if r.timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, r.timeout)
	}
	defer cancel()
	facts, err := rollout.Read(ctx, d.Client, d.key)
	if err != nil {
		return err
	}
	if r.fallenBack {
		return r.toFirstChoice(ctx, cmd, d, facts)
	}
	plan, err := change.Replace(facts, r.machine, time.Now())
	if err != nil {
		return err
	}
	order := "will be deleted before a new machine is created: the strategy does not allow additional machines"
	if plan.First {
		order = fmt.Sprintf("will be deleted after a new machine is available: %s until then", messages.Machines(plan.Replicas))
	}
	if r.dry.On() {
		if err := r.try(ctx, d, plan); err != nil {
			return err
		}
		return r.format.Changed(cmd.OutOrStdout(), plan.Machine, order+r.dry.Suffix())
	}
	if r.format.IsText() {
		if err := r.format.Changed(cmd.OutOrStdout(), plan.Machine, order); err != nil {
			return err
		}
	}
	if err := r.replace(ctx, cmd, d, plan); err != nil {
		return err
	}
	return r.format.Changed(cmd.OutOrStdout(), plan.Machine, "replaced")
}

// try sends the first write of a replacement in a dry run.
func (r replacement) try(ctx context.Context, d deployment, plan change.Replacement) error {
	switch c := r.dry.Wrap(d.Client); {
	case !plan.First:
		return plan.Finish(ctx, c, d.key, time.Now())
	case !plan.Started:
		return plan.Begin(ctx, c, d.key)
	}
	return nil
}

func (r replacement) replace(ctx context.Context, cmd *cobra.Command, d deployment, plan change.Replacement) error {
	if plan.First {
		if err := r.addMachine(ctx, cmd, d, plan); err != nil {
			return err
		}
	}
	return r.finish(ctx, cmd, d, plan)
}

// addMachine requests one additional machine, and waits until it is available.
func (r replacement) addMachine(ctx context.Context, cmd *cobra.Command, d deployment, plan change.Replacement) error {
	if !plan.Started {
		if err := plan.Begin(ctx, d.Client, d.key); err != nil {
			return err
		}
	}
	err := r.follow(ctx, cmd, d, plan.Enough)
	return r.ended(ctx, err, "has not been deleted, because no new machine is available yet; run the same command to continue; "+plan.Withdrawal(d.key))
}

// finish requests the deletion of the machine of the plan, and waits until it is gone.
func (r replacement) finish(ctx context.Context, cmd *cobra.Command, d deployment, plan change.Replacement) error {
	if err := plan.Finish(ctx, d.Client, d.key, time.Now()); err != nil {
		return err
	}
	err := r.follow(ctx, cmd, d, func(f rollout.Facts) (bool, error) { return plan.Gone(f), nil })
	return r.ended(ctx, err, "will be deleted; this does not depend on this command")
}

// ended returns an error that describes the state if the wait was interrupted or timed out, or else err.
func (r replacement) ended(ctx context.Context, err error, state string) error {
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return fmt.Errorf("stopped waiting: machine %s %s", r.machine, state)
	}
	return err
}

// follow waits until done returns true, and prints a line for each change until then.
func (r replacement) follow(ctx context.Context, cmd *cobra.Command, d deployment, done func(rollout.Facts) (bool, error)) error {
	d.Pace, d.Beat, d.Surroundings = time.Second, managerCheckInterval, managerCheckInterval
	printed := ""
	return d.Follow(ctx, d.key, func(f rollout.Facts) (bool, error) {
		if enough, err := done(f); enough || err != nil {
			return enough, err
		}
		line := rollout.Line(rollout.StatusOf(f, time.Now()))
		if line == printed {
			return false, nil
		}
		printed = line
		to := cmd.OutOrStdout()
		if !r.format.IsText() {
			to = cmd.ErrOrStderr()
		}
		_, err := fmt.Fprintln(to, line)
		return false, err
	})
}
