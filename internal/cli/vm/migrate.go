package vm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/dryrun"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/cli/output"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// migrationPace is the interval at which a migration is polled.
const migrationPace = 500 * time.Millisecond

// migrate is the command of that name.
type migrate struct {
	// Flags.
	to      string
	cancel  bool
	wait    bool
	timeout time.Duration
	format  output.Format
	dry     dryrun.Mode

	client client.Client
	orders orders
	key    client.ObjectKey
	// pod is the hypervisor that the VM leaves.
	pod string
	// progress gets a line for each change, out gets the result.
	progress, out io.Writer
}

// orders requests migrations of virtual machines. An empty node means any.
type orders interface {
	order(ctx context.Context, vm client.ObjectKey, node string) error
	cancel(ctx context.Context, vm client.ObjectKey) error
}

func newMigrate() *cobra.Command {
	m, flags := &migrate{}, &kubeconfig.Flags{}
	cmd := &cobra.Command{
		Use:   "migrate NAME",
		Short: "Move a running virtual machine to another host",
		Long: `Move a running virtual machine to another host, while its guest runs.

A line is printed for each change. With --output, status.migration is printed at the end, and the
lines go to standard error. The exit status is 0 when the guest runs on the other host,
and 1 if it stays on its host, if the virtual machine cannot be migrated live, or after
--timeout. A migration continues when this command is interrupted; --cancel cancels it, unless the
guest is already stopped for it.`,
		Example: `  millwright vm migrate worker-1
  millwright vm migrate worker-1 --to host-2 --timeout 10m
  millwright vm migrate worker-1 --cancel
  millwright vm migrate worker-1 --dry-run=server`,
		Args: args.OneName("virtual machine"),
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := m.check(); err != nil {
				return err
			}
			c, calls, err := connect(flags)
			if err != nil {
				return err
			}
			calls.dry = &m.dry
			m.client, m.orders, m.key = c, calls, client.ObjectKey{Namespace: flags.Namespace, Name: names[0]}
			m.out, m.progress = cmd.OutOrStdout(), cmd.OutOrStdout()
			if !m.format.IsText() {
				m.progress = cmd.ErrOrStderr()
			}
			if err := m.run(cmd.Context()); err != nil {
				return flags.ExplainStopped(err)
			}
			return nil
		},
	}
	cmd.ValidArgsFunction = flags.CompleteName(vmKind)
	flags.Add(cmd, virtualMachines)
	cmd.Flags().StringVar(&m.to, "to", "", "name of the target host; empty for any")
	cmd.Flags().BoolVar(&m.cancel, "cancel", false, "cancel the requested migration")
	cmd.Flags().BoolVar(&m.wait, "wait", true, "wait until the migration is complete")
	cmd.Flags().DurationVar(&m.timeout, "timeout", 0, "how long to wait; 0 for no limit")
	m.format.Add(cmd, output.Objects)
	m.dry.Add(cmd)
	return cmd
}

func (m *migrate) check() error {
	switch {
	case m.cancel && m.to != "":
		return args.Wrongf("--cancel: cannot be used with --to")
	case strings.Contains(m.to, "/"):
		return args.Wrongf("--to: %q is not a valid host name", m.to)
	}
	return nil
}

func (m *migrate) run(ctx context.Context) error {
	vm, err := m.get(ctx)
	if err != nil {
		return err
	}
	m.pod = vm.Status.ActivePodName
	if m.cancel {
		err = m.remove(ctx, vm)
	} else {
		err = m.order(ctx, vm)
	}
	if err == nil && m.dry.On() {
		return m.tried(vm)
	}
	if err != nil || !m.wait {
		return err
	}
	return m.follow(ctx)
}

// tried prints what was requested in a dry run.
func (m *migrate) tried(vm *vmv1alpha1.VirtualMachine) error {
	done := "migration requested"
	if m.cancel {
		done = "migration canceled"
	}
	return m.format.Changed(m.out, vm, done+m.dry.Suffix())
}

func (m *migrate) get(ctx context.Context) (*vmv1alpha1.VirtualMachine, error) {
	vm := &vmv1alpha1.VirtualMachine{}
	err := m.client.Get(ctx, m.key, vm)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf(`virtual machine %s not found in namespace %s; "millwright vm list" shows all`, m.key.Name, m.key.Namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read virtual machine %s: %w", m.key.Name, err)
	}
	return vm, nil
}

// order requests the migration.
func (m *migrate) order(ctx context.Context, vm *vmv1alpha1.VirtualMachine) error {
	if m.pod == "" || vm.Status.ActivePodUID == "" {
		return fmt.Errorf("virtual machine %s is not running (%s)", vm.Name, State(vm))
	}
	if m.to != "" && m.to == vm.Status.NodeName {
		return fmt.Errorf("virtual machine %s is already on host %s", vm.Name, m.to)
	}
	if can := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionLiveMigratable); can == nil || can.Status != metav1.ConditionTrue {
		return fmt.Errorf("virtual machine %s cannot be migrated live: %s", vm.Name, reasonOf(can))
	}
	if err := m.orders.order(ctx, m.key, m.to); err != nil {
		return fmt.Errorf("cannot request the migration of virtual machine %s: %w", vm.Name, err)
	}
	return nil
}

// reasonOf returns why a condition is not True.
func reasonOf(condition *metav1.Condition) string {
	if condition == nil {
		return "its hypervisor has not reported that it can"
	}
	return messages.Line(cmp.Or(condition.Message, condition.Reason))
}

