package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/labels"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/cli/logging"
	"github.com/millwright-dev/millwright/internal/fleet"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/internal/tracing"
)

// fleetFlags are the flags of "millwright fleet".
type fleetFlags struct {
	cluster               clusterFlags
	kinds                 func() registry.Kinds
	flags                 *pflag.FlagSet
	pages                 manager.Pages
	logging               logging.Flags
	control, namespace    string
	selector              string
	secretName, secrets   string
	namespaces, ofSecrets labels.Selector
	// plugins accepts drivers of other processes for all clusters. It is nil if the flags do not permit any.
	plugins *pluginServer
}

// NewFleet returns the command "fleet". kinds returns the drivers, each time with their own flags. The error is as in New.
func NewFleet(kinds func() registry.Kinds) (*cobra.Command, error) {
	f := &fleetFlags{kinds: kinds}
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Run the controllers of Machines for many clusters of a seed",
		Long: `Run the controllers of Machines, MachineSets and MachineDeployments for many clusters in one process.

Each namespace of the seed with a label contains the Machines of one cluster, and a Secret with the
kubeconfig of that cluster. Annotations of the namespace set the flags of its cluster:
fleet.millwright.dev/machine-drain-timeout=10m sets --machine-drain-timeout. Several replicas share
the namespaces.`,
		Example: `  millwright fleet --driver vm --namespace millwright-fleet
  kubectl label namespace cluster-a fleet.millwright.dev/serve=true
  kubectl label secret kubeconfig -n cluster-a fleet.millwright.dev/target=true`,
		Args: args.None,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f.cluster.Driver.Plugins.Version = cmd.Root().Version
		return f.run(cmd.Context(), cmd.ErrOrStderr(), cmd.Root().Version)
	}
	return cmd, f.add(cmd.Flags())
}

func (f *fleetFlags) add(flags *pflag.FlagSet) error {
	f.flags = flags
	flags.SetNormalizeFunc(dashes)
	flags.StringVar(&f.control, "control-kubeconfig", "", `kubeconfig of the seed, which contains the Machines; defaults to the in-cluster config`)
	flags.StringVar(&f.namespace, "namespace", "", "namespace of the leases by which the replicas know each other; defaults to that of the Pod or of the kubeconfig")
	flags.StringVar(&f.selector, "namespace-selector", fleet.Prefix+"serve=true", "label selector of the namespaces to serve")
	flags.StringVar(&f.secrets, "target-secret-selector", fleet.Prefix+"target=true", "label selector of the Secret, in each of these namespaces, whose key kubeconfig is for the cluster that its nodes join")
	flags.StringVar(&f.secretName, "target-secret-name", "", "name of that Secret, instead of --target-secret-selector")
	args.Section(flags, "fleet")
	flags.StringVar(&f.pages.Address, "address", "0.0.0.0", "IP address on which to serve /healthz and /metrics")
	flags.IntVar(&f.pages.Port, "port", standard.port, "port on which to serve /healthz and /metrics over HTTP; 0 to disable")
	flags.BoolVar(&f.pages.Profiling.Enabled, "profiling", false, "enable profiling via web interface host:port/debug/pprof/")
	args.Section(flags, "serving")
	f.cluster = clusterFlags{Flags: Flags{Driver: DriverFlags{Kinds: f.kinds()}}}
	f.cluster.addLimits(flags)
	f.cluster.addTuning(flags, ofFleet)
	f.logging.Add(flags)
	if err := f.cluster.Driver.add(flags, ""); err != nil {
		return err
	}
	args.Section(flags, driverSection)
	args.BareSeconds(flags)
	return nil
}

// clusterFlags are the flags of one cluster.
type clusterFlags struct{ Flags }

// addLimits adds the flags of a cluster that addTuning does not add.
func (f *clusterFlags) addLimits(flags *pflag.FlagSet) {
	flags.Float32Var(&f.qps, "kube-api-qps", standard.qps, "QPS, for each cluster, of the clients of the seed and of that cluster")
	flags.IntVar(&f.burst, "kube-api-burst", standard.burst, "burst, for each cluster, of the clients of the seed and of that cluster")
	flags.BoolVar(&f.Config.ApproveNodeCertificates, "approve-node-certificates", false, "approve the node certificate of a Machine when it is requested with the Machine's bootstrap token, and deny all other requests with that token")
	args.Section(flags, "cluster")
}

// maxSyncs limits the workers of each controller of a cluster, all of which start immediately.
const maxSyncs = 500

// validate returns all problems with the flags of a cluster.
func (f *clusterFlags) validate() error {
	var wrong args.Problems
	wrong.If(!(f.qps > 0 && f.qps <= math.MaxFloat32), "--kube-api-qps: must be a number greater than 0") // also false for NaN
	wrong.If(f.burst < 0, "--kube-api-burst: must not be negative")
	wrong.If(f.Config.ConcurrentSyncs > maxSyncs, "--concurrent-syncs: must not be greater than %d, because other clusters share the process", maxSyncs)
	wrong.If(!f.Config.Election.Enabled, "--leader-elect: must be true, because other processes may serve the same namespaces")
	wrong.Add(f.ValidateTuning())
	return wrong.Err()
}

// ofProcess lists the flags of a cluster that are the same for all.
var ofProcess = []string{"min-resync-period", "driver"}

// perNamespace reports whether an annotation of a namespace may set a flag of its cluster.
func perNamespace(name string) bool {
	return !slices.Contains(ofProcess, name) && !strings.HasPrefix(name, "leader-elect")
}

