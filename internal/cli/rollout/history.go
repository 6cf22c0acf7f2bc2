package rollout

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/millwright-dev/millwright/internal/observe/rollout"
)

// answerTimeout is how long an API server may take for all that a command asks of it.
const answerTimeout = 30 * time.Second

func newHistory() *cobra.Command {
	revision := int64(0)
	cmd := add(&cobra.Command{
		Use:   "history NAME",
		Short: "List the revisions of a MachineDeployment, or show the template of one",
		Long: `List the revisions of a MachineDeployment, oldest first, or show the template of one.

A revision is a MachineSet; spec.revisionHistoryLimit limits how many without machines are
kept. CHANGE-CAUSE is the annotation kubernetes.io/change-cause of the MachineDeployment at
that time.`,
	}, func(cmd *cobra.Command, d deployment) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), answerTimeout)
		defer cancel()
		facts, err := rollout.Read(ctx, d.Client, d.key)
		if err != nil {
			return err
		}
		if revision > 0 {
			return rollout.PrintRevision(cmd.OutOrStdout(), facts, revision)
		}
		return rollout.PrintHistory(cmd.OutOrStdout(), facts, time.Now())
	})
	cmd.Flags().Int64Var(&revision, "revision", 0, "show the template of this revision; 0 to list all")
	return cmd
}