// remove cancels the request.
func (m *migrate) remove(ctx context.Context, vm *vmv1alpha1.VirtualMachine) error {
	if pod, _, _ := strings.Cut(vm.Annotations[vmv1alpha1.AnnotationMigrate], "/"); pod == "" || pod != m.pod {
		return fmt.Errorf("no migration of virtual machine %s is requested", vm.Name)
	}
	if err := m.orders.cancel(ctx, m.key); err != nil {
		return fmt.Errorf("cannot cancel the migration of virtual machine %s: %w", vm.Name, err)
	}
	return nil
}

// follow shows the migration until it is complete.
func (m *migrate) follow(ctx context.Context) error {
	err := m.watch(ctx, m.timeout, func(vm *vmv1alpha1.VirtualMachine) (string, bool, error) {
		line, done, failure := m.see(vm)
		if done && !m.format.IsText() {
			failure = errors.Join(failure, m.print(vm))
		}
		return line, done, failure
	})
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted; the migration of virtual machine %s continues", m.key.Name)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the migration of virtual machine %s was not complete within %s; it continues", m.key.Name, m.timeout)
	}
	return err
}

// watch prints what look returns for the VM, each line once, until look is done or fails. A timeout of 0 means
// none; an expired one returns context.DeadlineExceeded.
func (m *migrate) watch(ctx context.Context, timeout time.Duration, look func(*vmv1alpha1.VirtualMachine) (line string, done bool, err error)) error {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	last := ""
	return wait.PollUntilContextCancel(ctx, migrationPace, true, func(ctx context.Context) (bool, error) {
		vm, err := m.get(ctx)
		if err != nil {
			return false, err
		}
		line, done, failure := look(vm)
		if line != "" && line != last {
			last = line
			fmt.Fprintln(m.progress, line)
		}
		return done, failure
	})
}

// migration is the record of a migration, with the name of its VM.
type migration struct {
	*vmv1alpha1.VirtualMachineMigration

	vm string
}

// Names implements output.Named.
func (m migration) Names() []string { return []string{m.vm} }

func (m *migrate) print(vm *vmv1alpha1.VirtualMachine) error {
	name, err := output.NameOf(vm)
	if err != nil {
		return err
	}
	return m.format.Print(m.out, migration{vm.Status.Migration, name}, nil)
}

// see returns what to print about a VM now, whether the command is done, and why it fails.
func (m *migrate) see(vm *vmv1alpha1.VirtualMachine) (line string, done bool, err error) {
	record := vm.Status.Migration
	if record != nil && record.SourcePodName != m.pod {
		record = nil // of an earlier migration
	}
	pod, _, _ := strings.Cut(vm.Annotations[vmv1alpha1.AnnotationMigrate], "/")
	ordered := pod == m.pod
	switch {
	case record != nil && record.Phase == vmv1alpha1.MigrationSucceeded:
		return m.succeeded(record)
	case vm.Status.ActivePodName != m.pod:
		return "", true, fmt.Errorf("virtual machine %s was restarted in the meantime", vm.Name)
	case record != nil && record.Phase != vmv1alpha1.MigrationFailed:
		return messages.Line(vm.Name + ": " + migrationState(record)), false, nil
	case ordered && record == nil:
		return vm.Name + ": requested", false, nil
	case ordered:
		return messages.Line(fmt.Sprintf("%s: retrying after: %s", vm.Name, because(record))), false, nil
	case m.cancel:
		return vm.Name + ": the migration is canceled", true, nil
	case record != nil:
		return "", true, fmt.Errorf("virtual machine %s stays on host %s: %s", vm.Name, vm.Status.NodeName, because(record))
	}
	return "", true, fmt.Errorf("the migration of virtual machine %s was refused: %s", vm.Name,
		reasonOf(meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionLiveMigratable)))
}

func (m *migrate) succeeded(record *vmv1alpha1.VirtualMachineMigration) (line string, done bool, err error) {
	if record.EndTime == nil {
		return m.key.Name + ": the guest continues on the other host", false, nil
	}
	line = fmt.Sprintf("%s: migrated from %s to %s in %s", m.key.Name, record.SourceNodeName, record.TargetNodeName,
		duration.HumanDuration(record.EndTime.Sub(record.StartTime.Time)))
	if record.Downtime != nil {
		line += fmt.Sprintf("; the guest was paused for %s", record.Downtime.Duration.Round(time.Millisecond))
	}
	if m.cancel {
		err = fmt.Errorf("it was too late to cancel the migration of virtual machine %s", m.key.Name)
	}
	return messages.Line(line), true, err
}

func because(record *vmv1alpha1.VirtualMachineMigration) string {
	return strings.TrimSuffix(messages.Line(record.Reason+": "+record.Message), ": ")
}

// migrationState returns the progress of a migration.
func migrationState(record *vmv1alpha1.VirtualMachineMigration) string {
	to := cmp.Or(record.TargetNodeName, "another host")
	if record.Phase == vmv1alpha1.MigrationPreparing {
		return "preparing the migration to " + to
	}
	if record.TotalBytes <= 0 {
		return "migrating to " + to
	}
	const mebi = 1 << 20
	return fmt.Sprintf("migrating to %s, %d of %d MiB copied%s", to, record.DoneBytes/mebi, (record.TotalBytes+mebi-1)/mebi, convergence(record))
}

// convergence returns why a migration takes long, and what happens next.
func convergence(record *vmv1alpha1.VirtualMachineMigration) string {
	switch record.Convergence {
	case vmv1alpha1.MigrationNotConverging:
		return "; the guest writes memory faster than it is copied"
	case vmv1alpha1.MigrationForced:
		return "; the guest will be paused for the rest"
	}
	return ""
}
