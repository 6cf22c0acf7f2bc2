// Package vm runs hypervisors and has the commands for virtual machines.
package vm

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// New returns the commands for users.
func New() *cobra.Command {
	return args.Group(&cobra.Command{
		Use:   "vm",
		Short: "List virtual machines, open their consoles, reset, migrate or fence them, or replace their hypervisors",
	}, newList(), newConsole(), newLogs(), newReset(), newMigrate(), newFence(), newRollout())
}

func newList() *cobra.Command {
	flags := &kubeconfig.Flags{}
	all, output := false, ""
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List virtual machines and their states",
		Args:    args.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "wide" {
				return args.Wrongf("--output: unknown format %q; expected wide", output)
			}
			c, err := flags.Client()
			if err != nil {
				return err
			}
			namespace := flags.Namespace
			if all {
				namespace = ""
			}
			if err := listVMs(cmd.Context(), c, namespace, output == "wide", time.Now(), cmd.OutOrStdout()); err != nil {
				return flags.ExplainStopped(err)
			}
			return nil
		},
	}
	addCluster(cmd, flags)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list virtual machines of all namespaces")
	cmd.Flags().StringVarP(&output, "output", "o", "", "wide: also show the pod, whether the virtual machine can be migrated live, and the last migration")
	return cmd
}

// listVMs prints one line for each VM of a namespace. An empty namespace means all.
func listVMs(ctx context.Context, c client.Client, namespace string, wide bool, now time.Time, out io.Writer) error {
	vms := &vmv1alpha1.VirtualMachineList{}
	if err := c.List(ctx, vms, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("listing virtual machines: %w", err)
	}
	if len(vms.Items) == 0 {
		_, err := fmt.Fprintln(out, "No virtual machines found.")
		return err
	}
	slices.SortFunc(vms.Items, func(a, b vmv1alpha1.VirtualMachine) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	if namespace == "" {
		fmt.Fprint(table, "NAMESPACE\t")
	}
	fmt.Fprint(table, "NAME\tPHASE\tHOST\tADDRESS\tAGE\tSTATE")
	if wide {
		fmt.Fprint(table, "\tPOD\tMIGRATABLE\tLAST MIGRATION")
	}
	fmt.Fprintln(table)
	for i := range vms.Items {
		vm := &vms.Items[i]
		if namespace == "" {
			fmt.Fprintf(table, "%s\t", vm.Namespace)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s", vm.Name, cell(string(vm.Status.Phase)), cell(vm.Status.NodeName),
			cell(strings.Join(vm.Status.Addresses, ",")), duration.HumanDuration(now.Sub(vm.CreationTimestamp.Time)), State(vm))
		if wide {
			fmt.Fprintf(table, "\t%s\t%s\t%s", cell(vm.Status.ActivePodName), migratable(vm), lastMigration(vm, now))
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
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

// State describes in a few words what a VM does or waits for.
func State(vm *vmv1alpha1.VirtualMachine) string {
	ready := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionReady)
	if ready == nil {
		return "waiting for the VM controller"
	}
	state := strings.TrimSuffix(ready.Reason+": "+ready.Message, ": ")
	if record := vm.Status.Migration; record != nil && (record.Phase == vmv1alpha1.MigrationPreparing || record.Phase == vmv1alpha1.MigrationCopying) {
		state += ", " + migrationState(record)
	}
	if meta.IsStatusConditionTrue(vm.Status.Conditions, vmv1alpha1.ConditionRestartNeeded) {
		state += ", restart needed"
	}
	return messages.Line(state)
}

// addCluster adds the flags that select the cluster and the namespace.
func addCluster(cmd *cobra.Command, flags *kubeconfig.Flags) {
	flags.Add(cmd.Flags())
	cmd.Flags().StringVar(&flags.Context, "context", "", "context of the kubeconfig; defaults to the current context")
	cmd.Flags().StringVarP(&flags.Namespace, "namespace", "n", "", "namespace of the virtual machines; defaults to that of the context")
}

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
