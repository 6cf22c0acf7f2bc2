package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// onlyOnLinux returns a command for other systems than Linux, in place of one that does not run there.
func onlyOnLinux(name, short string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              short + " (on Linux)",
		Example:            "  millwright " + name,
		DisableFlagParsing: true, // all flags have the same result
		RunE: func(cmd *cobra.Command, _ []string) error {
			return fmt.Errorf("%s does not run on %s; run it on Linux, and use its cluster from here with the other commands and --kubeconfig", cmd.CommandPath(), runtime.GOOS)
		},
	}
}
