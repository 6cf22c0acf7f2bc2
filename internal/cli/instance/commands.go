// Package instance creates, finds and deletes single instances through a driver, without a cluster.
package instance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/driver/instrument"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/dryrun"
	"github.com/millwright-dev/millwright/internal/cli/manifest"
	"github.com/millwright-dev/millwright/internal/cli/output"
	"github.com/millwright-dev/millwright/internal/cli/standalone"
)

// New returns the command "instance", which has the commands create, status, list and delete. kinds is called once per
// command, since each command has its own flags. The error names a driver that has a flag of the commands or of another
// driver.
func New(kinds func() registry.Kinds) (*cobra.Command, error) {
	all, err := commands(kinds)
	if err != nil {
		return nil, err
	}
	return args.Group(&cobra.Command{
		Use:   "instance",
		Short: "Create, find, list and delete instances with a driver, without a cluster",
		Long: `Create, find, list and delete instances with a driver, without a cluster.

An instance is what a driver creates for a Machine, normally a VM. The commands do not read or write Machine
objects; "kubectl get machines" lists those.` + withoutCluster,
		Example: `  millwright instance create test --class class.yaml --secret secret.yaml
  millwright instance list --class class.yaml --secret secret.yaml`,
	}, all...), nil
}

// Deprecated returns the commands of New for their former place below "machine". They are hidden, and print a line
// with their new name to standard error. It takes kinds and returns errors as New does.
func Deprecated(kinds func() registry.Kinds) ([]*cobra.Command, error) {
	all, err := commands(kinds)
	for _, cmd := range all {
		run := cmd.RunE
		cmd.Hidden, cmd.Example = true, ""
		cmd.RunE = func(cmd *cobra.Command, given []string) error {
			fmt.Fprintf(cmd.ErrOrStderr(), "%q is deprecated and will be removed after the next release; use \"%s instance %s\"\n",
				cmd.CommandPath(), cmd.Root().CommandPath(), cmd.Name())
			return run(cmd, given)
		}
	}
	return all, err
}

func commands(kinds func() registry.Kinds) ([]*cobra.Command, error) {
	var all []*cobra.Command
	for _, build := range []func(*flags) *cobra.Command{newCreate, newStatus, newList, newDelete} {
		flags := newFlags(kinds())
		all = append(all, build(flags))
		if flags.conflict != nil {
			return nil, flags.conflict
		}
	}
	return all, nil
}

const withoutCluster = `

The class and the Secrets come from files, and the driver is called directly: no cluster is needed, unless
the driver needs one. The driver is the provider of the class, or --driver. With --driver-socket or
--driver-listen, it is a driver in another process, which registers there. A class may be of a legacy kind,
such as AWSMachineClass, if the driver migrates it. The names of MCM's managevm are accepted for the flags
in addition: --machineclass, --classkind, --machinename and --machineid.`

func newCreate(flags *flags) *cobra.Command {
	return flags.command(&cobra.Command{
		Use:   "create NAME",
		Short: "Create an instance, without a cluster",
		Long: `Create the instance of the machine NAME, unless it exists, and initialize it.` + withoutCluster + `

The placeholder <<MACHINE_NAME>> in the user data is replaced, but <<BOOTSTRAP_TOKEN>> is not.`,
		Example: `  millwright instance create test --class class.yaml --secret secret.yaml
  millwright instance create test --class class.yaml --secret secret.yaml --dry-run=client -o json`,
	}, needsName, func(ctx context.Context, c *caller) (result, error) {
		if err := c.inputs.check(); err != nil {
			return result{}, err
		}
		return c.create(ctx)
	})
}

