package vm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/cli/output"
)

// pause is the commands pause and unpause. It reads and watches a VM like migrate does.
type pause struct {
	migrate
	// verb is the command, and done is its result.
	verb, done string
	// reason is that of the condition Ready when the command is done.
	reason string
	// request writes the desired state.
	request func(*remote, context.Context, client.ObjectKey) error
}

func newPause() *cobra.Command {
	p := &pause{verb: "pause", done: "paused", reason: "Paused", request: (*remote).pause}
	return p.command(&cobra.Command{
		Use:   "pause NAME",
		Short: "Stop the CPUs of a virtual machine, and keep its memory",
		Long: `Stop the CPUs of a virtual machine, and keep its memory.

The guest stays on its host, and its hypervisor keeps its lease. It stays paused until "millwright vm
unpause", also after a live migration. If its hypervisor terminates, its memory is lost: the
virtual machine then starts from its disk, and is paused before its first instruction. The command
sets spec.mode to Pause.`,
		Example: `  millwright vm pause worker-1
  millwright vm pause worker-1 --dry-run=server`,
	})
}

func newUnpause() *cobra.Command {
	p := &pause{verb: "unpause", done: "unpaused", reason: "Running", request: (*remote).unpause}
	return p.command(&cobra.Command{
		Use:     "unpause NAME",
		Aliases: []string{"resume"},
		Short:   "Continue a paused virtual machine",
		Long:    `Continue a paused virtual machine. The command sets spec.mode to Run.`,
		Example: `  millwright vm unpause worker-1
  millwright vm unpause worker-1 --wait=false`,
	})
}

func (p *pause) command(cmd *cobra.Command) *cobra.Command {
	flags := &kubeconfig.Flags{}
	cmd.Args = args.OneName("virtual machine")
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		c, calls, err := connect(flags)
		if err != nil {
			return err
		}
		calls.dry = &p.dry
		p.client, p.key = c, client.ObjectKey{Namespace: flags.Namespace, Name: names[0]}
		p.out, p.progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
		if err := p.run(cmd.Context(), calls); err != nil {
			return flags.ExplainStopped(err)
		}
		return nil
	}
	cmd.ValidArgsFunction = flags.CompleteName(vmKind)
	flags.Add(cmd, virtualMachines)
	cmd.Flags().BoolVar(&p.wait, "wait", true, "wait until the virtual machine is "+p.done)
	cmd.Flags().DurationVar(&p.timeout, "timeout", time.Minute, "how long to wait; 0 for no limit")
	p.format.Add(cmd, output.Objects)
	p.dry.Add(cmd)
	return cmd
}

func (p *pause) run(ctx context.Context, calls *remote) error {
	if err := p.request(calls, ctx, p.key); err != nil {
		return fmt.Errorf("cannot %s virtual machine %s: %w", p.verb, p.key.Name, err)
	}
	vm, err := p.get(ctx)
	if err != nil {
		return err
	}
	switch {
	case p.dry.On():
		return p.format.Changed(p.out, vm, p.done+p.dry.Suffix())
	case !p.wait:
		return p.format.Changed(p.out, vm, p.verb+" requested")
	}
	err = p.watch(ctx, p.timeout, func(now *vmv1alpha1.VirtualMachine) (string, bool, error) {
		vm = now
		return "", p.reached(now), nil
	})
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted; spec.mode of virtual machine %s remains %s", p.key.Name, vm.Spec.Mode)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("virtual machine %s was not %s within %s (%s); spec.mode remains %s", p.key.Name, p.done, p.timeout, State(vm), vm.Spec.Mode)
	case err != nil:
		return err
	}
	return p.format.Changed(p.out, vm, p.done)
}

// reached reports whether the guest has the desired state.
func (p *pause) reached(vm *vmv1alpha1.VirtualMachine) bool {
	ready := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionReady)
	return meta.IsStatusConditionTrue(vm.Status.Conditions, vmv1alpha1.ConditionReady) && ready.Reason == p.reason
}
