// Package provider turns a driver into a program: a complete machine controller, or a plugin of a manager in
// another process.
//
// [Main] is the main function of such a program. Without a command, it runs the machine controllers with the flags,
// defaults, port and lease of MCM's machine-controller. It runs next to a machine-controller-manager, from this
// project or from MCM. Its command "manager" runs all controllers in one process, for both APIs (--apis). Its commands
// "machine" and "conformance" create single VMs and check the driver, as millwright's commands of these names. Leader
// election, metrics, health, logs and signals work as in millwright's own commands of these names.
//
// [Serve] is the main function of a driver that serves a manager in another process. Both functions take the same
// arguments.
package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/conformance"
	"github.com/millwright-dev/millwright/internal/cli/instance"
	"github.com/millwright-dev/millwright/internal/cli/manager"
	"github.com/millwright-dev/millwright/internal/cli/program"
)

// Environment contains the values that the program passes to the driver.
type Environment = registry.Environment

// NewDriver returns a new driver after the flags were parsed. It should return quickly; a provider that does not
// respond is not an error at this point. If the driver implements registry.Starter, it is started. If it implements
// io.Closer, it is closed after the last call.
type NewDriver = registry.Opener

// AnyClass is the name of a driver that serves the classes of all providers, as a driver of MCM does.
const AnyClass = registry.AnyProvider

// Main runs the program of a driver and exits the process: with status 0 after SIGTERM or SIGINT, 1 after a
// failure, or 2 for invalid arguments.
//
// The driver serves the classes whose provider is name, ignoring case, and those without a provider. It rejects
// other classes with a message. The name is also spec.driver of MillwrightMachines, and the label "provider" of the
// metrics.
func Main(name string, newDriver NewDriver, options ...Option) {
	end(New(name, newDriver, options...), (*Provider).command)
}

// end runs a command with the arguments of the process and exits the process.
func end(p *Provider, command func(*Provider) (*cobra.Command, error)) {
	p.name = filepath.Base(os.Args[0])
	ctx, stop := program.Signals()
	status := exit(ctx, p, command, program.Program{Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr})
	stop()
	os.Exit(status)
}

// Provider is the program of a driver. Create one with New.
type Provider struct {
	name string
	// driver is the first driver, to which the flags of WithFlags belong.
	driver  registry.Kind
	others  registry.Kinds
	version string
	// measured is true if drivers count their calls themselves.
	measured bool
	// parsed contains the flags of AddFlags.
	parsed *manager.Flags
}

// Option configures a Provider.
type Option func(*Provider)

// WithFlags adds flags of the driver. Their names should start with that of the driver. A name that another flag
// has is an error.
func WithFlags(add func(*pflag.FlagSet)) Option {
	return func(p *Provider) { p.driver.Flags = add }
}

// WithVersion sets the output of --version. The default is the version of the main module.
func WithVersion(version string) Option {
	return func(p *Provider) { p.version = version }
}

// WithDriver adds another driver. With several drivers, the flag --driver selects those to open, and the provider
// of a class selects among them; the first is the default.
func WithDriver(kind registry.Kind) Option {
	return func(p *Provider) { p.others = append(p.others, kind) }
}

// WithoutMetrics leaves the metrics of driver calls to the driver. Use it for a driver that counts its calls
// itself, as MCM's drivers do; otherwise calls are counted twice.
func WithoutMetrics() Option {
	return func(p *Provider) { p.measured = true }
}

// New returns the program of a driver, as Main runs it.
func New(name string, newDriver NewDriver, options ...Option) *Provider {
	p := &Provider{name: "machine-controller", version: moduleVersion(), driver: registry.Kind{Name: name, Open: newDriver}}
	for _, option := range options {
		option(p)
	}
	return p
}

// kinds returns the drivers of the program.
func (p *Provider) kinds() registry.Kinds { return append(registry.Kinds{p.driver}, p.others...) }

// drivers returns the drivers of the program. Each call returns new flags.
func (p *Provider) drivers() manager.DriverFlags {
	return manager.DriverFlags{
		Name: p.driver.Name, Default: p.driver.Name, Uninstrumented: p.measured,
		Kinds: p.kinds(),
	}
}

// Run runs the program with these arguments until ctx is done. It returns an error if the program failed, and nil
// if ctx is done. Results and the help go to standard output, logs to standard error.
func (p *Provider) Run(ctx context.Context, arguments ...string) error {
	root, err := p.command()
	if err != nil {
		return err
	}
	run := program.Program{Args: arguments, Stdout: os.Stdout, Stderr: os.Stderr}
	_, err = run.Execute(ctx, root)
	return err
}

// AddFlags adds the flags of the machine controllers to those of a program with its own command line. The program
// calls RunParsed after it has parsed them. The error names conflicting drivers or flags.
func (p *Provider) AddFlags(flags *pflag.FlagSet) error {
	p.parsed = &manager.Flags{Driver: p.drivers()}
	return p.parsed.AddMachineController(flags)
}

// RunParsed runs the machine controllers with the flags of AddFlags until ctx is done. Logs go to stderr.
func (p *Provider) RunParsed(ctx context.Context, stderr io.Writer) error {
	if p.parsed == nil {
		return errors.New("flags were not added; call AddFlags first")
	}
	return p.parsed.RunParsed(ctx, stderr)
}

// command returns the command of the machine controllers. Below it are the command of the whole manager and those that
// call the driver without a cluster.
func (p *Provider) command() (*cobra.Command, error) {
	root, err := manager.NewMachineController(p.drivers())
	if err != nil {
		return nil, err
	}
	whole, err := manager.New(p.drivers())
	if err != nil {
		return nil, err
	}
	check, err := conformance.New(conformance.Program{Kinds: p.kinds()})
	if err != nil {
		return nil, err
	}
	single, err := instance.New(p.kinds)
	if err != nil {
		return nil, err
	}
	deprecated, err := instance.Deprecated(p.kinds)
	if err != nil {
		return nil, err
	}
	former := args.Group(&cobra.Command{Use: "machine", Short: "Former name of instance", Hidden: true}, deprecated...)
	root.Example = strings.ReplaceAll(root.Example, "millwright "+root.Name(), p.name)
	root.Use, root.Args = p.name, args.KnownCommand
	root.Long += "\n\nThe command \"manager\" also runs these controllers, in the same process. The commands\n\"instance\" and \"conformance\" call the driver without a cluster."
	root.AddCommand(whole, single, former, check)
	root.CompletionOptions.HiddenDefaultCmd = true
	return program.Complete(root, program.VersionLine(p.name, p.version)), nil
}

// exit runs a program and returns the exit status.
func exit(ctx context.Context, p *Provider, command func(*Provider) (*cobra.Command, error), run program.Program) int {
	root, err := command(p)
	if err != nil {
		fmt.Fprintf(run.Stderr, "%s: %v\n", p.name, err)
		return 1
	}
	return run.Run(ctx, root)
}

// moduleVersion returns the version of the main module, as recorded by the go command.
func moduleVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "devel"
}
