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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmdriver "github.com/millwright-dev/millwright/drivers/vm"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/cli/localdir"
	"github.com/millwright-dev/millwright/internal/cli/output"
	"github.com/millwright-dev/millwright/internal/cli/terminal"
	"github.com/millwright-dev/millwright/internal/cli/vm"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// NewStatus returns "millwright status".
func NewStatus() *cobra.Command {
	dir, format := "", &output.Format{}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the status of a local cluster",
		Example: `  millwright status
  millwright status --dir simulated -o json`,
		Args: args.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := statusOf(cmd.Context(), dir)
			if err != nil {
				return err
			}
			return format.Print(cmd.OutOrStdout(), found, found.print)
		},
	}
	addDir(cmd, &dir)
	format.Add(cmd, output.Values)
	return cmd
}

// addDir adds the flag --dir to a command for local clusters.
func addDir(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "dir", localdir.Default, "directory of the local cluster")
	_ = cmd.MarkFlagDirname("dir") // the flag exists
}

// clusterStatus is the status of a local cluster.
type clusterStatus struct {
	Directory string `json:"directory"`
	// Process is the process ID of "millwright up", or 0 if the cluster does not run. -1 means unknown.
	Process int    `json:"process"`
	Server  string `json:"server,omitempty"`
	// Hosts are sorted by name.
	Hosts []hostStatus `json:"hosts,omitempty"`
	// Machines, VirtualMachines and Nodes count the objects by their phases or readiness.
	Machines        map[string]int `json:"machines,omitempty"`
	VirtualMachines map[string]int `json:"virtualMachines,omitempty"`
	Nodes           map[string]int `json:"nodes,omitempty"`
	// Remains are processes of an earlier "up" that was killed.
	Remains localdir.Remains `json:"remains,omitzero"`
}

type hostStatus struct {
	Name            string `json:"name"`
	Status          string `json:"status"`
	VirtualMachines int    `json:"virtualMachines"`
}

func statusOf(ctx context.Context, dir string) (clusterStatus, error) {
	pid, err := controlplane.Holder(dir)
	found := clusterStatus{Directory: dir, Process: pid}
	if err != nil {
		return found, err
	}
	if pid == 0 {
		found.Remains, err = localdir.FindRemains(dir)
		return found, err
	}
	config, _, err := (&kubeconfig.Flags{Dir: dir}).Load()
	if err != nil {
		return found, err
	}
	c, err := connect.NewClient(config)
	if err != nil {
		return found, err
	}
	seen, err := readObjects(ctx, c)
	if err != nil {
		return found, fmt.Errorf("process %d uses %s, but its cluster does not respond: %w; if it is starting, retry in a few seconds", pid, dir, err)
	}
	found.Server = config.Host
	seen.count(&found)
	return found, nil
}

// count sets the numbers of objects.
func (o objects) count(to *clusterStatus) {
	var nodes []corev1.Node
	for _, node := range o.nodes {
		if _, isHost := node.Labels[vmv1alpha1.HostKey]; !isHost {
			nodes = append(nodes, node)
			continue
		}
		host := hostStatus{Name: node.Name, Status: readiness(node)}
		for i := range o.vms {
			if o.vms[i].Status.NodeName == node.Name {
				host.VirtualMachines++
			}
		}
		to.Hosts = append(to.Hosts, host)
	}
	to.Machines = tally(o.machines, func(m v1alpha1.Machine) string { return string(m.Status.CurrentStatus.Phase) })
	to.VirtualMachines = tally(o.vms, func(vm vmv1alpha1.VirtualMachine) string { return string(vm.Status.Phase) })
	to.Nodes = tally(nodes, readiness)
}

// print prints one line for each kind of object.
func (c clusterStatus) print(out io.Writer) error {
	if c.Process == 0 {
		return c.printRemains(out)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "Cluster:\t%s, process %d\n", c.Server, c.Process)
	for _, host := range c.Hosts {
		fmt.Fprintf(table, "Host %s:\t%s, %s\n", host.Name, host.Status, localdir.Count(host.VirtualMachines, "virtual machine"))
	}
	fmt.Fprintf(table, "Machines:\t%s\n", numbers(c.Machines))
	fmt.Fprintf(table, "Virtual machines:\t%s\n", numbers(c.VirtualMachines))
	fmt.Fprintf(table, "Nodes:\t%s\n", numbers(c.Nodes))
	return table.Flush()
}

// printRemains prints what runs in a directory that no "up" uses.
func (c clusterStatus) printRemains(out io.Writer) error {
	if c.Remains.None() {
		_, err := fmt.Fprintf(out, "No cluster runs in %s. Start it with: %s\n", c.Directory, localdir.UpAgain(c.Directory))
		return err
	}
	_, err := fmt.Fprintf(out, `No "up" uses %[1]s, but processes of an earlier one, which was killed, remain: %[2]s.
Continue with it:  %[3]s
Stop it:           millwright down --dir %[1]s
Do not delete the directory before it is stopped.
`, c.Directory, c.Remains, localdir.UpAgain(c.Directory))
	return err
}

