package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/utils/ptr"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machine"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/orphans"
	"github.com/millwright-dev/millwright/internal/manager"
)

// managerFlags are MCM's flags, as far as there is something behind them.
type managerFlags struct {
	control, target string
	namespace       string
	qps             float32
	burst           int
	config          manager.Config
	nodeConditions  string
	replacements    string
	// overshootingPeriod is without effect: sets are counted in every pass.
	overshootingPeriod time.Duration
	apis               []string
	driver             driverFlags
	logging            logging
}

// managerAgent is how the manager's requests are told apart in an audit log.
const managerAgent = "millwright-manager"

// What --control-kubeconfig and --target-kubeconfig may say besides a path.
const (
	kubeconfigInCluster = "inClusterConfig"
	kubeconfigNone      = "none"
)

func newManagerCommand() *cobra.Command {
	flags := &managerFlags{}
	cmd := &cobra.Command{
		Use:   "manager",
		Short: "Run the controllers of Machines, MachineSets and MachineDeployments",
		Long: `Run the controllers of Machines, MachineSets and MachineDeployments.

Machines live in the control cluster, nodes join the target cluster; both may be the
same. Flags that Gardener's Machine Controller Manager has too mean what they mean there.`,
		Example: `  millwright manager --driver sim --control-kubeconfig control.yaml --target-kubeconfig target.yaml --namespace machines`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return flags.run(cmd.Context(), cmd.ErrOrStderr())
		},
	}
	flags.add(cmd.Flags())
	return cmd
}

func (f *managerFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.control, "control-kubeconfig", "", `kubeconfig of the cluster where the Machines live; "inClusterConfig" for the one that this runs in; empty for the target cluster`)
	flags.StringVar(&f.target, "target-kubeconfig", "", `kubeconfig of the cluster that the nodes join; "none" if there is none; empty for the one that this runs in`)
	flags.StringVar(&f.namespace, "namespace", "default", `namespace of the control cluster in which the Machines live; with --apis=capi, "" for all namespaces`)
	flags.Float32Var(&f.qps, "kube-api-qps", 100, "requests per second to each API server")
	flags.IntVar(&f.burst, "kube-api-burst", 200, "requests to each API server that may come at once")
	flags.StringVar(&f.config.Address, "address", "0.0.0.0", "IP address that /healthz and /metrics are served on")
	flags.IntVar(&f.config.Port, "port", 10259, "port that /healthz and /metrics are served on, without TLS; 0 serves nothing")
	flags.BoolVar(&f.config.Profiling.Enabled, "profiling", false, "serve profiles under /debug/pprof/ there, too")
	flags.BoolVar(&f.config.Profiling.Contention, "contention-profiling", false, "have the profiles show where goroutines block; needs --profiling")
	flags.DurationVar(&f.overshootingPeriod, "machine-safety-overshooting-period", time.Minute, "accepted since MCM has it, and without effect: the Machines of a set are counted whenever it is looked at")
	f.addTuning(flags)
	f.addClusterAPI(flags)
	f.driver.addFlags(flags)
	f.logging.addFlags(flags)
}

