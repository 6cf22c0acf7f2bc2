// Package manager runs the controllers.
package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/cli/logging"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/manager"
)

// Flags are those of MCM that have an effect here, and our own.
type Flags struct {
	// Config is filled by the flags; Complete adds the rest.
	Config manager.Config
	// Driver configures the drivers.
	Driver DriverFlags
	// Logging configures the logger.
	Logging logging.Flags

	flags           *pflag.FlagSet
	control, target string
	namespace       string
	qps             float32
	burst           int
	nodeConditions  string
	replacements    string
	// totalReplacements is empty if there is no limit.
	totalReplacements string
	apis              []string
	ignored           ignored
}

// Agent is the user agent of the manager's requests.
const Agent = "millwright-manager"

// New returns the command "manager". The error names drivers that cannot be in one program.
func New(drivers DriverFlags) (*cobra.Command, error) {
	return newCommand(standard, drivers, &cobra.Command{
		Use:   "manager",
		Short: "Run the controllers of Machines, MachineSets and MachineDeployments",
		Long: `Run the controllers of Machines, MachineSets and MachineDeployments.

Machines live in the control cluster, nodes join the target cluster; both may be the
same. Flags that Gardener's Machine Controller Manager has too mean what they mean there.`,
		Example: `  millwright manager --driver sim --control-kubeconfig control.yaml --target-kubeconfig target.yaml --namespace machines`,
	})
}

// NewMachineController returns MCM's command "machine-controller", with drivers as New.
func NewMachineController(drivers DriverFlags) (*cobra.Command, error) {
	return newCommand(machineController, drivers, &cobra.Command{
		Use:   string(manager.HalfMachines),
		Short: "Run the controllers of Machines only, as MCM's machine-controller",
		Long: `Run the controllers of Machines, MachineClasses and Nodes, with the flags, the defaults, the
port and the lease of MCM's machine-controller. MachineSets and MachineDeployments are for
machine-controller-manager.`,
		Example: `  machine-controller --control-kubeconfig control.yaml --target-kubeconfig target.yaml --namespace machines`,
	})
}

// NewMachineControllerManager returns MCM's command "machine-controller-manager".
func NewMachineControllerManager() (*cobra.Command, error) {
	return newCommand(machineControllerManager, DriverFlags{}, &cobra.Command{
		Use:   string(manager.HalfSets),
		Short: "Run the controllers of MachineSets and MachineDeployments only, as MCM's machine-controller-manager",
		Long: `Run the controllers of MachineSets and MachineDeployments, with the flags, the defaults, the
port and the lease of MCM's machine-controller-manager. Machines are for machine-controller.`,
		Example: `  machine-controller-manager --control-kubeconfig control.yaml --target-kubeconfig target.yaml --namespace machines`,
	})
}

func newCommand(defaults defaults, drivers DriverFlags, cmd *cobra.Command) (*cobra.Command, error) {
	flags := &Flags{Driver: drivers}
	cmd.Args = args.None
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		flags.Driver.Plugins.Version = cmd.Root().Version
		return flags.RunParsed(cmd.Context(), cmd.ErrOrStderr())
	}
	return cmd, flags.add(cmd.Flags(), defaults)
}

// AddMachineController adds the flags of "machine-controller" to those of another program, which
// calls RunParsed after they were parsed.
func (f *Flags) AddMachineController(flags *pflag.FlagSet) error {
	return f.add(flags, machineController)
}

// RunParsed runs what the flags say until the context ends. Logs go to stderr.
func (f *Flags) RunParsed(ctx context.Context, stderr io.Writer) error {
	if err := f.validate(); err != nil {
		return args.Wrong(err)
	}
	collectGarbage(ctx, heapPeriod)
	log, err := f.Logging.SetUp(stderr)
	if err != nil {
		return err
	}
	if err := f.connect(); err != nil {
		return err
	}
	f.Config.Namespace = f.namespace
	for _, api := range f.apis {
		f.Config.APIs = append(f.Config.APIs, manager.API(api))
	}
	f.Config.Log, f.Config.Flags = log, map[string]string{}
	f.flags.VisitAll(func(flag *pflag.Flag) { f.Config.Flags[flag.Name] = flag.Value.String() })
	f.ignored.say(log)
	if err := f.Complete(ctx); err != nil {
		return err
	}
	return f.Run(ctx)
}

// Complete opens the drivers, which Run closes, and completes Config from the flags.
func (f *Flags) Complete(ctx context.Context) error {
	if f.nodeConditions != "" {
		f.Config.NodeConditions = noderef.ParseConditions(f.nodeConditions)
	}
	if f.Config.Half == manager.HalfSets {
		return nil // it needs no driver
	}
	zeroIsNone(&f.Config.MachineSettings)
	f.Config.Health.MaxReplacements = intstr.Parse(f.replacements)
	if f.totalReplacements != "" {
		f.Config.Health.MaxTotalReplacements = ptr.To(intstr.Parse(f.totalReplacements))
	}
	return f.Driver.open(ctx, &f.Config)
}

// zeroIsNone keeps flags of zero from meaning the default, as the zero values of MachineSettings do: in MCM
// they mean no time, and no retry.
func zeroIsNone(c *manager.MachineSettings) {
	for _, limit := range []*time.Duration{
		&c.CreationTimeout, &c.Health.Timeout, &c.Drain.Timeout, &c.Drain.DetachTimeout, &c.Drain.ReattachTimeout,
		&c.Timeouts.Preserve, &c.Timeouts.InPlaceUpdate,
	} {
		if *limit == 0 {
			*limit = -1
		}
	}
	if c.Drain.MaxEvictRetries == 0 {
		c.Drain.MaxEvictRetries = -1
	}
}

// Run runs the manager until the context ends, and closes the drivers.
func (f *Flags) Run(ctx context.Context) error {
	defer f.Driver.close(f.Config.Log)
	return explain(manager.Run(ctx, f.Config), f.Config)
}

// connect reads the kubeconfigs. It does not contact the clusters yet.
func (f *Flags) connect() error {
	var err error
	if f.target != connect.None {
		if f.Config.Target, err = f.load("--target-kubeconfig", f.target); err != nil {
			return err
		}
	}
	f.Config.Control, err = f.load("--control-kubeconfig", cmp.Or(f.control, f.target))
	return err
}

func (f *Flags) load(flag, path string) (*rest.Config, error) {
	config, _, err := connect.Named(flag, path, "")
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst, config.UserAgent = f.qps, f.burst, Agent
	return config, nil
}

// explain adds advice to frequent errors.
func explain(err error, config manager.Config) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("port %d on %s is taken by another process: choose another one with --port", config.Port, config.Address)
	}
	return err
}
