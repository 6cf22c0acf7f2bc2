package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millwright-dev/millwright/internal/observe/rollout"
)

func newRolloutPauseCommand() *cobra.Command {
	return newRolloutChangeCommand(&cobra.Command{
		Use:   "pause NAME",
		Short: "Stop a rollout where it is, and begin no other",
		Long: `Stop a rollout where it is, and begin no other.

Scaling, and the replacement of machines that fail, go on.`,
	}, "paused", func(ctx context.Context, s subject) error { return rollout.Pause(ctx, s.client, s.key) })
}

func newRolloutResumeCommand() *cobra.Command {
	return newRolloutChangeCommand(&cobra.Command{
		Use:   "resume NAME",
		Short: "Let rollouts of a paused MachineDeployment go on",
	}, "resumed", func(ctx context.Context, s subject) error { return rollout.Resume(ctx, s.client, s.key) })
}

func newRolloutRestartCommand() *cobra.Command {
	return newRolloutChangeCommand(&cobra.Command{
		Use:   "restart NAME",
		Short: "Replace all machines, by the strategy of the MachineDeployment",
		Long: `Replace all machines, by the strategy of the MachineDeployment, without a change of class.

It notes the time in an annotation of the template, ` + rollout.AnnotationRestarted + `.
That makes a new revision, also under MCM.`,
	}, "restarted", func(ctx context.Context, s subject) error { return rollout.Restart(ctx, s.client, s.key, time.Now()) })
}

// newRolloutChangeCommand is a command that changes a deployment, and says so.
func newRolloutChangeCommand(cmd *cobra.Command, done string, change func(context.Context, subject) error) *cobra.Command {
	flags := &rolloutFlags{}
	cmd.Args = oneDeployment
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := flags.open(args)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), rolloutPatience)
		defer cancel()
		if err := change(ctx, s); err != nil {
			return err
		}
		return s.say(cmd, "%s", done)
	}
	flags.add(cmd)
	return cmd
}

func newRolloutUndoCommand() *cobra.Command {
	flags, revision, timeout := &rolloutFlags{}, int64(0), time.Duration(0)
	cmd := &cobra.Command{
		Use:   "undo NAME",
		Short: "Go back to an earlier revision",
		Long: `Go back to an earlier revision: by spec.rollbackTo, which the manager answers.

The template, and annotations of the MachineDeployment, become those of that revision, which
gets a new number. "millwright rollout history" lists what there is to go back to.`,
		Args: oneDeployment,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := notNegative(map[string]int64{"timeout": int64(timeout), "to-revision": revision}); err != nil {
				return usage(cmd, err)
			}
			s, err := flags.open(args)
			if err != nil {
				return err
			}
			return s.undo(cmd, revision, timeout)
		},
	}
	flags.add(cmd)
	cmd.Flags().Int64Var(&revision, "to-revision", 0, "revision to go back to; 0 is the one before the current")
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long to wait for the manager's answer; 0 does not wait for it")
	return cmd
}

// undo wishes the deployment back, and waits for the answer.
func (s subject) undo(cmd *cobra.Command, revision int64, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), rolloutPatience)
	defer cancel()
	wish, err := rollout.Undo(ctx, s.client, s.key, revision)
	if errors.Is(err, rollout.ErrUnchanged) {
		return s.say(cmd, "%s", err)
	}
	if err != nil {
		return err
	}
	if timeout == 0 {
		return s.say(cmd, "is asked to roll back to revision %d", wish.Revision)
	}
	ctx, cancel = context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	follower := rollout.Follower{Client: s.client, Link: s.link}
	refusal := ""
	err = follower.Follow(ctx, s.key, func(facts rollout.Facts) (bool, error) {
		refusal = rollout.Refusal(facts)
		return wish.Answered(facts)
	})
	switch stays := "The wish stays in spec.rollbackTo. " + rollout.Withdrawal(s.key); {
	case cmd.Context().Err() != nil:
		return fmt.Errorf("not waited for any more: machine deployment %s is to be rolled back to revision %d. %s", s.key, wish.Revision, stays)
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil && refusal != "":
		return fmt.Errorf("machine deployment %s was not rolled back to revision %d within %s: %s. %s", s.key, wish.Revision, timeout, refusal, stays)
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
		return fmt.Errorf("nobody has answered the wish to roll back machine deployment %s to revision %d within %s: does a manager run? %s", s.key, wish.Revision, timeout, stays)
	case err != nil:
		return err
	}
	return s.say(cmd, "rolled back to revision %d", wish.Revision)
}
