package rollout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/dryrun"
	"github.com/millwright-dev/millwright/internal/cli/output"
	"github.com/millwright-dev/millwright/internal/cli/rollout/change"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
)

func newPause() *cobra.Command {
	return newChange(&cobra.Command{
		Use:   "pause NAME",
		Short: "Pause the rollouts of a MachineDeployment",
		Long: `Pause the rollouts of a MachineDeployment.

Scaling and the replacement of failed machines continue.`,
		Example: `  millwright rollout pause pool`,
	}, "paused", change.Pause)
}

func newResume() *cobra.Command {
	return newChange(&cobra.Command{
		Use:     "resume NAME",
		Short:   "Resume the rollouts of a paused MachineDeployment",
		Example: `  millwright rollout resume pool`,
	}, "resumed", change.Resume)
}

// result is how the commands that change a MachineDeployment print it, and whether they change it.
type result struct {
	format output.Format
	dry    dryrun.Mode
}

func (r *result) add(cmd *cobra.Command) {
	r.dry.Add(cmd)
	r.format.Add(cmd, output.Objects)
}

// print prints the MachineDeployment and what was done with it.
func (r *result) print(cmd *cobra.Command, changed *v1alpha1.MachineDeployment, done string) error {
	return r.format.Changed(cmd.OutOrStdout(), changed, done+r.dry.Suffix())
}

func newRestart() *cobra.Command {
	one := &replacement{}
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
  millwright rollout restart pool --fallen-back --dry-run=client`,
	}, func(cmd *cobra.Command, d deployment) error {
		switch {
		case one.machine != "" && one.fallenBack:
			return args.Wrongf("--machine and --fallen-back are mutually exclusive")
		case one.machine != "" || one.fallenBack:
			return one.run(cmd, d)
		case one.timeout != 0:
			return args.Wrongf("--timeout requires --machine or --fallen-back")
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), requestTimeout)
		defer cancel()
		changed, err := change.Restart(ctx, one.dry.Wrap(d.Client), d.key, time.Now())
		if err != nil {
			return err
		}
		return one.print(cmd, changed, "restarted")
	})
	cmd.Flags().StringVar(&one.machine, "machine", "", "name of the only machine to replace")
	cmd.Flags().BoolVar(&one.fallenBack, "fallen-back", false, "replace the machines whose class is not their first choice")
	cmd.Flags().DurationVar(&one.timeout, "timeout", 0, "how long to wait for all replacements; 0 for no limit; requires --machine or --fallen-back")
	one.add(cmd)
	return cmd
}

// newChange returns a command that calls do and reports done on success.
func newChange(cmd *cobra.Command, done string, do func(context.Context, client.Client, types.NamespacedName) (*v1alpha1.MachineDeployment, error)) *cobra.Command {
	r := &result{}
	add(cmd, func(cmd *cobra.Command, d deployment) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), requestTimeout)
		defer cancel()
		changed, err := do(ctx, r.dry.Wrap(d.Client), d.key)
		if err != nil {
			return err
		}
		return r.print(cmd, changed, done)
	})
	r.add(cmd)
	return cmd
}

func newUndo() *cobra.Command {
	u := &undo{}
	cmd := add(&cobra.Command{
		Use:   "undo NAME",
		Short: "Roll back to an earlier revision",
		Long: `Roll back to an earlier revision. The command sets spec.rollbackTo and waits until the manager
has processed it.

The manager copies the template and the annotations of the revision to the MachineDeployment,
and gives the revision a new number. "millwright rollout history" lists the revisions.`,
		Example: `  millwright rollout undo pool
  millwright rollout undo pool --to-revision 2 --dry-run=server`,
	}, u.run)
	cmd.Flags().Int64Var(&u.revision, "to-revision", 0, "revision to roll back to; 0 for the previous one")
	cmd.Flags().DurationVar(&u.timeout, "timeout", 30*time.Second, "how long to wait for the manager; 0 to not wait")
	u.add(cmd)
	return cmd
}

// undo are the flags of the command of that name.
type undo struct {
	result

	revision int64
	timeout  time.Duration
}

// run requests a rollback, and waits until the manager has processed it. A timeout of 0 does not wait.
func (u *undo) run(cmd *cobra.Command, d deployment) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), requestTimeout)
	defer cancel()
	rollback, err := change.Undo(ctx, u.dry.Wrap(d.Client), d.key, u.revision)
	switch {
	case errors.Is(err, change.ErrUnchanged):
		current, failed := rollout.Get(ctx, d.Client, d.key)
		if failed != nil {
			return failed
		}
		return u.print(cmd, current, err.Error())
	case err != nil:
		return err
	case u.dry.On() || u.timeout == 0:
		return u.print(cmd, rollback.Deployment, fmt.Sprintf("rollback to revision %d requested", rollback.Revision))
	}
	ctx, cancel = context.WithTimeout(cmd.Context(), u.timeout)
	defer cancel()
	done, err := u.await(ctx, cmd, d, rollback)
	if err != nil {
		return err
	}
	return u.print(cmd, done, fmt.Sprintf("rolled back to revision %d", rollback.Revision))
}

// await waits until the manager has processed a rollback, and returns the MachineDeployment.
func (u *undo) await(ctx context.Context, cmd *cobra.Command, d deployment, rollback change.Rollback) (*v1alpha1.MachineDeployment, error) {
	refusal, last := "", rollback.Deployment
	err := d.Follow(ctx, d.key, func(facts rollout.Facts) (bool, error) {
		refusal, last = rollout.Refusal(facts), facts.Deployment
		return rollback.Done(facts)
	})
	expired := errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil
	switch remains := "the request remains in spec.rollbackTo; " + change.Withdrawal(d.key); {
	case cmd.Context().Err() != nil:
		return nil, fmt.Errorf("stopped waiting for machine deployment %s to roll back to revision %d: interrupted; %s", d.key, rollback.Revision, remains)
	case expired && refusal != "":
		return nil, fmt.Errorf("machine deployment %s was not rolled back to revision %d within %s: %s; %s", d.key, rollback.Revision, u.timeout, refusal, remains)
	case expired:
		return nil, fmt.Errorf("machine deployment %s was not rolled back to revision %d within %s: no manager has processed the request; check that a manager is running; %s", d.key, rollback.Revision, u.timeout, remains)
	}
	return last, err
}
