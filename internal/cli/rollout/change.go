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
		Short: "Replace the machines of a MachineDeployment",
		Long: `Replace all machines of a MachineDeployment according to its update strategy. The class stays
the same.

The command sets the annotation ` + change.AnnotationRestarted + ` of the
template to the current time. This creates a new revision, with MCM as well.

With --machine, the command replaces one machine and waits until the replacement is complete.
If the strategy allows additional machines (maxSurge), the MachineDeployment gets one more
replica until a new machine is available, and the old machine is deleted then. Otherwise the
old machine is deleted first.

With --fallen-back, the command replaces each machine whose class is not its first choice
(spec.fallbackClasses). It replaces one machine at a time, and deletes it only after a machine
of a preferred class is available. It stops when the preferred class has no capacity, and keeps
the remaining machines.`,
		Example: `  millwright rollout restart pool
  millwright rollout restart pool --machine pool-5494b-d8fr6
  millwright rollout restart pool --fallen-back --dry-run`,
	}, func(cmd *cobra.Command, d deployment) error {
		switch {
		case one.machine != "" && one.fallenBack:
			return args.Wrongf("--machine and --fallen-back are mutually exclusive")
		case one.machine != "" || one.fallenBack:
			return one.run(cmd, d)
		case one.dryRun || one.timeout != 0:
			return args.Wrongf("--dry-run and --timeout require --machine or --fallen-back")
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), requestTimeout)
		defer cancel()
		if err := change.Restart(ctx, d.Client, d.key, time.Now()); err != nil {
			return err
		}
		return d.report(cmd, "restarted")
	})
	cmd.Flags().StringVar(&one.machine, "machine", "", "name of the only machine to replace")
	cmd.Flags().BoolVar(&one.fallenBack, "fallen-back", false, "replace the machines whose class is not their first choice")
	cmd.Flags().BoolVar(&one.dryRun, "dry-run", false, "print what would be replaced, without changing anything; requires --machine or --fallen-back")
	cmd.Flags().DurationVar(&one.timeout, "timeout", 0, "how long to wait for all replacements; 0 for no limit; requires --machine or --fallen-back")
	return cmd
}

// newChange returns a command that calls do and reports done on success.
func newChange(cmd *cobra.Command, done string, do func(context.Context, deployment) error) *cobra.Command {
	return add(cmd, func(cmd *cobra.Command, d deployment) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), requestTimeout)
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
		Long: `Roll back to an earlier revision. The command sets spec.rollbackTo and waits until the manager
has processed it.

The manager copies the template and the annotations of the revision to the MachineDeployment,
and gives the revision a new number. "millwright rollout history" lists the revisions.`,
	}, func(cmd *cobra.Command, d deployment) error { return d.undo(cmd, revision, timeout) })
	cmd.Flags().Int64Var(&revision, "to-revision", 0, "revision to roll back to; 0 for the previous one")
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long to wait for the manager; 0 to not wait")
	return cmd
}

// undo requests a rollback, and waits until the manager has processed it. A timeout of 0 does not wait.
func (d deployment) undo(cmd *cobra.Command, revision int64, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), requestTimeout)
	defer cancel()
	rollback, err := change.Undo(ctx, d.Client, d.key, revision)
	if errors.Is(err, change.ErrUnchanged) {
		return d.report(cmd, "%s", err)
	}
	if err != nil {
		return err
	}
	if timeout == 0 {
		return d.report(cmd, "rollback to revision %d requested", rollback.Revision)
	}
	ctx, cancel = context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	refusal := ""
	err = d.Follow(ctx, d.key, func(facts rollout.Facts) (bool, error) {
		refusal = rollout.Refusal(facts)
		return rollback.Done(facts)
	})
	switch remains := "the request remains in spec.rollbackTo; " + change.Withdrawal(d.key); {
	case cmd.Context().Err() != nil:
		return fmt.Errorf("stopped waiting for machine deployment %s to roll back to revision %d: interrupted; %s", d.key, rollback.Revision, remains)
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil && refusal != "":
		return fmt.Errorf("machine deployment %s was not rolled back to revision %d within %s: %s; %s", d.key, rollback.Revision, timeout, refusal, remains)
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
		return fmt.Errorf("machine deployment %s was not rolled back to revision %d within %s: no manager has processed the request; check that a manager is running; %s", d.key, rollback.Revision, timeout, remains)
	case err != nil:
		return err
	}
	return d.report(cmd, "rolled back to revision %d", rollback.Revision)
}
