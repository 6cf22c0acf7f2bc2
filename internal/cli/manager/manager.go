// Package manager runs the controllers.
package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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
	"github.com/millwright-dev/millwright/internal/tracing"
)

// Flags are the flags of the manager: those that MCM has too, and Millwright's own.
type Flags struct {
	// Config is set by the flags. Complete sets the remaining fields.
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
	// totalReplacements is the limit across all pools. If empty, there is no limit.
	totalReplacements string
	apis              []string
	ignored           ignored
}

// Agent is the user agent of the manager's requests.
const Agent = "millwright-manager"

// New returns the command "manager". It returns an error if the drivers cannot be combined in one program.
func New(drivers DriverFlags) (*cobra.Command, error) {
	return newCommand(standard, drivers, &cobra.Command{
		Use:   "manager",
		Short: "Run the controllers of Machines, MachineSets and MachineDeployments",
		Long: `Run the controllers of Machines, MachineSets and MachineDeployments.

Machines are objects of the control cluster, and their nodes join the target cluster. Both
can be the same cluster. Flags that Gardener's Machine Controller Manager has too have the
same meaning.`,
		Example: `  millwright manager --driver sim --control-kubeconfig control.yaml --target-kubeconfig target.yaml --namespace machines`,
	})
}

// NewMachineController returns MCM's command "machine-controller". It takes drivers and returns errors as New does.
func NewMachineController(drivers DriverFlags) (*cobra.Command, error) {
	return newCommand(machineController, drivers, &cobra.Command{
		Use:   string(manager.HalfMachines),
		Short: "Run only the controllers of Machines, like MCM's machine-controller",
		Long: `Run the controllers of Machines, MachineClasses and Nodes, with the flags, defaults, port and
lease of MCM's machine-controller. Run machine-controller-manager for MachineSets and
MachineDeployments.`,
		Example: `  millwright machine-controller --control-kubeconfig control.yaml --target-kubeconfig target.yaml --namespace machines`,
	})
}

// NewMachineControllerManager returns MCM's command "machine-controller-manager".
func NewMachineControllerManager() (*cobra.Command, error) {
	return newCommand(machineControllerManager, DriverFlags{}, &cobra.Command{
		Use:   string(manager.HalfSets),
		Short: "Run only the controllers of MachineSets and MachineDeployments, like MCM's machine-controller-manager",
		Long: `Run the controllers of MachineSets and MachineDeployments, with the flags, defaults, port and
lease of MCM's machine-controller-manager. Run machine-controller for Machines.`,
		Example: `  millwright machine-controller-manager --control-kubeconfig control.yaml --target-kubeconfig target.yaml --namespace machines`,
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

// AddMachineController adds the flags of "machine-controller" to those of another program. The program calls RunParsed
// after it has parsed the flags.
func (f *Flags) AddMachineController(flags *pflag.FlagSet) error {
	return f.add(flags, machineController)
}

// RunParsed runs the manager as the flags configure it, until ctx is done. It logs to stderr.
func (f *Flags) RunParsed(ctx context.Context, stderr io.Writer) error {
	if err := f.validate(); err != nil {
		return args.Wrong(err)
	}
	collectGarbage(ctx, heapPeriod)
	log, err := f.Logging.SetUp(stderr)
	if err != nil {
		return err
	}
	stop, err := tracing.Start(ctx, os.Getenv, cmp.Or(string(f.Config.Half), "millwright-manager"), f.Driver.Plugins.Version, log)
	if err != nil {
		return err
	}
	defer stop()
	if err := f.connect(); err != nil {
		return err
	}
	f.Config.Namespace = f.namespace
	for _, api := range f.apis {
		f.Config.APIs = append(f.Config.APIs, manager.API(api))
	}
	f.Config.Log, f.Config.Flags = log, map[string]string{}
	f.flags.VisitAll(func(flag *pflag.Flag) { f.Config.Flags[flag.Name] = flag.Value.String() })
	f.ignored.log(log)
	if err := f.Complete(ctx); err != nil {
		return err
	}
	return f.Run(ctx)
}

// Complete opens the drivers and completes Config from the flags. Run closes the drivers.
func (f *Flags) Complete(ctx context.Context) error {
	f.complete()
	if f.Config.Half == manager.HalfSets {
		return nil // MachineSets and MachineDeployments do not need a driver
	}
	return f.Driver.open(ctx, &f.Config)
}

// complete completes the settings of Config from the flags.
func (f *Flags) complete() {
	if f.nodeConditions != "" {
		f.Config.NodeConditions = noderef.ParseConditions(f.nodeConditions)
	}
	if f.Config.Half == manager.HalfSets {
		return
	}
	keepZeros(&f.Config.MachineSettings)
	f.Config.Health.MaxReplacements = intstr.Parse(f.replacements)
	if f.totalReplacements != "" {
		f.Config.Health.MaxTotalReplacements = ptr.To(intstr.Parse(f.totalReplacements))
	}
}

// keepZeros replaces zeros by negative values, because a zero in MachineSettings means the default. In MCM, a flag of
// zero means no time or no retry.
func keepZeros(c *manager.MachineSettings) {
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

// Run runs the manager until ctx is done, and then closes the drivers.
func (f *Flags) Run(ctx context.Context) error {
	defer f.Driver.close(f.Config.Log)
	return explain(manager.Run(ctx, f.Config), f.Config)
}

// connect reads the kubeconfigs. It does not contact the clusters.
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

// explain adds advice to common errors.
func explain(err error, config manager.Config) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("cannot listen on port %d of %s: %w; choose another port with --port", config.Port, config.Address, syscall.EADDRINUSE)
	}
	return err
}