func newStatus(flags *flags) *cobra.Command {
	return flags.command(&cobra.Command{
		Use:     "status NAME",
		Short:   "Find an instance, without a cluster",
		Long:    `Find the instance of the machine NAME. If it does not exist, the exit status is 1.` + withoutCluster,
		Example: `  millwright instance status test --class class.yaml --secret secret.yaml`,
	}, needsName|findsOnly, func(ctx context.Context, c *caller) (result, error) {
		found, err := c.status(ctx)
		switch {
		case err != nil:
			return found, fmt.Errorf("GetMachineStatus: %w", err)
		case found.State == stateAbsent:
			return found, fmt.Errorf("machine %q has no VM", c.machine.Name)
		case found.State == stateUnknown:
			return found, errors.New("the driver does not report which VMs exist")
		}
		return found, nil
	})
}

func newDelete(flags *flags) *cobra.Command {
	return flags.command(&cobra.Command{
		Use:   "delete NAME",
		Short: "Delete an instance, without a cluster",
		Long: `Delete the instance of the machine NAME, and wait until it is gone. With --id, only that
instance is deleted.` + withoutCluster,
		Example: `  millwright instance delete test --class class.yaml --secret secret.yaml`,
	}, needsName, func(ctx context.Context, c *caller) (result, error) { return c.remove(ctx) })
}

func newList(flags *flags) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the instances of a class, without a cluster",
		Long:    `List the instances of a class, including those without a Machine.` + withoutCluster,
		Example: `  millwright instance list --class class.yaml --secret secret.yaml`,
		Args:    args.None,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return flags.call(cmd, func(ctx context.Context, c *caller) error {
			listed, err := c.list(ctx)
			if err != nil {
				return err
			}
			all := results{listed}
			return flags.format.Print(cmd.OutOrStdout(), all, func(out io.Writer) error {
				return all.table().Print(out, flags.format, "No VMs found.")
			})
		})
	}
	flags.add(cmd, findsOnly)
	return cmd
}

// NewManageVM returns MCM's command of that name: it creates a VM, or deletes the VM of a machine ID. It returns errors
// as Commands does.
func NewManageVM(kinds registry.Kinds) (*cobra.Command, error) {
	flags := newFlags(kinds)
	cmd := &cobra.Command{
		Use:   "managevm",
		Short: "Create or delete a VM as MCM's managevm does",
		Long: `Create a VM, or with --machineid delete that VM, as MCM's managevm does. The commands of
"millwright instance" do the same and more.`,
		Example: `  millwright managevm --secret secret.yaml --machineclass class.yaml --classkind AWS --machinename test`,
		Args:    args.None,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return flags.one(cmd, func(ctx context.Context, c *caller) (result, error) {
			if flags.id != "" {
				return c.remove(ctx)
			}
			if err := c.inputs.check(); err != nil {
				return result{}, err
			}
			return c.create(ctx)
		})
	}
	flags.add(cmd, needsName)
	return cmd, flags.conflict
}

// flags are the flags of a command.
type flags struct {
	class, kind string
	secrets     []string
	name, id    string
	driver      standalone.Flags
	format      output.Format
	limits
	// conflict is the error of a driver whose flag is already defined.
	conflict error
}

func newFlags(kinds registry.Kinds) *flags {
	return &flags{driver: standalone.Flags{Kinds: kinds}}
}

type limits struct {
	timeout time.Duration
	dry     dryrun.Mode
}

// traits describe what a command needs.
type traits int

const (
	needsName traits = 1 << iota
	// findsOnly is set if the command changes nothing.
	findsOnly
)

