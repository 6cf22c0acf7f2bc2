package cluster

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmdriver "github.com/millwright-dev/millwright/drivers/vm"
	"github.com/millwright-dev/millwright/internal/cli/terminal"
	"github.com/millwright-dev/millwright/internal/cli/vm"
)

// objects are the state of all machines.
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
			return objects{}, fmt.Errorf("reading what there is: %w", err)
		}
	}
	return objects{deployments: deployments.Items, machines: machines.Items, vms: vms.Items, nodes: nodes.Items}, nil
}

// wanted returns the number of replicas of all deployments.
func (o objects) wanted() int {
	sum := 0
	for i := range o.deployments {
		sum += int(o.deployments[i].Spec.Replicas)
	}
	return sum
}

// settled reports whether all deployments have their replicas, and no Machine is left besides.
func (o objects) settled() bool {
	for i := range o.deployments {
		d := &o.deployments[i]
		if d.Status.ObservedGeneration != d.Generation || d.Status.Replicas != d.Spec.Replicas ||
			d.Status.UpdatedReplicas != d.Spec.Replicas || d.Status.AvailableReplicas != d.Spec.Replicas {
			return false
		}
	}
	return len(o.machines) == o.wanted() && o.readyNodes() == o.wanted()
}

// readyNodes counts the nodes of Machines that are Ready.
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
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// lines returns the state of each Machine by its name.
func (o objects) lines() map[string]string {
	lines := map[string]string{}
	for i := range o.machines {
		machine := &o.machines[i]
		phase := cmp.Or(string(machine.Status.CurrentStatus.Phase), "New")
		lines[machine.Name] = fmt.Sprintf("%-12s%s", phase, o.doing(machine))
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

// display shows named lines that change: in place on a terminal, elsewhere as a new line for each
// change.
type display struct {
	out    io.Writer
	screen *terminal.Screen // nil if out is not a terminal
	shown  map[string]string
}

// restart leaves the lines that were shown where they are.
func (d *display) restart() { d.screen, d.shown = terminal.Open(d.out), nil }

// show replaces the lines that are shown.
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