// addTuning adds the flags that a manager has wherever it runs.
func (f *managerFlags) addTuning(flags *pflag.FlagSet) {
	c := &f.config
	flags.IntVar(&c.ConcurrentSyncs, "concurrent-syncs", 50, "objects of one kind that are looked at, and calls to the driver that run, at the same time")
	flags.DurationVar(&c.ResyncPeriod, "min-resync-period", 12*time.Hour, "how often all objects are looked at again without an event")
	flags.DurationVar(&c.CreationTimeout, "machine-creation-timeout", 20*time.Minute, "time after which a Machine that has not joined is Failed")
	flags.DurationVar(&c.ResourceExhaustedRetry, "resource-exhausted-retry", 10*time.Minute, "time between creations that fail for lack of capacity")
	f.addHealth(flags)
	f.addDrain(flags)
	flags.Int32Var(&c.Overshoot.Up, "safety-up", 2, "Machines beyond those that a set may have at which it is frozen")
	flags.Int32Var(&c.Overshoot.Down, "safety-down", 1, "Machines less than that at which it is released again")
	flags.BoolVar(&c.ProtectNodes, "autoscaler-scaledown-annotation-during-rollout", true, "keep the cluster autoscaler from removing nodes while their deployment is rolled out")
	flags.BoolVar(&c.EnforceMinReadySeconds, "enforce-min-ready-seconds", true, "count Machines as available only after minReadySeconds, which MCM ignores")
	flags.StringVar((*string)(&c.Orphans.Mode), "machine-safety-orphan-vms", string(orphans.Delete), `what is done about VMs that nobody owns: "delete", "report" or "off"`)
	flags.DurationVar(&c.Orphans.Period, "machine-safety-orphan-vms-period", 15*time.Minute, "time between two looks for VMs that nobody owns; one is removed when two of them found it")
	flags.StringVar(&f.nodeConditions, "node-conditions", "KernelDeadlock,ReadonlyFilesystem,DiskPressure,NetworkUnavailable", "node conditions that make a Machine unhealthy unless they are False")
	flags.StringVar(&c.BootstrapTokenGroups, "bootstrap-token-auth-extra-groups", "", "groups of bearers of bootstrap tokens, separated by commas; each begins with system:bootstrappers:")
	flags.BoolVar(&c.Election.Enabled, "leader-elect", true, "elect a leader among several managers")
	flags.DurationVar(&c.Election.LeaseDuration, "leader-elect-lease-duration", 15*time.Second, "time after which others may take over from a leader that does not answer")
	flags.DurationVar(&c.Election.RenewDeadline, "leader-elect-renew-deadline", 10*time.Second, "time after which a leader that cannot renew its leases gives up")
	flags.DurationVar(&c.Election.RetryPeriod, "leader-elect-retry-period", 2*time.Second, "time between attempts to get or renew the leases")
}

func (f *managerFlags) addClusterAPI(flags *pflag.FlagSet) {
	c := &f.config
	flags.StringSliceVar(&f.apis, "apis", []string{string(manager.APIMCM)}, `APIs whose machines are made, separated by commas: "mcm" for Machines of machine.sapcloud.io, "capi" for MillwrightMachines of Cluster API`)
	flags.StringVar(&c.ClusterAPI.WatchFilter, "watch-filter", "", "value of the label cluster.x-k8s.io/watch-filter of the MillwrightMachines and MillwrightClusters that are looked after; empty for all of them")
	flags.IntVar(&c.ClusterAPI.WebhookPort, "webhook-port", 0, "port that webhooks for the kinds of Cluster API are served on; 0 serves none, and they are not needed")
	flags.StringVar(&c.ClusterAPI.WebhookCertDir, "webhook-cert-dir", "", "folder with tls.crt and tls.key of the webhooks")
	flags.StringVar(&c.Election.Namespace, "leader-elect-namespace", "", "namespace of the leases; empty for that of --namespace")
	flags.StringVar(&c.Election.ClusterAPILease, "leader-elect-resource-name", infrav1.Lease, "name of the lease of the API capi; managers of different objects need different ones, the names of MCM's leases are fixed")
}

func (f *managerFlags) addHealth(flags *pflag.FlagSet) {
	h := &f.config.Health
	flags.DurationVar(&h.Timeout, "machine-health-timeout", machine.DefaultHealthTimeout, "time after which an unhealthy Machine is Failed, and replaced by its set")
	flags.StringVar(&f.replacements, "machine-max-health-replacements", "1", `Machines with the same label "name" that may be replaced for their health at the same time: a number, or a percentage of them`)
	flags.DurationVar(&h.OutageTimeout, "machine-safety-apiserver-statuscheck-timeout", machine.DefaultOutageTimeout, "time after which an API server that does not answer counts as having been away")
	flags.DurationVar(&h.OutagePeriod, "machine-safety-apiserver-statuscheck-period", machine.DefaultOutagePeriod, "time between two questions to the API servers whether they answer, while a timeout is counted")
}