// command completes a command for one machine.
func (f *flags) command(cmd *cobra.Command, has traits, call func(context.Context, *caller) (result, error)) *cobra.Command {
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.Args = func(_ *cobra.Command, given []string) error {
		switch {
		case len(given) > 1 || len(given) == 1 && f.name != "":
			return args.Wrongf("expected one argument, the name of a machine")
		case len(given) == 1:
			f.name = given[0]
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return f.one(cmd, call) }
	f.add(cmd, has)
	return cmd
}

func (f *flags) add(cmd *cobra.Command, has traits) {
	set := cmd.Flags()
	set.StringVar(&f.class, "class", "", "file with the class; required")
	set.StringVar(&f.kind, "class-kind", "", "kind of the class in that file, or its short form such as AWS; defaults to the kind of the only class in it")
	set.StringArrayVar(&f.secrets, "secret", nil, "file with a Secret; may be repeated, then the data of later Secrets takes precedence")
	if has&needsName != 0 {
		set.StringVar(&f.name, "name", "", "name of the machine, if it is not given as an argument")
		set.StringVar(&f.id, "id", "", "provider ID of the VM; if empty, the VM is found by its name")
	}
	if has&findsOnly == 0 {
		f.dry.AddLocal(cmd)
	}
	set.DurationVar(&f.timeout, "timeout", 10*time.Minute, "time limit of the command")
	formats := output.Objects
	if has&needsName == 0 {
		formats = output.Tables
	}
	f.format.Add(cmd, formats)
	f.addMCMs(set, has)
	args.Section(set, "instance")
	f.conflict = f.driver.Add(set)
	args.Section(set, "driver")
}

// addMCMs adds the flag names of managevm.
func (f *flags) addMCMs(set *pflag.FlagSet, has traits) {
	mcms := map[string]*string{"machineclass": &f.class, "classkind": &f.kind}
	if has&needsName != 0 {
		mcms["machinename"], mcms["machineid"] = &f.name, &f.id
	}
	for name, value := range mcms {
		set.StringVar(value, name, "", "MCM's name for another flag")
		_ = set.MarkHidden(name) // the flag exists
	}
}

// validate returns all mistakes in the flags.
func (f *flags) validate(needsName bool) error {
	var problems args.Problems
	problems.If(f.class == "", "--class: required; the file with the class")
	problems.If(needsName && f.name == "", "expected one argument, the name of a machine")
	problems.If(f.timeout <= 0, "--timeout: must be greater than 0")
	if f.kind != "" {
		kind, err := manifest.KindOf(f.kind)
		problems.If(err != nil, "--class-kind: %v", err)
		f.kind = kind
	}
	return problems.Err()
}

// one runs a command for one machine and prints its result.
func (f *flags) one(cmd *cobra.Command, call func(context.Context, *caller) (result, error)) error {
	return f.call(cmd, func(ctx context.Context, c *caller) error {
		done, err := call(ctx, c)
		if err != nil {
			return err
		}
		return f.format.Print(cmd.OutOrStdout(), done, done.print)
	})
}

// call opens the driver and calls it.
func (f *flags) call(cmd *cobra.Command, call func(context.Context, *caller) error) error {
	class, secret, err := f.read(cmd.Name() != "list")
	if err != nil {
		return args.Wrong(err)
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), f.timeout, fmt.Errorf("timed out after %s (--timeout)", f.timeout))
	defer cancel()
	opened, err := f.driver.Open(ctx, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer opened.Close()
	d := instrument.Wrap(opened.Driver, instrument.Options{Provider: f.driver.Name, Timeout: f.timeout})
	in := inputs{secret: secret}
	if in.class, err = class.MachineClass(ctx, d); err != nil {
		return err
	}
	c := newCaller(d, in, f.name, f.id)
	c.dryRun, c.progress = f.dry.On(), func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), text) }
	if err := call(ctx, c); err != nil {
		if cause := context.Cause(ctx); cause != nil && ctx.Err() != nil {
			return fmt.Errorf("%w: %w", cause, err)
		}
		return err
	}
	return nil
}

// read reads the files. Its errors are usage errors.
func (f *flags) read(needsName bool) (class manifest.Class, secret *corev1.Secret, err error) {
	if err = f.validate(needsName); err != nil {
		return class, nil, err
	}
	if class, err = manifest.ReadClass(f.class, f.kind); err != nil {
		return class, nil, fmt.Errorf("--class: %w", err)
	}
	if secret, err = manifest.ReadSecrets(f.secrets...); err != nil {
		return class, nil, fmt.Errorf("--secret: %w", err)
	}
	if err = f.driver.Choose(class); err != nil {
		return class, nil, err
	}
	if err = class.IsFor(f.driver.Name); err != nil {
		return class, nil, fmt.Errorf("--driver: %w", err)
	}
	return class, secret, nil
}
