// Package manager runs the controllers.
package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/utils/ptr"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/cli/logging"
	"github.com/millwright-dev/millwright/internal/controllers/machine"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/orphans"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/manager"
)

// Flags are those of MCM that have an effect here, and our own.
type Flags struct {
	// Config is filled by the flags; Complete adds the rest.
	Config manager.Config
	// Driver configures the driver.
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
	apis            []string
	// overshootingPeriod has no effect: Machines of a set are counted in every reconcile.
	overshootingPeriod time.Duration
}

// Agent is the user agent of the manager's requests.
const Agent = "millwright-manager"

// New returns "millwright manager".
func New() *cobra.Command {
	flags := &Flags{}
	cmd := &cobra.Command{
		Use:   "manager",
		Short: "Run the controllers of Machines, MachineSets and MachineDeployments",
		Long: `Run the controllers of Machines, MachineSets and MachineDeployments.

Machines live in the control cluster, nodes join the target cluster; both may be the
same. Flags that Gardener's Machine Controller Manager has too mean what they mean there.`,
		Example: `  millwright manager --driver sim --control-kubeconfig control.yaml --target-kubeconfig target.yaml --namespace machines`,
		Args:    args.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return flags.run(cmd.Context(), cmd.ErrOrStderr())
		},
	}
	flags.add(cmd.Flags())
	return cmd
}

func (f *Flags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.control, "control-kubeconfig", "", `kubeconfig of the control cluster, which holds the Machines; "inClusterConfig" for the in-cluster config; defaults to --target-kubeconfig`)
	flags.StringVar(&f.target, "target-kubeconfig", "", `kubeconfig of the target cluster, which the nodes join; "none" if there is none; defaults to the in-cluster config`)
	flags.StringVar(&f.namespace, "namespace", "default", `namespace of the Machines in the control cluster; with --apis=capi, "" for all namespaces`)
	flags.Float32Var(&f.qps, "kube-api-qps", 100, "QPS of the client of each API server")
	flags.IntVar(&f.burst, "kube-api-burst", 200, "burst of the client of each API server")
	flags.StringVar(&f.Config.Address, "address", "0.0.0.0", "IP address on which to serve /healthz and /metrics")
	flags.IntVar(&f.Config.Port, "port", 10259, "port on which to serve /healthz and /metrics over HTTP; 0 to disable")
	flags.BoolVar(&f.Config.Profiling.Enabled, "profiling", false, "enable profiling via web interface host:port/debug/pprof/")
	flags.BoolVar(&f.Config.Profiling.Contention, "contention-profiling", false, "enable block profiling; requires --profiling")
	flags.DurationVar(&f.overshootingPeriod, "machine-safety-overshooting-period", time.Minute, "no effect, accepted for compatibility with MCM: the Machines of a MachineSet are counted in every reconcile")
	flags.BoolVar(&f.Config.NodeCertificates.Approve, "approve-node-certificates", false, "approve the certificate of the node of a Machine when its bootstrap token requests it, and deny that token all others; needs the ClusterRole millwright-node-certificates, and no other approver for bootstrap tokens")
	f.AddTuning(flags)
	f.addClusterAPI(flags)
	f.Driver.add(flags)
	f.Logging.Add(flags)
}