func (f *managerFlags) addDrain(flags *pflag.FlagSet) {
	d := &f.config.Drain
	flags.DurationVar(&d.Timeout, "machine-drain-timeout", machine.DefaultDrainTimeout, "time after which the drain of a node is forced")
	flags.Int32Var(&d.MaxEvictRetries, "machine-max-evict-retries", machine.DefaultMaxEvictRetries, "times that an eviction which was refused is tried again")
	flags.DurationVar(&d.DetachTimeout, "machine-pv-detach-timeout", drain.DefaultDetachTimeout, "time that a volume may take to be detached in a drain")
	flags.DurationVar(&d.ReattachTimeout, "machine-pv-reattach-timeout", drain.DefaultReattachTimeout, "time that it may then take to be attached to another node")
	flags.StringVar((*string)(&d.Strategy), "drain-volume-pods", string(drain.Serial), `how pods with volumes leave a node: "serial", one after another, or "independent", as far as they share no volume`)
}

func (f *managerFlags) run(ctx context.Context, stderr io.Writer) error {
	if err := f.validate(); err != nil {
		return &usageError{command: "manager", err: err}
	}
	collectGarbage(ctx, heapPeriod)
	log, err := f.logging.setUp(stderr)
	if err != nil {
		return &usageError{command: "manager", err: err}
	}
	if err := f.connect(); err != nil {
		return err
	}
	f.config.Namespace = f.namespace
	for _, api := range f.apis {
		f.config.APIs = append(f.config.APIs, manager.API(api))
	}
	f.config.Log = log
	f.completeTuning()
	if err := f.driver.open(&f.config); err != nil {
		return err
	}
	return explain(manager.Run(ctx, f.config), f.config)
}

// validate says all that is wrong with the flags at once.
func (f *managerFlags) validate() error {
	c := f.config
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(f.target == kubeconfigNone && f.control == "", "--control-kubeconfig: required when --target-kubeconfig is none")
	errs = append(errs, f.validateAPIs())
	refuse(net.ParseIP(c.Address) == nil, "--address: %q is not an IP address", c.Address)
	refuse(c.Port < 0 || c.Port > 65535, "--port: %d is not between 0 and 65535", c.Port)
	refuse(f.qps <= 0, "--kube-api-qps: must be above 0")
	refuse(f.burst < 0, "--kube-api-burst: must not be negative")
	refuse(c.Profiling.Contention && !c.Profiling.Enabled, "--contention-profiling: needs --profiling")
	refuse(f.overshootingPeriod < 0, "--machine-safety-overshooting-period: must not be negative")
	errs = append(errs, f.validateTuning())
	return errors.Join(errs...)
}

func (f *managerFlags) validateAPIs() error {
	c := f.config
	known := []string{string(manager.APIMCM), string(manager.APICAPI)}
	all := len(f.apis) == 1 && f.apis[0] == string(manager.APICAPI)
	switch unknown := slices.IndexFunc(f.apis, func(api string) bool { return !slices.Contains(known, api) }); {
	case len(f.apis) == 0:
		return errors.New("--apis: must not be empty")
	case unknown >= 0:
		return fmt.Errorf("--apis: %q is none of %s", f.apis[unknown], strings.Join(known, ", "))
	case f.namespace == "" && !all:
		return errors.New("--namespace: must not be empty, unless --apis is capi only")
	case f.namespace == "" && c.Election.Enabled && c.Election.Namespace == "":
		return errors.New("--leader-elect-namespace: required when --namespace is empty")
	case c.ClusterAPI.WebhookPort < 0 || c.ClusterAPI.WebhookPort > 65535:
		return fmt.Errorf("--webhook-port: %d is not between 0 and 65535", c.ClusterAPI.WebhookPort)
	case c.ClusterAPI.WebhookPort != 0 && (c.ClusterAPI.WebhookCertDir == "" || !slices.Contains(f.apis, string(manager.APICAPI))):
		return errors.New("--webhook-port: needs --webhook-cert-dir, and capi among --apis")
	}
	return nil
}

// completeTuning puts into the configuration what flags give in another form.
func (f *managerFlags) completeTuning() {
	f.config.NodeConditions = splitList(f.nodeConditions)
	f.config.Health.MaxReplacements = intstr.Parse(f.replacements)
}

