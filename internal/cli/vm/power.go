package vm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/cli/output"
)

// power is a command that starts, stops or restarts a virtual machine. It writes and watches a VM like migrate does.
type power struct {
	migrate
	// verb is the request: "start", "stop" or "restart". done is what it is called when it is complete.
	verb, done string
	// request changes the VM. It returns an error if that would be wrong, and does not change a VM that is already in
	// the requested state.
	request func(vm *vmv1alpha1.VirtualMachine) error
	// reached reports whether the VM is in the requested state. pod is the active Pod at the time of the request.
	reached func(vm *vmv1alpha1.VirtualMachine, pod string) bool
}

func newStart() (*power, *cobra.Command) {
	strategy := string(vmv1alpha1.RunAlways)
	p := &power{verb: "start", done: "started", reached: func(vm *vmv1alpha1.VirtualMachine, _ string) bool { return isReady(vm) }}
	p.request = func(vm *vmv1alpha1.VirtualMachine) error {
		switch {
		case !startable(strategy):
			return args.Wrongf("--run-strategy: %q is not Always, RerunOnFailure or Once", strategy)
		case vm.Spec.RunStrategy == vmv1alpha1.RunHalted:
			vm.Spec.RunStrategy = vmv1alpha1.RunStrategy(strategy)
		case readyReason(vm) == vmv1alpha1.ReasonCompleted:
			metav1.SetMetaDataAnnotation(&vm.ObjectMeta, vmv1alpha1.AnnotationRestart, vm.Status.ActivePodName)
		}
		return nil
	}
	cmd := p.command(&cobra.Command{
		Use:   "start NAME",
		Short: "Start a virtual machine that is stopped",
		Long: `Start a virtual machine that is stopped, and wait until its guest runs.

If spec.runStrategy is Halted, it becomes --run-strategy. If the guest has ended and
spec.runStrategy does not start it again (RerunOnFailure and Once), it starts once more.`,
		Example: `  millwright vm start worker-1
  millwright vm start worker-1 --run-strategy RerunOnFailure`,
	})
	cmd.Flags().StringVar(&strategy, "run-strategy", strategy, "spec.runStrategy of a virtual machine that was halted: Always, RerunOnFailure or Once")
	return p, cmd
}

func newStop() (*power, *cobra.Command) {
	p := &power{verb: "stop", done: "stopped"}
	p.request = func(vm *vmv1alpha1.VirtualMachine) error {
		vm.Spec.RunStrategy = vmv1alpha1.RunHalted
		return nil
	}
	p.reached = func(vm *vmv1alpha1.VirtualMachine, _ string) bool {
		return vm.Status.Phase == vmv1alpha1.PhaseStopped && readyReason(vm) == vmv1alpha1.ReasonHalted
	}
	return p, p.command(&cobra.Command{
		Use:   "stop NAME",
		Short: "Shut down a virtual machine",
		Long: `Shut down a virtual machine, by setting spec.runStrategy to Halted, and wait until its guest has ended.
A guest that takes longer than spec.terminationGracePeriodSeconds is terminated. The disk is kept, unless it
is ephemeral.`,
		Example: `  millwright vm stop worker-1
  millwright vm stop worker-1 --wait=false`,
	})
}

func newRestart() (*power, *cobra.Command) {
	p := &power{verb: "restart", done: "restarted"}
	p.request = func(vm *vmv1alpha1.VirtualMachine) error {
		switch {
		case vm.Spec.RunStrategy == vmv1alpha1.RunHalted:
			return fmt.Errorf(`virtual machine %s is halted; "millwright vm start" starts it`, vm.Name)
		case vm.Status.ActivePodUID == "":
			return fmt.Errorf("virtual machine %s is not running (%s)", vm.Name, State(vm))
		case migrating(vm):
			return fmt.Errorf("virtual machine %s is being migrated (%s); retry afterwards", vm.Name, State(vm))
		}
		metav1.SetMetaDataAnnotation(&vm.ObjectMeta, vmv1alpha1.AnnotationRestart, vm.Status.ActivePodName)
		return nil
	}
	p.reached = func(vm *vmv1alpha1.VirtualMachine, pod string) bool {
		return vm.Status.ActivePodName != pod && isReady(vm)
	}
	return p, p.command(&cobra.Command{
		Use:   "restart NAME",
		Short: "Shut down a virtual machine and start it again, with its current spec",
		Long: `Shut down a virtual machine and start it again, with its current spec and in a new hypervisor, and wait
until its guest runs. A guest that takes longer than spec.terminationGracePeriodSeconds to shut down is
terminated. An ephemeral disk is lost. To reset the guest without shutting it down, use "vm reset".`,
		Example: `  millwright vm restart worker-1
  millwright vm restart worker-1 --timeout 5m`,
	})
}