func readiness(node corev1.Node) string {
	if isReady(&node) {
		return "Ready"
	}
	return "NotReady"
}

// tally counts items by a property.
func tally[T any](items []T, of func(T) string) map[string]int {
	counts := map[string]int{}
	for _, item := range items {
		counts[cmp.Or(messages.Line(of(item)), "new")]++
	}
	return counts
}

// numbers prints counts: "1 Pending, 2 Running".
func numbers(counts map[string]int) string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[what], what))
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}

// objects is the state of all machines.
type objects struct {
	deployments []v1alpha1.MachineDeployment
	machines    []v1alpha1.Machine
	vms         []vmv1alpha1.VirtualMachine
	nodes       []corev1.Node
}

func readObjects(ctx context.Context, from client.Reader) (objects, error) {
	deployments, machines := &v1alpha1.MachineDeploymentList{}, &v1alpha1.MachineList{}
	vms, nodes := &vmv1alpha1.VirtualMachineList{}, &corev1.NodeList{}
	for _, list := range []client.ObjectList{deployments, machines, vms, nodes} {
		if err := from.List(ctx, list); err != nil {
			return objects{}, fmt.Errorf("cannot list %T: %w", list, err)
		}
	}
	return objects{deployments: deployments.Items, machines: machines.Items, vms: vms.Items, nodes: nodes.Items}, nil
}

// desired returns the number of replicas of all deployments.
func (o objects) desired() int {
	sum := 0
	for i := range o.deployments {
		sum += int(o.deployments[i].Spec.Replicas)
	}
	return sum
}

// settled reports whether all deployments have their replicas, and no other Machine exists.
func (o objects) settled() bool {
	for i := range o.deployments {
		d := &o.deployments[i]
		if d.Status.ObservedGeneration != d.Generation || d.Status.Replicas != d.Spec.Replicas ||
			d.Status.UpdatedReplicas != d.Spec.Replicas || d.Status.AvailableReplicas != d.Spec.Replicas {
			return false
		}
	}
	return len(o.machines) == o.desired() && o.readyNodes() == o.desired()
}

// readyNodes counts the Ready nodes of Machines.
func (o objects) readyNodes() int {
	count := 0
	for i := range o.machines {
		if node := o.nodeOf(&o.machines[i]); node != nil && isReady(node) {
			count++
		}
	}
	return count
}

func (o objects) nodeOf(machine *v1alpha1.Machine) *corev1.Node {
	for i := range o.nodes {
		if id := o.nodes[i].Spec.ProviderID; id != "" && id == machine.Spec.ProviderID {
			return &o.nodes[i]
		}
	}
	return nil
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
}

// lines returns the state of each Machine by name.
func (o objects) lines() map[string]string {
	lines := map[string]string{}
	for i := range o.machines {
		machine := &o.machines[i]
		phase := cmp.Or(string(machine.Status.CurrentStatus.Phase), "New")
		lines[machine.Name] = messages.Line(fmt.Sprintf("%-12s%s", phase, o.doing(machine)))
	}
	return lines
}

func (o objects) doing(machine *v1alpha1.Machine) string {
	if node := o.nodeOf(machine); node != nil && isReady(node) && machine.DeletionTimestamp == nil {
		return "node is Ready"
	}
	for i := range o.vms {
		if of := &o.vms[i]; vmdriver.MachineOf(of) == client.ObjectKeyFromObject(machine) {
			return vm.State(of)
		}
	}
	return machine.Status.LastOperation.Description
}

// display shows named lines that change: in place on a terminal, otherwise as a new line for each change.
type display struct {
	out    io.Writer
	screen *terminal.Screen // nil if out is not a terminal
	shown  map[string]string
}

// restart leaves the lines that were shown in place.
func (d *display) restart() { d.screen, d.shown = terminal.Open(d.out), nil }

// show replaces the lines that were shown.
func (d *display) show(lines map[string]string) error {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		all = append(all, fmt.Sprintf("  %s  %s", name, lines[name]))
		if d.screen == nil && d.shown[name] != lines[name] {
			fmt.Fprintln(d.out, all[len(all)-1])
		}
	}
	was := d.shown
	d.shown = lines
	if d.screen != nil {
		return d.screen.Draw(all)
	}
	for _, name := range slices.Sorted(maps.Keys(was)) {
		if _, there := lines[name]; !there {
			fmt.Fprintf(d.out, "  %s  gone\n", name)
		}
	}
	return nil
}