func (f *managerFlags) validateTuning() error {
	c := f.config
	var errs []error
	if c.ConcurrentSyncs <= 0 {
		errs = append(errs, errors.New("--concurrent-syncs: must be above 0"))
	}
	for _, flag := range []struct {
		name  string
		value time.Duration
	}{
		{"min-resync-period", c.ResyncPeriod}, {"machine-creation-timeout", c.CreationTimeout}, {"resource-exhausted-retry", c.ResourceExhaustedRetry},
		{"machine-health-timeout", c.Health.Timeout}, {"machine-drain-timeout", c.Drain.Timeout},
		{"machine-safety-apiserver-statuscheck-timeout", c.Health.OutageTimeout}, {"machine-safety-apiserver-statuscheck-period", c.Health.OutagePeriod},
		{"machine-pv-detach-timeout", c.Drain.DetachTimeout}, {"machine-pv-reattach-timeout", c.Drain.ReattachTimeout},
		{"machine-safety-orphan-vms-period", c.Orphans.Period}, {"machine-max-evict-retries", time.Duration(c.Drain.MaxEvictRetries)},
	} {
		if flag.value < 0 {
			errs = append(errs, fmt.Errorf("--%s: must not be negative", flag.name))
		}
	}
	if c.Overshoot.Up < 0 || c.Overshoot.Down < 0 {
		errs = append(errs, errors.New("--safety-up, --safety-down: must not be negative"))
	}
	if !slices.Contains([]orphans.Mode{orphans.Delete, orphans.Report, orphans.Off}, c.Orphans.Mode) {
		errs = append(errs, fmt.Errorf("--machine-safety-orphan-vms: %q is none of delete, report, off", c.Orphans.Mode))
	}
	if c.Drain.Strategy != drain.Serial && c.Drain.Strategy != drain.Independent {
		errs = append(errs, fmt.Errorf("--drain-volume-pods: %q is neither serial nor independent", c.Drain.Strategy))
	}
	if _, err := intstr.GetScaledValueFromIntOrPercent(ptr.To(intstr.Parse(f.replacements)), 100, false); err != nil {
		errs = append(errs, fmt.Errorf("--machine-max-health-replacements: %q is neither a number nor a percentage", f.replacements))
	}
	return errors.Join(append(errs, validateElection(c.Election))...)
}

// validateElection says what client-go would refuse, or could not keep its word with.
func validateElection(e manager.Election) error {
	switch {
	case !e.Enabled:
		return nil
	case e.LeaseDuration < time.Second:
		return errors.New("--leader-elect-lease-duration: must be at least 1s")
	case e.RetryPeriod <= 0, float64(e.RenewDeadline) <= leaderelection.JitterFactor*float64(e.RetryPeriod), e.LeaseDuration <= e.RenewDeadline:
		return fmt.Errorf("--leader-elect-*: the lease duration must be above the renew deadline, and that above %v times the retry period", leaderelection.JitterFactor)
	}
	return nil
}

// connect reads the kubeconfigs. Nothing is contacted yet.
func (f *managerFlags) connect() error {
	var err error
	if f.target != kubeconfigNone {
		if f.config.Target, err = f.load("--target-kubeconfig", f.target); err != nil {
			return err
		}
	}
	control := f.control
	if control == "" {
		control = f.target
	}
	f.config.Control, err = f.load("--control-kubeconfig", control)
	return err
}

func (f *managerFlags) load(flag, path string) (*rest.Config, error) {
	var config *rest.Config
	var err error
	if path == "" || path == kubeconfigInCluster {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", path)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	config.QPS, config.Burst = f.qps, f.burst
	config.UserAgent = managerAgent
	return config, nil
}

// explain turns what operators run into most into sentences that say what to do.
func explain(err error, config manager.Config) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("port %d on %s is taken by another process: choose another one with --port", config.Port, config.Address)
	case errors.Is(err, context.Canceled):
		return nil
	default:
		return err
	}
}

func splitList(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// writable says why a folder cannot be used; nil if it can.
func writable(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("folder %s cannot be used: %w", dir, err)
	}
	return nil
}
