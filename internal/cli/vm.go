package cli

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
)

func newVMCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:                        "vm",
		Short:                      "Look at virtual machines and use their consoles",
		SuggestionsMinimumDistance: 2,
		Args:                       knownCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newVMListCommand(), newVMConsoleCommand(), newVMResetCommand())
	return cmd
}

func newVMListCommand() *cobra.Command {
	flags := &clusterFlags{}
	all := false
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List virtual machines and what each of them does",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := flags.connect()
			if err != nil {
				return err
			}
			namespace := flags.namespace
			if all {
				namespace = ""
			}
			if err := listVMs(cmd.Context(), c, namespace, time.Now(), cmd.OutOrStdout()); err != nil {
				return flags.explainStopped(err)
			}
			return nil
		},
	}
	flags.addFlags(cmd.Flags())
	flags.addNamespace(cmd.Flags())
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list those of all namespaces")
	return cmd
}

// explainStopped says how to start a cluster of local mode that does not answer because
// nothing runs there.
func (f *clusterFlags) explainStopped(err error) error {
	for _, file := range f.rules().GetLoadingPrecedence() {
		dir := filepath.Dir(file)
		if !controlplane.IsFolder(dir) {
			continue
		}
		if pid, problem := controlplane.Holder(dir); problem == nil && pid == 0 {
			return fmt.Errorf("nothing runs in %s: start it with: %s", dir, upAgain(dir))
		}
	}
	return err
}

// listVMs prints one line for each VM of a namespace, of all if that is empty.
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
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", vm.Name, orNone(string(vm.Status.Phase)), orNone(vm.Status.NodeName),
			orNone(strings.Join(vm.Status.Addresses, ",")), duration.HumanDuration(now.Sub(vm.CreationTimestamp.Time)), stateOf(vm))
	}
	return table.Flush()
}

// stateOf says in a few words what a VM does, or what it waits for.
func stateOf(vm *vmv1alpha1.VirtualMachine) string {
	ready := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionReady)
	switch {
	case ready == nil:
		return "waits for the VM controller"
	case ready.Message == "":
		return ready.Reason
	}
	return ready.Reason + ": " + ready.Message
}

func orNone(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