// AddTuning adds the flags that "millwright up" has too.
func (f *Flags) AddTuning(flags *pflag.FlagSet) {
	f.flags = flags
	c := &f.Config
	flags.IntVar(&c.ConcurrentSyncs, "concurrent-syncs", 50, "number of objects of a kind that are reconciled concurrently, and of concurrent driver calls")
	flags.DurationVar(&c.ResyncPeriod, "min-resync-period", 12*time.Hour, "resync period of the informers")
	flags.DurationVar(&c.CreationTimeout, "machine-creation-timeout", 20*time.Minute, "period after which a Machine whose node has not joined is marked Failed")
	flags.DurationVar(&c.ResourceExhaustedRetry, "resource-exhausted-retry", 10*time.Minute, "retry period after a creation that failed with ResourceExhausted")
	flags.DurationVar(&c.Timeouts.Preserve, "machine-preserve-timeout", timeouts.DefaultPreserve, "period for which a Machine is preserved")
	flags.DurationVar(&c.Timeouts.InPlaceUpdate, "machine-inplace-update-timeout", timeouts.DefaultInPlaceUpdate, "period after which an in-place update that has not ended has failed")
	f.addHealth(flags)
	f.addDrain(flags)
	flags.Int32Var(&c.Overshoot.Up, "safety-up", 2, "number of Machines above replicas plus maxSurge at which a MachineSet is frozen")
	flags.Int32Var(&c.Overshoot.Down, "safety-down", 1, "number of Machines below the limit of --safety-up at which a frozen MachineSet is unfrozen")
	flags.BoolVar(&c.ProtectNodes, "autoscaler-scaledown-annotation-during-rollout", true, "annotate nodes to disable scale-down by the cluster autoscaler during a rollout")
	flags.BoolVar(&c.EnforceMinReadySeconds, "enforce-min-ready-seconds", true, "count a Machine as available only after minReadySeconds; MCM ignores the field")
	flags.StringVar((*string)(&c.Orphans.Mode), "machine-safety-orphan-vms", string(orphans.Delete), `how to handle orphaned VMs: "delete", "report" or "off"`)
	flags.DurationVar(&c.Orphans.Period, "machine-safety-orphan-vms-period", 15*time.Minute, "period of the check for orphaned VMs; an orphan is deleted when two checks in a row have found it")
	flags.StringVar(&f.nodeConditions, "node-conditions", "KernelDeadlock,ReadonlyFilesystem,DiskPressure,NetworkUnavailable", "comma-separated node conditions that make a Machine unhealthy unless False")
	flags.StringVar(&c.BootstrapTokenGroups, "bootstrap-token-auth-extra-groups", "", "comma-separated groups that bootstrap tokens authenticate as; each must begin with system:bootstrappers:")
	flags.BoolVar(&c.Election.Enabled, "leader-elect", true, "enable leader election")
	flags.DurationVar(&c.Election.LeaseDuration, "leader-elect-lease-duration", 15*time.Second, "duration after which non-leaders may acquire a lease that was not renewed")
	flags.DurationVar(&c.Election.RenewDeadline, "leader-elect-renew-deadline", 10*time.Second, "duration after which a leader that fails to renew a lease stops leading")
	flags.DurationVar(&c.Election.RetryPeriod, "leader-elect-retry-period", 2*time.Second, "duration between attempts to acquire or renew a lease")
}

func (f *Flags) addClusterAPI(flags *pflag.FlagSet) {
	c := &f.Config
	flags.StringSliceVar(&f.apis, "apis", []string{string(manager.APIMCM)}, `comma-separated APIs to serve: "mcm" for Machines of machine.sapcloud.io, "capi" for MillwrightMachines of Cluster API`)
	flags.StringVar(&c.ClusterAPI.WatchFilter, "watch-filter", "", "reconcile only MillwrightMachines and MillwrightClusters whose label cluster.x-k8s.io/watch-filter has this value; empty for all")
	flags.IntVar(&c.ClusterAPI.WebhookPort, "webhook-port", 0, "port of the optional webhooks for the kinds of Cluster API; 0 to disable")
	flags.StringVar(&c.ClusterAPI.WebhookCertDir, "webhook-cert-dir", "", "directory with the webhook server's tls.crt and tls.key")
	flags.StringVar(&c.Election.Namespace, "leader-elect-namespace", "", "namespace of the leases; defaults to --namespace")
	flags.StringVar(&c.Election.ClusterAPILease, "leader-elect-resource-name", infrav1.Lease, "name of the lease for --apis=capi, which managers with different --namespace or --watch-filter must not share; MCM's lease names are fixed")
}

func (f *Flags) addHealth(flags *pflag.FlagSet) {
	h := &f.Config.Health
	flags.DurationVar(&h.Timeout, "machine-health-timeout", machine.DefaultHealthTimeout, "period after which an unhealthy Machine is marked Failed and replaced")
	flags.StringVar(&f.replacements, "machine-max-health-replacements", "1", `number or percentage of the Machines with the same label "name" that may be replaced for their health concurrently, and, after an outage, whose drains may be forced concurrently`)
	flags.DurationVar(&h.OutageTimeout, "machine-safety-apiserver-statuscheck-timeout", machine.DefaultOutageTimeout, "period after which an API server that does not answer is considered unreachable")
	flags.DurationVar(&h.OutagePeriod, "machine-safety-apiserver-statuscheck-period", machine.DefaultOutagePeriod, "period of the API servers' health check, which runs while a Machine timeout is pending or metrics are scraped")
}

