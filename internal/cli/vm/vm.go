// Package vm runs hypervisors and has the commands for virtual machines.
package vm

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/cli/output"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// New returns the commands for users.
func New() *cobra.Command {
	_, start := newStart()
	_, stop := newStop()
	_, restart := newRestart()
	return args.Group(&cobra.Command{
		Use:   "vm",
		Short: "List virtual machines, start or stop them, connect to them, reset, pause, migrate or fence them, or replace their hypervisors",
		Example: `  millwright vm list -A
  millwright vm console worker-1
  millwright vm ssh admin@worker-1`,
	}, newList(), start, stop, restart, newConsole(), newLogs(), newVNC(), newScreenshot(), newPortForward(), newSSH(), newSCP(), newReset(),
		newPause(), newUnpause(), newMigrate(), newFence(), newRollout())
}

func newList() *cobra.Command {
	flags, format := &kubeconfig.Flags{}, &output.Format{}
	all := false
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List virtual machines and their states",
		Long: `List virtual machines and their states. With -o wide, also show the Pod, whether the virtual machine
can be migrated live, and the last migration.`,
		Example: `  millwright vm list
  millwright vm list --all-namespaces -o wide`,
		Args: args.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := flags.Client()
			if err != nil {
				return err
			}
			namespace := flags.Namespace
			if all {
				namespace = ""
			}
			vms, err := listVMs(cmd.Context(), c, namespace)
			if err != nil {
				return flags.ExplainStopped(err)
			}
			return format.Print(cmd.OutOrStdout(), vms, func(out io.Writer) error {
				return table(vms, namespace == "", time.Now()).Print(out, *format, "No virtual machines found.")
			})
		},
	}
	flags.Add(cmd, virtualMachines)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list virtual machines of all namespaces")
	format.Add(cmd, output.Tables)
	return cmd
}

// listVMs returns the VMs of a namespace, sorted by namespace and name. An empty namespace means all.
func listVMs(ctx context.Context, c client.Client, namespace string) (*vmv1alpha1.VirtualMachineList, error) {
	vms := &vmv1alpha1.VirtualMachineList{}
	if err := c.List(ctx, vms, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("cannot list virtual machines: %w", err)
	}
	slices.SortFunc(vms.Items, func(a, b vmv1alpha1.VirtualMachine) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return vms, nil
}

// table returns one row for each VM.
func table(vms *vmv1alpha1.VirtualMachineList, namespaces bool, now time.Time) output.Table {
	all := output.Table{Columns: []output.Column{
		{Title: "NAME"}, {Title: "PHASE"}, {Title: "HOST"}, {Title: "ADDRESS"}, {Title: "AGE"}, {Title: "STATE"},
		{Title: "POD", Wide: true}, {Title: "MIGRATABLE", Wide: true}, {Title: "LAST MIGRATION", Wide: true},
	}}
	if namespaces {
		all.Columns = slices.Insert(all.Columns, 0, output.Column{Title: "NAMESPACE"})
	}
	for i := range vms.Items {
		vm := &vms.Items[i]
		row := []string{
			vm.Name, cell(string(vm.Status.Phase)), cell(vm.Status.NodeName), cell(strings.Join(vm.Status.Addresses, ",")),
			duration.HumanDuration(now.Sub(vm.CreationTimestamp.Time)), State(vm), cell(vm.Status.ActivePodName), migratable(vm), lastMigration(vm, now),
		}
		if namespaces {
			row = slices.Insert(row, 0, vm.Namespace)
		}
		all.Rows = append(all.Rows, row)
	}
	return all
}

// migratable returns whether a VM would be migrated live, or why not.
func migratable(vm *vmv1alpha1.VirtualMachine) string {
	condition := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionLiveMigratable)
	switch {
	case condition == nil:
		return "-"
	case condition.Status == metav1.ConditionTrue:
		return "yes"
	}
	return "no: " + messages.Line(condition.Reason)
}

// lastMigration returns where a VM came from, when, and how long its guest was paused, or why the migration
// failed.
func lastMigration(vm *vmv1alpha1.VirtualMachine, now time.Time) string {
	record := vm.Status.Migration
	if record == nil || record.EndTime == nil {
		return "-"
	}
	text := "from " + record.SourceNodeName + " "
	if record.Phase == vmv1alpha1.MigrationFailed {
		text = "failed (" + record.Reason + ") "
	}
	text += duration.HumanDuration(now.Sub(record.EndTime.Time)) + " ago"
	if record.Downtime != nil {
		text += ", paused for " + record.Downtime.Duration.Round(time.Millisecond).String()
	}
	return messages.Line(text)
}

// cell returns a value of a table.
func cell(value string) string { return cmp.Or(messages.Line(value), "-") }

// migrating reports whether a live migration is in progress.
func migrating(vm *vmv1alpha1.VirtualMachine) bool {
	record := vm.Status.Migration
	return record != nil && (record.Phase == vmv1alpha1.MigrationPreparing || record.Phase == vmv1alpha1.MigrationCopying)
}

// State describes in a few words what a VM does or waits for.
func State(vm *vmv1alpha1.VirtualMachine) string {
	ready := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionReady)
	if ready == nil {
		return "waiting for the VM controller"
	}
	state := strings.TrimSuffix(ready.Reason+": "+ready.Message, ": ")
	if migrating(vm) {
		state += ", " + migrationState(vm.Status.Migration)
	}
	if meta.IsStatusConditionTrue(vm.Status.Conditions, vmv1alpha1.ConditionRestartNeeded) {
		state += ", restart needed"
	}
	return messages.Line(state)
}

// virtualMachines are the objects in the namespace of the commands.
const virtualMachines = "virtual machines"

// vmKind is the kind of VirtualMachines.
var vmKind = vmv1alpha1.SchemeGroupVersion.WithKind("VirtualMachine")

// connect returns a client for virtual machines and one for their subresources, and completes the flags.
func connect(flags *kubeconfig.Flags) (client.Client, *remote, error) {
	c, err := flags.Client()
	if err != nil {
		return nil, nil, err
	}
	config, _, err := flags.Load()
	if err != nil {
		return nil, nil, err
	}
	calls, err := newRemote(config)
	if err != nil {
		return nil, nil, err
	}
	return c, calls, nil
}