// command completes a command that runs p.
func (p *power) command(cmd *cobra.Command) *cobra.Command {
	flags := &kubeconfig.Flags{}
	cmd.Args = args.OneName("virtual machine")
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		c, err := flags.Client()
		if err != nil {
			return err
		}
		p.client, p.key = c, client.ObjectKey{Namespace: flags.Namespace, Name: names[0]}
		p.out, p.progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
		if err := p.run(cmd.Context()); err != nil {
			return flags.ExplainStopped(err)
		}
		return nil
	}
	cmd.ValidArgsFunction = flags.CompleteName(vmKind)
	flags.Add(cmd, virtualMachines)
	cmd.Flags().BoolVar(&p.wait, "wait", true, "wait until the virtual machine is "+p.done)
	cmd.Flags().DurationVar(&p.timeout, "timeout", 0, "how long to wait; 0 for no limit")
	p.format.Add(cmd, output.Objects)
	p.dry.Add(cmd)
	return cmd
}

// startable reports whether a strategy starts a guest.
func startable(strategy string) bool {
	switch vmv1alpha1.RunStrategy(strategy) {
	case vmv1alpha1.RunAlways, vmv1alpha1.RunRerunOnFailure, vmv1alpha1.RunOnce:
		return true
	}
	return false
}

func (p *power) run(ctx context.Context) error {
	vm, err := p.get(ctx)
	if err != nil {
		return err
	}
	if !vm.DeletionTimestamp.IsZero() {
		return fmt.Errorf("virtual machine %s is being deleted", vm.Name)
	}
	p.pod = vm.Status.ActivePodName
	before := vm.DeepCopy()
	if err := p.request(vm); err != nil {
		return err
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := p.dry.Wrap(p.client).Patch(ctx, vm, patch); err != nil {
		return fmt.Errorf("cannot change virtual machine %s: %w", vm.Name, err)
	}
	if p.dry.On() || !p.wait {
		return p.format.Changed(p.out, vm, p.verb+" requested"+p.dry.Suffix())
	}
	if vm, err = p.await(ctx); err != nil {
		return err
	}
	return p.format.Changed(p.out, vm, p.done)
}

// await returns the VM when it is in the requested state. It prints each state until then.
func (p *power) await(ctx context.Context) (*vmv1alpha1.VirtualMachine, error) {
	var last *vmv1alpha1.VirtualMachine
	err := p.watch(ctx, p.timeout, func(vm *vmv1alpha1.VirtualMachine) (string, bool, error) {
		last = vm
		if p.reached(vm, p.pod) {
			return "", true, nil
		}
		return vm.Name + ": " + State(vm), false, nil
	})
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("interrupted; virtual machine %s will be %s nevertheless", p.key.Name, p.done)
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("virtual machine %s was not %s within %s (%s); the request remains", p.key.Name, p.done, p.timeout.Round(time.Second), State(last))
	}
	return last, err
}

// readyReason returns the reason of the condition Ready; empty if there is none.
func readyReason(vm *vmv1alpha1.VirtualMachine) string {
	if ready := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionReady); ready != nil {
		return ready.Reason
	}
	return ""
}

func isReady(vm *vmv1alpha1.VirtualMachine) bool {
	return meta.IsStatusConditionTrue(vm.Status.Conditions, vmv1alpha1.ConditionReady)
}
