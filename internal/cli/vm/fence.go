package vm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
)

// fence is the command of that name. It writes and watches a VM like migrate does.
type fence struct {
	migrate
	// confirm is the host that the user has named. If empty, the command asks.
	confirm string
	in      io.Reader
}

func newFence() *cobra.Command {
	f, flags := &fence{}, &kubeconfig.Flags{}
	cmd := &cobra.Command{
		Use:   "fence NAME",
		Short: "Declare the host of a virtual machine switched off, so that the virtual machine starts elsewhere",
		Long: `Declare the host of a virtual machine switched off, so that the virtual machine starts elsewhere.

Use this for a virtual machine whose host does not respond (HostUnreachable) and whose disk is
protected by storage locking. It starts on another host without waiting until the host's Node
is deleted. The command does nothing to the host: switch it off first, or disconnect it from storage
and network. If the guest still runs, there will be two, and both may write to the disk.

The command asks for the name of the host; scripts can use --confirm. The exit status is 0
when another hypervisor has the virtual machine, and 1 if the request was refused.`,
		Example: `  millwright vm fence worker-1
  millwright vm fence worker-1 --confirm host-1`,
		Args: args.OneName("virtual machine"),
		RunE: func(cmd *cobra.Command, names []string) error {
			c, err := flags.Client()
			if err != nil {
				return err
			}
			f.client, f.key = c, client.ObjectKey{Namespace: flags.Namespace, Name: names[0]}
			f.in, f.progress = cmd.InOrStdin(), cmd.OutOrStdout()
			if err := f.run(cmd.Context()); err != nil {
				return flags.ExplainStopped(err)
			}
			return nil
		},
	}
	cmd.ValidArgsFunction = flags.CompleteName(vmKind)
	flags.Add(cmd, virtualMachines)
	f.dry.Add(cmd)
	cmd.Flags().StringVar(&f.confirm, "confirm", "", "name of the host that is switched off; if empty, the command asks for it")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 2*time.Minute, "how long to wait for the VM controller; 0 for no limit")
	return cmd
}

func (f *fence) run(ctx context.Context) error {
	vm, err := f.get(ctx)
	if err != nil {
		return err
	}
	if err := fenceable(vm); err != nil {
		return err
	}
	if err := f.ask(vm); err != nil {
		return err
	}
	if f.dry.On() {
		f.client = f.dry.Wrap(f.client)
	}
	f.pod = vm.Status.ActivePodName
	value := f.pod + "/" + vm.Status.NodeName
	if vm.Annotations[vmv1alpha1.AnnotationFence] != value {
		if err := f.write(ctx, vm, func(annotations map[string]string) { annotations[vmv1alpha1.AnnotationFence] = value }); err != nil {
			return err
		}
	}
	if f.dry.On() {
		return f.format.Changed(f.progress, vm, "fenced"+f.dry.Suffix())
	}
	err = f.watch(ctx, f.timeout, f.look)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted; the request remains in the annotation %s of virtual machine %s", vmv1alpha1.AnnotationFence, f.key.Name)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the VM controller did not take virtual machine %s from its host within %s; check that the VM controller is running; the request remains in the annotation %s", f.key.Name, f.timeout, vmv1alpha1.AnnotationFence)
	}
	return err
}

// fenceable returns why there is nothing to fence, or nil if there is.
func fenceable(vm *vmv1alpha1.VirtualMachine) error {
	ready := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionReady)
	switch {
	case !vm.DeletionTimestamp.IsZero():
		return fmt.Errorf("virtual machine %s is being deleted", vm.Name)
	case vm.Status.Lease != nil:
		return fmt.Errorf("virtual machine %s has a lease that expires, so it starts elsewhere automatically", vm.Name)
	case ready == nil || ready.Reason != vmv1alpha1.ReasonHostUnreachable || vm.Status.NodeName == "":
		return fmt.Errorf("the host of virtual machine %s is not known to be unreachable (%s)", vm.Name, State(vm))
	}
	return nil
}

// ask describes the risk, and returns an error unless the user names the host.
func (f *fence) ask(vm *vmv1alpha1.VirtualMachine) error {
	host := vm.Status.NodeName
	fmt.Fprintf(f.progress, `Virtual machine %[1]s starts on another host. If host %[2]s is not switched off, its guest may still run:
there would be two guests with the same name and address, and if the storage does not lock across hosts,
both would write to the same disk and destroy it.
`, vm.Name, host)
	if vm.Status.VolumeClaimName == "" {
		fmt.Fprintln(f.progress, "Its disk is ephemeral: it starts with a new disk, and the data is lost.")
	}
	given := f.confirm
	if given == "" {
		fmt.Fprintf(f.progress, "Type the name of the host to confirm that it is switched off: ")
		line, err := bufio.NewReader(f.in).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("cannot read the confirmation: %w", err)
		}
		given = strings.TrimSpace(line)
	}
	if given != host {
		return fmt.Errorf("not confirmed: virtual machine %s is on host %q, not %q; nothing was changed", vm.Name, host, given)
	}
	return nil
}

// look returns what to print about a VM now, whether the command is done, and why it fails.
func (f *fence) look(vm *vmv1alpha1.VirtualMachine) (line string, done bool, err error) {
	_, given := vm.Annotations[vmv1alpha1.AnnotationFence]
	fenced := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionFenced)
	switch {
	case vm.Status.ActivePodName != f.pod:
		return fmt.Sprintf("%s: now runs in pod %s", vm.Name, vm.Status.ActivePodName), true, nil
	case given:
		return vm.Name + ": waiting for the VM controller", false, nil
	case fenced == nil: // the condition is written after the annotation is removed
		return "", false, nil
	}
	return "", true, fmt.Errorf("virtual machine %s stays on its host: %s", vm.Name, reasonOf(fenced))
}

func (f *fence) write(ctx context.Context, vm *vmv1alpha1.VirtualMachine, change func(annotations map[string]string)) error {
	before := vm.DeepCopy()
	if vm.Annotations == nil {
		vm.Annotations = map[string]string{}
	}
	change(vm.Annotations)
	if err := f.client.Patch(ctx, vm, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("cannot change virtual machine %s: %w", vm.Name, err)
	}
	return nil
}
