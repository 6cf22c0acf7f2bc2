// Package vm runs hypervisors, and shows virtual machines to users.
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
		Short: "List virtual machines, open their consoles, or reset them",
	}, newList(), newConsole(), newReset())
}

func newList() *cobra.Command {
	flags := &kubeconfig.Flags{}
	all := false
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List virtual machines and their states",
		Args:    args.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := flags.Client()
			if err != nil {
				return err
			}
			namespace := flags.Namespace
			if all {
				namespace = ""
			}
			if err := listVMs(cmd.Context(), c, namespace, time.Now(), cmd.OutOrStdout()); err != nil {
				return flags.ExplainStopped(err)
			}
			return nil
		},
	}
	addCluster(cmd, flags)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list virtual machines of all namespaces")
	return cmd
}

// listVMs prints one line for each VM of a namespace. Empty means all namespaces.
func listVMs(ctx context.Context, c client.Client, namespace string, now time.Time, out io.Writer) error {
	vms := &vmv1alpha1.VirtualMachineList{}
	if err := c.List(ctx, vms, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("listing virtual machines: %w", err)
	}
	if len(vms.Items) == 0 {
		_, err := fmt.Fprintln(out, "There are no virtual machines.")
		return err
	}
	slices.SortFunc(vms.Items, func(a, b vmv1alpha1.VirtualMachine) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	if namespace == "" {
		fmt.Fprint(table, "NAMESPACE\t")
	}
	fmt.Fprintln(table, "NAME\tPHASE\tHOST\tADDRESS\tAGE\tSTATE")
	for i := range vms.Items {
		vm := &vms.Items[i]
		if namespace == "" {
			fmt.Fprintf(table, "%s\t", vm.Namespace)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", vm.Name, cell(string(vm.Status.Phase)), cell(vm.Status.NodeName),
			cell(strings.Join(vm.Status.Addresses, ",")), duration.HumanDuration(now.Sub(vm.CreationTimestamp.Time)), State(vm))
	}
	return table.Flush()
}

// cell returns a value of a table.
func cell(value string) string { return cmp.Or(messages.Line(value), "-") }

// State returns what a VM does or waits for, in a few words.
func State(vm *vmv1alpha1.VirtualMachine) string {
	ready := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionReady)
	if ready == nil {
		return "waits for the VM controller"
	}
	return messages.Line(strings.TrimSuffix(ready.Reason+": "+ready.Message, ": "))
}

// addCluster adds the flags that select the cluster and the namespace.
func addCluster(cmd *cobra.Command, flags *kubeconfig.Flags) {
	flags.Add(cmd.Flags())
	cmd.Flags().StringVarP(&flags.Namespace, "namespace", "n", "default", "namespace of the virtual machines")
}
