package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestOnlyOnLinux_ReportsWhatToDo(t *testing.T) {
	root := &cobra.Command{Use: "millwright", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(onlyOnLinux("up", "Run a local cluster"))
	root.SetArgs([]string{"up", "--guest", "full"})
	err := root.ExecuteContext(t.Context())
	if err == nil || !strings.HasPrefix(err.Error(), "millwright up does not run on ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("the error is %v", err)
	}
}
