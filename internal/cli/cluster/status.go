package cluster

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/folder"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
)

// NewStatus returns "millwright status".
func NewStatus() *cobra.Command {
	dir := ""
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the status of a local cluster",
		Args:  args.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return status(cmd.Context(), dir, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&dir, "dir", folder.Default, `directory of the local cluster`)
	return cmd
}

func status(ctx context.Context, dir string, out io.Writer) error {
	pid, err := controlplane.Holder(dir)
	if err != nil {
		return err
	}
	if pid == 0 {
		return statusOfRemains(dir, out)
	}
	config, _, err := (&kubeconfig.Flags{Dir: dir}).Load()
	if err != nil {
		return err
	}
	c, err := kubeconfig.NewClient(config)
	if err != nil {
		return err
	}
	seen, err := readObjects(ctx, c)
	if err != nil {
		return fmt.Errorf("process %d has %s, but its cluster does not answer (yet): %w", pid, dir, err)
	}
	return seen.printStatus(out, config.Host, pid)
}

// printStatus prints one line for each kind.
func (o objects) printStatus(out io.Writer, host string, pid int) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "Cluster:\t%s, process %d\n", host, pid)
	var nodes []corev1.Node
	for _, node := range o.nodes {
		if _, isHost := node.Labels[vmv1alpha1.HostKey]; !isHost {
			nodes = append(nodes, node)
			continue
		}
		fmt.Fprintf(table, "Host %s:\t%s, %s\n", node.Name, readiness(node), folder.Count(o.vmsOn(node.Name), "virtual machine"))
	}
	fmt.Fprintf(table, "Machines:\t%s\n", tally(o.machines, func(m v1alpha1.Machine) string { return string(m.Status.CurrentStatus.Phase) }))
	fmt.Fprintf(table, "Virtual machines:\t%s\n", tally(o.vms, func(vm vmv1alpha1.VirtualMachine) string { return string(vm.Status.Phase) }))
	fmt.Fprintf(table, "Nodes:\t%s\n", tally(nodes, readiness))
	return table.Flush()
}

// statusOfRemains prints what runs in a folder that no "up" uses.
func statusOfRemains(dir string, out io.Writer) error {
	found, err := folder.FindRemains(dir)
	if err != nil {
		return err
	}
	if found.None() {
		_, err := fmt.Fprintf(out, "Nothing runs in %s. Start it with: %s\n", dir, folder.UpAgain(dir))
		return err
	}
	_, err = fmt.Fprintf(out, `No "up" has %[1]s, but an earlier one was killed and left behind: %[2]s.
Go on with it:  %[3]s
Stop it:        millwright down --dir %[1]s
Do not delete the folder before it is stopped.
`, dir, found, folder.UpAgain(dir))
	return err
}

func readiness(node corev1.Node) string {
	if isReady(&node) {
		return "Ready"
	}
	return "NotReady"
}

func (o objects) vmsOn(host string) int {
	count := 0
	for i := range o.vms {
		if o.vms[i].Status.NodeName == host {
			count++
		}
	}
	return count
}

// tally counts items by a property: "2 Running, 1 Pending".
func tally[T any](items []T, of func(T) string) string {
	counts := map[string]int{}
	for _, item := range items {
		counts[cmp.Or(of(item), "new")]++
	}
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[what], what))
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}