func (f *Flags) addDrain(flags *pflag.FlagSet) {
	d := &f.Config.Drain
	flags.DurationVar(&d.Timeout, "machine-drain-timeout", machine.DefaultDrainTimeout, "period after which a node is drained forcefully")
	flags.Int32Var(&d.MaxEvictRetries, "machine-max-evict-retries", machine.DefaultMaxEvictRetries, "maximum number of retries of a rejected eviction")
	flags.DurationVar(&d.DetachTimeout, "machine-pv-detach-timeout", drain.DefaultDetachTimeout, "timeout for the detachment of a volume during drain")
	flags.DurationVar(&d.ReattachTimeout, "machine-pv-reattach-timeout", drain.DefaultReattachTimeout, "timeout for the attachment of that volume to another node")
	flags.StringVar((*string)(&d.Strategy), "drain-volume-pods", string(drain.Serial), `how to evict Pods with volumes: "serial" for one by one, "independent" for concurrently unless they share a volume`)
}

func (f *Flags) run(ctx context.Context, stderr io.Writer) error {
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
	f.Config.Log = log
	if err := f.Complete(); err != nil {
		return err
	}
	return f.Run(ctx)
}

// Complete opens the driver, and completes Config from the flags.
func (f *Flags) Complete() error {
	if f.nodeConditions != "" {
		f.Config.NodeConditions = strings.Split(f.nodeConditions, ",")
	}
	f.Config.Health.MaxReplacements = intstr.Parse(f.replacements)
	return f.Driver.open(&f.Config)
}

// Run runs the manager until the context ends.
func (f *Flags) Run(ctx context.Context) error {
	return explain(manager.Run(ctx, f.Config), f.Config)
}

// validate returns all problems with the flags.
func (f *Flags) validate() error {
	c := f.Config
	var wrong args.Problems
	wrong.If(f.target == kubeconfig.None && f.control == "", "--control-kubeconfig: required when --target-kubeconfig is none")
	wrong.Add(f.validateAPIs())
	wrong.If(c.NodeCertificates.Approve && (f.target == kubeconfig.None || !slices.Contains(f.apis, string(manager.APIMCM))), "--approve-node-certificates: needs a target cluster, and mcm among --apis")
	wrong.If(net.ParseIP(c.Address) == nil, "--address: %q is not an IP address", c.Address)
	wrong.Port("port", c.Port)
	wrong.If(f.qps <= 0, "--kube-api-qps: must be above 0")
	wrong.If(f.burst < 0, "--kube-api-burst: must not be negative")
	wrong.If(c.Profiling.Contention && !c.Profiling.Enabled, "--contention-profiling: needs --profiling")
	wrong.Add(f.ValidateTuning())
	return wrong.Err()
}

func (f *Flags) validateAPIs() error {
	c := f.Config
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

// ValidateTuning returns all problems with the flags of AddTuning.
func (f *Flags) ValidateTuning() error {
	c := f.Config
	var wrong args.Problems
	wrong.If(c.ConcurrentSyncs <= 0, "--concurrent-syncs: must be above 0")
	wrong.Negative(f.flags)
	wrong.If(!slices.Contains([]orphans.Mode{orphans.Delete, orphans.Report, orphans.Off}, c.Orphans.Mode), "--machine-safety-orphan-vms: %q is none of delete, report, off", c.Orphans.Mode)
	wrong.If(c.Drain.Strategy != drain.Serial && c.Drain.Strategy != drain.Independent, "--drain-volume-pods: %q is neither serial nor independent", c.Drain.Strategy)
	_, err := intstr.GetScaledValueFromIntOrPercent(ptr.To(intstr.Parse(f.replacements)), 100, false)
	wrong.If(err != nil, "--machine-max-health-replacements: %q is neither a number nor a percentage", f.replacements)
	wrong.Add(validateElection(c.Election))
	return wrong.Err()
}

// validateElection returns an error for times that client-go refuses, or that make leadership
// unreliable.
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

// connect reads the kubeconfigs. It does not contact the clusters yet.
func (f *Flags) connect() error {
	var err error
	if f.target != kubeconfig.None {
		if f.Config.Target, err = f.load("--target-kubeconfig", f.target); err != nil {
			return err
		}
	}
	f.Config.Control, err = f.load("--control-kubeconfig", cmp.Or(f.control, f.target))
	return err
}

func (f *Flags) load(flag, path string) (*rest.Config, error) {
	config, _, err := kubeconfig.Named(flag, path, "")
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
