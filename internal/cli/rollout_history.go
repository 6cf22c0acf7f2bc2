package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/millwright-dev/millwright/internal/observe/rollout"
)

// rolloutPatience is how long an API server may take for all that a command asks of it.
const rolloutPatience = 30 * time.Second

func newRolloutHistoryCommand() *cobra.Command {
	flags, revision := &rolloutFlags{}, int64(0)
	cmd := &cobra.Command{
		Use:   "history NAME",
		Short: "List the revisions that one can go back to, or show the template of one",
		Long: `List the revisions that one can go back to, from old to new, or show the template of one.

A revision is a MachineSet; spec.revisionHistoryLimit says how many without machines are
kept. The last column is the annotation kubernetes.io/change-cause that the
MachineDeployment had.`,
		Args: oneDeployment,
		RunE: func(cmd *cobra.Command, args []string) error {
			if revision < 0 {
				return usage(cmd, errors.New("--revision: must not be negative"))
			}
			s, err := flags.open(args)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), rolloutPatience)
			defer cancel()
			facts, err := rollout.Read(ctx, s.client, s.key)
			if err != nil {
				return err
			}
			if revision > 0 {
				return rollout.PrintRevision(cmd.OutOrStdout(), facts, revision)
			}
			return rollout.PrintHistory(cmd.OutOrStdout(), facts, time.Now())
		},
	}
	flags.add(cmd)
	cmd.Flags().Int64Var(&revision, "revision", 0, "show the template of this revision; 0 lists all")
	return cmd
}
