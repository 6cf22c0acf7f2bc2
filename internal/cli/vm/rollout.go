package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/dryrun"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// rollout is the command of that name.
type rollout struct {
	// Flags.
	all      bool
	selector string
	restart  bool
	wait     bool
	timeout  time.Duration
	dry      dryrun.Mode

	client    client.Client
	orders    orders
	namespace string
	out       io.Writer
}

func newRollout() *cobra.Command {
	r, flags := &rollout{}, &kubeconfig.Flags{}
	cmd := &cobra.Command{
		Use:   "rollout [NAME...]",
		Short: "Replace hypervisors that run an outdated image",
		Long: `Replace the hypervisors that run another image than new ones would: after a change of
spec.hypervisorImage, or of the VM controller's default. Their condition HypervisorCurrent is
False. Without names, this applies to all virtual machines of the namespace.

Virtual machines are moved to new hypervisors one after the other, while their guests run. A virtual
machine that cannot be migrated live is skipped, unless --restart allows its guest to be shut down.

Ctrl-C pauses: the current migration continues, and no other one begins. Run the same command to
continue. A restart of the VM controller does no harm: requests are stored in the virtual
machines.

The exit status is 0 when all have the new image, and 1 otherwise.`,
		Example: `  millwright vm rollout
  millwright vm rollout worker-1 worker-2
  millwright vm rollout --all-namespaces --selector tier=web --restart`,
		RunE: func(cmd *cobra.Command, names []string) error {
			if _, err := labels.Parse(r.selector); err != nil {
				return args.Wrongf("--selector: %v", err)
			}
			c, calls, err := connect(flags)
			if err != nil {
				return err
			}
			calls.dry = &r.dry
			r.client, r.orders, r.namespace, r.out = r.dry.Wrap(c), calls, flags.Namespace, cmd.OutOrStdout()
			if err := r.run(cmd.Context(), names); err != nil {
				return flags.ExplainStopped(err)
			}
			return nil
		},
	}
	cmd.ValidArgsFunction = flags.CompleteNames(vmKind)
	flags.Add(cmd, virtualMachines)
	r.dry.Add(cmd)
	cmd.Flags().BoolVarP(&r.all, "all-namespaces", "A", false, "replace hypervisors in all namespaces")
	cmd.Flags().StringVarP(&r.selector, "selector", "l", "", "label selector for the virtual machines")
	cmd.Flags().BoolVar(&r.restart, "restart", false, "restart virtual machines that cannot be migrated live")
	cmd.Flags().BoolVar(&r.wait, "wait", true, "replace one hypervisor after the other, and show the progress; false requests all together, of which the VM controller performs a few per host at a time")
	cmd.Flags().DurationVar(&r.timeout, "timeout", 0, "how long to wait for each virtual machine; 0 for no limit")
	return cmd
}

func (r *rollout) run(ctx context.Context, names []string) error {
	vms, err := r.outdated(ctx, names)
	if err != nil {
		return err
	}
	if len(vms) == 0 {
		_, err := fmt.Fprintln(r.out, "All hypervisors are current.")
		return err
	}
	var left []string
	for i, vm := range vms {
		to := numbered{r.out, fmt.Sprintf("%d of %d: ", i+1, len(vms))}
		err := r.replace(ctx, vm, to)
		if ctx.Err() != nil {
			return fmt.Errorf("paused at %s, %d of %d; run the same command to continue", vm, i+1, len(vms))
		}
		if err != nil {
			fmt.Fprintln(to, messages.Line(err.Error()))
			left = append(left, vm.Name)
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("%d of %d virtual machines keep their hypervisors: %s", len(left), len(vms), strings.Join(left, ", "))
	}
	return nil
}

// outdated returns the VMs to replace, limited to the names if there are any.
func (r *rollout) outdated(ctx context.Context, names []string) ([]client.ObjectKey, error) {
	selector, err := labels.Parse(r.selector)
	if err != nil {
		return nil, fmt.Errorf("--selector: %w", err)
	}
	namespace := r.namespace
	if r.all {
		namespace = ""
	}
	vms := &vmv1alpha1.VirtualMachineList{}
	if err := r.client.List(ctx, vms, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, fmt.Errorf("cannot list virtual machines: %w", err)
	}
	var found []client.ObjectKey
	exists := map[string]bool{}
	for i := range vms.Items {
		vm := &vms.Items[i]
		exists[vm.Name] = true
		if outdated(vm) && (len(names) == 0 || slices.Contains(names, vm.Name)) {
			found = append(found, client.ObjectKeyFromObject(vm))
		}
	}
	for _, name := range names {
		if !exists[name] {
			return nil, fmt.Errorf(`virtual machine %s not found; "millwright vm list -A" shows all`, name)
		}
	}
	return found, nil
}

// outdated reports whether a new hypervisor of a VM would have another image.
func outdated(vm *vmv1alpha1.VirtualMachine) bool {
	return meta.IsStatusConditionFalse(vm.Status.Conditions, vmv1alpha1.ConditionHypervisorCurrent) && vm.DeletionTimestamp.IsZero()
}

// replace replaces the hypervisor of a VM.
func (r *rollout) replace(ctx context.Context, key client.ObjectKey, out io.Writer) error {
	m := &migrate{client: r.client, orders: r.orders, key: key, wait: r.wait, timeout: r.timeout, dry: r.dry, progress: out, out: out}
	vm, err := m.get(ctx)
	if err != nil || !outdated(vm) {
		return err
	}
	can := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionLiveMigratable)
	switch {
	case can != nil && can.Status == metav1.ConditionTrue:
		return m.run(ctx)
	case r.restart:
		return r.startAgain(ctx, m, vm)
	}
	return fmt.Errorf("%s cannot be migrated live: %s; set --restart to restart its guest", vm.Name, strings.TrimSuffix(reasonOf(can), "."))
}

// startAgain deletes the Pod of a VM, and waits until the VM is ready in another Pod.
func (r *rollout) startAgain(ctx context.Context, m *migrate, vm *vmv1alpha1.VirtualMachine) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: vm.Status.ActivePodName}}
	if err := r.client.Delete(ctx, pod, client.Preconditions{UID: &vm.Status.ActivePodUID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("cannot delete pod %s: %w", pod.Name, err)
	}
	if r.dry.On() {
		return m.format.Changed(m.out, vm, "restarted"+r.dry.Suffix())
	}
	if !r.wait {
		return nil
	}
	err := m.watch(ctx, r.timeout, func(vm *vmv1alpha1.VirtualMachine) (string, bool, error) {
		if vm.Status.ActivePodName == pod.Name {
			return vm.Name + ": shutting down", false, nil
		}
		return vm.Name + ": restarting: " + State(vm), meta.IsStatusConditionTrue(vm.Status.Conditions, vmv1alpha1.ConditionReady), nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("virtual machine %s was not ready within %s after the restart; check its state with: millwright vm list", vm.Name, r.timeout)
	}
	return err
}

// numbered begins each line with a number.
type numbered struct {
	to     io.Writer
	prefix string
}

// Write writes one line.
func (n numbered) Write(line []byte) (int, error) {
	if _, err := io.WriteString(n.to, n.prefix); err != nil {
		return 0, err
	}
	return n.to.Write(line)
}
