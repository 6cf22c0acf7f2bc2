package cli

import (
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
	"github.com/millwright-dev/millwright/internal/local/controlplane"
)

func newStatusCommand() *cobra.Command {
	flags := &clusterFlags{}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say what runs in the folder of \"millwright up\"",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return flags.status(cmd.Context(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&flags.dir, "dir", defaultDir, `folder of "millwright up"`)
	return cmd
}

func (f *clusterFlags) status(ctx context.Context, out io.Writer) error {
	pid, err := controlplane.Holder(f.dir)
	if err != nil {
		return err
	}
	if pid == 0 {
		return statusOfRemains(f.dir, out)
	}
	c, err := f.connect()
	if err != nil {
		return err
	}
	seen, err := readView(ctx, c)
	if err != nil {
		return fmt.Errorf("process %d has %s, but its cluster does not answer (yet): %w", pid, f.dir, err)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	config, err := f.restConfig()
	if err != nil {
		return err
	}
	fmt.Fprintf(table, "Cluster:\t%s, process %d\n", config.Host, pid)
	for i := range seen.nodes {
		if host := &seen.nodes[i]; isHost(host) {
			fmt.Fprintf(table, "Host %s:\t%s, %s\n", host.Name, readiness(host), countOf(seen.vmsOn(host.Name), "virtual machine"))
		}
	}
	fmt.Fprintf(table, "Machines:\t%s\n", tally(seen.machines, func(m v1alpha1.Machine) string { return string(m.Status.CurrentStatus.Phase) }))
	fmt.Fprintf(table, "Virtual machines:\t%s\n", tally(seen.vms, func(vm vmv1alpha1.VirtualMachine) string { return string(vm.Status.Phase) }))
	nodes := slices.DeleteFunc(slices.Clone(seen.nodes), func(node corev1.Node) bool { return isHost(&node) })
	fmt.Fprintf(table, "Nodes:\t%s\n", tally(nodes, func(node corev1.Node) string { return readiness(&node) }))
	return table.Flush()
}

func isHost(node *corev1.Node) bool {
	_, host := node.Labels[vmv1alpha1.HostKey]
	return host
}

func readiness(node *corev1.Node) string {
	if nodeReady(node) {
		return "Ready"
	}
	return "NotReady"
}

func (v view) vmsOn(host string) int {
	count := 0
	for i := range v.vms {
		if v.vms[i].Status.NodeName == host {
			count++
		}
	}
	return count
}

// tally counts items by what is said of them: "2 Running, 1 Pending".
func tally[T any](items []T, of func(T) string) string {
	counts := map[string]int{}
	for _, item := range items {
		what := of(item)
		if what == "" {
			what = "new"
		}
		counts[what]++
	}
	if len(counts) == 0 {
		return "none"
	}
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[what], what))
	}
	return strings.Join(parts, ", ")
}

func countOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
