package rollout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/rollout/change"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
)

func newPause() *cobra.Command {
	return newChange(&cobra.Command{
		Use:   "pause NAME",
		Short: "Pause the rollouts of a MachineDeployment",
		Long: `Pause the rollouts of a MachineDeployment.

Scaling and the replacement of failed machines continue.`,
	}, "paused", func(ctx context.Context, d deployment) error { return change.Pause(ctx, d.Client, d.key) })
}

func newResume() *cobra.Command {
	return newChange(&cobra.Command{
		Use:   "resume NAME",
		Short: "Resume the rollouts of a paused MachineDeployment",
	}, "resumed", func(ctx context.Context, d deployment) error { return change.Resume(ctx, d.Client, d.key) })
}

func newRestart() *cobra.Command {
	one := replacement{}
	cmd := add(&cobra.Command{
		Use:   "restart NAME",
		Short: "Replace all machines by the strategy of the MachineDeployment, or some",
		Long: `Replace all machines by the strategy of the MachineDeployment, without a change of class.

This sets the annotation ` + change.AnnotationRestarted + ` of the
template to the current time, which creates a new revision, also with MCM.

With --machine, one machine is replaced, and the command waits for that. If the strategy allows
more machines (maxSurge), the MachineDeployment has one replica more until a new machine is
available; then the old one is deleted by its name. Else it is deleted first.

With --fallen-back, the machines are replaced that have another class than their first choice
(spec.fallbackClasses), one after the other, each when a better one is available. It ends
when there is no capacity for a better one, and keeps the rest.`,
		Example: `  millwright rollout restart pool
  millwright rollout restart pool --machine pool-5494b-d8fr6
  millwright rollout restart pool --fallen-back --dry-run`,
	}, func(cmd *cobra.Command, d deployment) error {
		switch {
		case one.machine != "" && one.fallenBack:
			return args.Wrongf("--machine and --fallen-back are two ways to say which machines: give one of them")
		case one.machine != "" || one.fallenBack:
			return one.run(cmd, d)
		case one.dryRun || one.timeout != 0:
			return args.Wrongf("--dry-run and --timeout are for --machine and --fallen-back")
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), answerTimeout)
		defer cancel()
		if err := change.Restart(ctx, d.Client, d.key, time.Now()); err != nil {
			return err
		}
		return d.report(cmd, "restarted")
	})
	cmd.Flags().StringVar(&one.machine, "machine", "", "name of the only machine to replace")
	cmd.Flags().BoolVar(&one.fallenBack, "fallen-back", false, "replace the machines that have another class than their first choice")
	cmd.Flags().BoolVar(&one.dryRun, "dry-run", false, "say what would be replaced, and change nothing; only with --machine or --fallen-back")
	cmd.Flags().DurationVar(&one.timeout, "timeout", 0, "how long to wait for all replacements; 0 for no limit; only with --machine or --fallen-back")
	return cmd
}

// newChange returns a command that changes a deployment, and says so.
func newChange(cmd *cobra.Command, done string, do func(context.Context, deployment) error) *cobra.Command {
	return add(cmd, func(cmd *cobra.Command, d deployment) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), answerTimeout)
		defer cancel()
		if err := do(ctx, d); err != nil {
			return err
		}
		return d.report(cmd, "%s", done)
	})
}

func newUndo() *cobra.Command {
	revision, timeout := int64(0), time.Duration(0)
	cmd := add(&cobra.Command{
		Use:   "undo NAME",
		Short: "Roll back to an earlier revision",
		Long: `Roll back to an earlier revision: set spec.rollbackTo, and wait until the manager has acted
on it.

The template and the annotations of the MachineDeployment become those of the revision,
which gets a new number. "millwright rollout history" lists the revisions.`,
	}, func(cmd *cobra.Command, d deployment) error { return d.undo(cmd, revision, timeout) })
	cmd.Flags().Int64Var(&revision, "to-revision", 0, "revision to roll back to; 0 for the previous one")
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long to wait for the manager; 0 to not wait")
	return cmd
}

// undo asks for a rollback, and waits until the manager has answered.
func (d deployment) undo(cmd *cobra.Command, revision int64, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), answerTimeout)
	defer cancel()
	rollback, err := change.Undo(ctx, d.Client, d.key, revision)
	if errors.Is(err, change.ErrUnchanged) {
		return d.report(cmd, "%s", err)
	}
	if err != nil {
		return err
	}
	if timeout == 0 {
		return d.report(cmd, "is asked to roll back to revision %d", rollback.Revision)
	}
	ctx, cancel = context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	refusal := ""
	err = d.Follow(ctx, d.key, func(facts rollout.Facts) (bool, error) {
		refusal = rollout.Refusal(facts)
		return rollback.Done(facts)
	})
	switch stays := "The wish stays in spec.rollbackTo. " + change.Withdrawal(d.key); {
	case cmd.Context().Err() != nil:
		return fmt.Errorf("not waited for any more: machine deployment %s is to be rolled back to revision %d. %s", d.key, rollback.Revision, stays)
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil && refusal != "":
		return fmt.Errorf("machine deployment %s was not rolled back to revision %d within %s: %s. %s", d.key, rollback.Revision, timeout, refusal, stays)
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
		return fmt.Errorf("nobody has answered the wish to roll back machine deployment %s to revision %d within %s: does a manager run? %s", d.key, rollback.Revision, timeout, stays)
	case err != nil:
		return err
	}
	return d.report(cmd, "rolled back to revision %d", rollback.Revision)
}
