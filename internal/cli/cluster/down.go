package cluster

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/localdir"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/internal/local/hostrunner"
)

// NewDown returns "millwright down".
func NewDown() *cobra.Command {
	dir := ""
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop a local cluster, or processes that remain of one",
		Long: `Stop a local cluster, or the processes that remain of a "millwright up" that was killed.

The data stays in the directory, and the next "up" continues with it.`,
		Example: `  millwright down
  millwright down --dir simulated`,
		Args: args.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return down(cmd.Context(), dir, cmd.OutOrStdout())
		},
	}
	addDir(cmd, &dir)
	return cmd
}

// downTimeout is how long the processes may take to exit.
const downTimeout = time.Minute

func down(ctx context.Context, dir string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	pid, err := controlplane.Holder(dir)
	if err != nil {
		return err
	}
	if pid > 0 {
		fmt.Fprintf(out, "Stopping process %d ...\n", pid)
		if err := stopHolder(ctx, dir, pid); err != nil {
			return err
		}
	}
	left, err := localdir.FindRemains(dir)
	if err != nil {
		return err
	}
	if err := controlplane.EndOrphans(ctx, dir); err != nil {
		return fmt.Errorf("cannot stop the control plane: %w", err)
	}
	hosts, err := filepath.Glob(localdir.HostDir(dir, "*"))
	if err != nil {
		return fmt.Errorf("cannot list the hosts in directory %s: %w", dir, err)
	}
	left.VMs = 0 // how many there are to stop is known now
	for _, host := range hosts {
		count, err := hostrunner.StopOrphans(ctx, host)
		if err != nil {
			return fmt.Errorf("cannot stop the virtual machines of host %s: %w; run the command again", filepath.Base(host), err)
		}
		left.VMs += count
	}
	switch {
	case !left.None():
		fmt.Fprintf(out, "Stopped %s of an earlier \"up\".\n", left)
	case pid == 0:
		fmt.Fprintf(out, "Nothing runs in %s.\n", dir)
	}
	return nil
}

// stopHolder interrupts the process that uses the directory, and waits for it to exit.
func stopHolder(ctx context.Context, dir string, pid int) error {
	if err := syscall.Kill(pid, syscall.SIGINT); err != nil {
		return fmt.Errorf("cannot stop process %d, which runs the cluster in %s: %w", pid, dir, err)
	}
	// This does not wait for the lock: another "up" may take it immediately.
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(context.Context) (bool, error) {
		holder, err := controlplane.Holder(dir)
		return holder != pid, err
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("process %d did not exit within %s: %w; run the command again to wait longer", pid, downTimeout, err)
	}
	return err
}
