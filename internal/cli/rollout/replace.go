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

// replacement is the replacement of one machine, or of one after the other, with the flags of the command.
type replacement struct {
	machine string
	// fallenBack is to replace all machines that have another class than their first choice.
	fallenBack bool
	dryRun     bool
	timeout    time.Duration
}

// run replaces the machine, or one after the other, and waits until that is done.
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
	words := "is deleted, and then replaced: its strategy allows no machine more"
	if plan.First {
		words = fmt.Sprintf("is deleted when another one is available: %s for a while", messages.Machines(plan.Replicas))
	}
	if r.dryRun {
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "machine.machine.sapcloud.io/%s %s (dry run)\n", r.machine, words)
		return err
	}
	if _, err := fmt.Fprintf(cmd.OutOrStdout(), "machine.machine.sapcloud.io/%s %s\n", r.machine, words); err != nil {
		return err
	}
	if err := r.replace(ctx, cmd, d, plan); err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "machine.machine.sapcloud.io/%s replaced\n", r.machine)
	return err
}

func (r replacement) replace(ctx context.Context, cmd *cobra.Command, d deployment, plan change.Replacement) error {
	if plan.First {
		if err := r.another(ctx, cmd, d, plan); err != nil {
			return err
		}
	}
	return r.finish(ctx, cmd, d, plan)
}

// another has one machine more made, and waits until it is available.
func (r replacement) another(ctx context.Context, cmd *cobra.Command, d deployment, plan change.Replacement) error {
	if !plan.Begun {
		if err := plan.Begin(ctx, d.Client, d.key); err != nil {
			return err
		}
	}
	err := r.follow(ctx, cmd, d, plan.Enough)
	return r.ended(ctx, err, "is not deleted yet: no other is available instead of it. The same command goes on with that. "+plan.Withdrawal(d.key))
}

// finish has the machine of the plan deleted, and waits until it is gone.
func (r replacement) finish(ctx context.Context, cmd *cobra.Command, d deployment, plan change.Replacement) error {
	if err := plan.Finish(ctx, d.Client, d.key, time.Now()); err != nil {
		return err
	}
	err := r.follow(ctx, cmd, d, func(f rollout.Facts) (bool, error) { return plan.Gone(f), nil })
	return r.ended(ctx, err, "is to be deleted, which does not depend on this command")
}

// ended explains that the waiting for a step ended before it was done.
func (r replacement) ended(ctx context.Context, err error, state string) error {
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return fmt.Errorf("not waited for any more: machine %s %s", r.machine, state)
	}
	return err
}

// follow waits for something, and prints a line for each change until then.
func (r replacement) follow(ctx context.Context, cmd *cobra.Command, d deployment, done func(rollout.Facts) (bool, error)) error {
	d.Pace, d.Beat, d.Surroundings = time.Second, aliveCheck, aliveCheck
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
		_, err := fmt.Fprintln(cmd.OutOrStdout(), line)
		return false, err
	})
}