// configure returns the settings of a namespace.
func (f *fleetFlags) configure(namespace string, annotations map[string]string) (fleet.Settings, error) {
	own := &clusterFlags{Flags{Driver: DriverFlags{Kinds: f.kinds(), shared: f.plugins}}}
	flags := pflag.NewFlagSet(namespace, pflag.ContinueOnError)
	flags.SetNormalizeFunc(dashes)
	own.addLimits(flags)
	own.addTuning(flags, ofFleet)
	settable := []string{"installation"}
	flags.VisitAll(func(flag *pflag.Flag) {
		if perNamespace(flag.Name) {
			settable = append(settable, flag.Name)
		}
	})
	if err := own.Driver.add(flags, ""); err != nil {
		return fleet.Settings{}, err
	}
	args.BareSeconds(flags)
	var problems []error
	f.flags.Visit(func(flag *pflag.Flag) {
		if flags.Lookup(flag.Name) != nil {
			problems = append(problems, flags.Set(flag.Name, flag.Value.String()))
		}
	})
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		if !slices.Contains(settable, name) {
			problems = append(problems, fmt.Errorf("%s%s: not a flag that a namespace can set", fleet.Prefix, name))
			continue
		}
		problems = append(problems, flags.Set(name, annotations[name]))
	}
	if err := errors.Join(append(problems, own.validate())...); err != nil {
		return fleet.Settings{}, err
	}
	if dir := flags.Lookup("sim-dir"); dir != nil && dir.Value.String() != "" { // clusters do not share simulated clouds
		_ = dir.Value.Set(filepath.Join(dir.Value.String(), namespace)) // strings are valid
	}
	own.complete()
	return fleet.Settings{Settings: own.Config.Settings, QPS: own.qps, Burst: own.burst, Open: own.open}, nil
}

// open opens the drivers of a cluster.
func (f *clusterFlags) open(ctx context.Context, config *manager.Config) (closed func(), err error) {
	drivers := f.Driver // without those that were opened for an earlier run
	if err := drivers.open(ctx, config); err != nil {
		drivers.close(config.Log)
		return nil, err
	}
	return func() { drivers.close(config.Log) }, nil
}

// validate returns all problems with the flags.
func (f *fleetFlags) validate() (err error) {
	var wrong args.Problems
	wrong.If(f.namespace != "" && len(utilvalidation.IsDNS1123Label(f.namespace)) > 0, "--namespace: %q is not a valid namespace name", f.namespace)
	f.namespaces, err = labels.Parse(f.selector)
	wrong.If(err != nil, "--namespace-selector: %v", err)
	wrong.If(err == nil && f.namespaces.Empty(), "--namespace-selector: must not be empty, because it would select the namespaces of other programs")
	f.ofSecrets, err = labels.Parse(f.secrets)
	wrong.If(err != nil, "--target-secret-selector: %v", err)
	wrong.If(err == nil && f.ofSecrets.Empty() && f.secretName == "", "--target-secret-selector: required unless --target-secret-name is set")
	wrong.If(f.secretName != "" && f.flags.Changed("target-secret-selector"), "--target-secret-name: cannot be used with --target-secret-selector")
	wrong.If(f.secretName != "" && len(utilvalidation.IsDNS1123Subdomain(f.secretName)) > 0, "--target-secret-name: %q is not a valid name of a Secret", f.secretName)
	wrong.If(net.ParseIP(f.pages.Address) == nil, "--address: %q is not an IP address", f.pages.Address)
	wrong.Port("port", f.pages.Port)
	wrong.Add(f.cluster.validate())
	wrong.Add(f.cluster.Driver.Plugins.Validate())
	_, err = f.cluster.Driver.chosen()
	wrong.Add(err)
	return wrong.Err()
}

// run runs the fleet until ctx is done. It logs to stderr.
func (f *fleetFlags) run(ctx context.Context, stderr io.Writer, version string) error {
	if err := f.validate(); err != nil {
		return args.Wrong(err)
	}
	collectGarbage(ctx, heapPeriod)
	log, err := f.logging.SetUp(stderr)
	if err != nil {
		return err
	}
	stop, err := tracing.Start(ctx, os.Getenv, "millwright-fleet", version, log)
	if err != nil {
		return err
	}
	defer stop()
	seed, namespace, err := connect.Named("--control-kubeconfig", f.control, "")
	if err != nil {
		return err
	}
	seed.QPS, seed.Burst, seed.UserAgent = f.cluster.qps, f.cluster.burst, Agent
	f.pages.Flags = map[string]string{}
	f.flags.VisitAll(func(flag *pflag.Flag) { f.pages.Flags[flag.Name] = flag.Value.String() })
	running, ctx := errgroup.WithContext(ctx)
	if err := f.servePlugins(ctx, running, log); err != nil {
		return err
	}
	config := f.cluster.Config
	running.Go(func() error {
		return fleet.Run(ctx, fleet.Config{
			Seed: seed, Namespace: cmp.Or(f.namespace, namespace), Namespaces: f.namespaces,
			Targets: fleet.Targets{Name: f.secretName, Labels: f.ofSecrets}, Configure: f.configure,
			ResyncPeriod: config.ResyncPeriod, RenewDeadline: config.Election.RenewDeadline, RetryPeriod: config.Election.RetryPeriod,
			Pages: f.pages, Log: log,
		})
	})
	return explain(running.Wait(), manager.Config{Settings: manager.Settings{Pages: f.pages}})
}

// servePlugins begins to accept drivers of other processes, if the flags permit them.
func (f *fleetFlags) servePlugins(ctx context.Context, running *errgroup.Group, log logr.Logger) error {
	drivers := f.cluster.Driver
	if !drivers.Plugins.Serve() {
		return nil
	}
	builtIn, err := drivers.chosen()
	if err != nil {
		return err
	}
	f.plugins = newPlugins(drivers.Plugins, builtIn, log)
	running.Go(func() error { return f.plugins.Start(ctx) })
	return nil
}
