package manager

import (
	"time"

	"github.com/spf13/pflag"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver/instrument"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/orphans"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity/capacity"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/manager"
)

// defaults are the default values that differ between the commands.
type defaults struct {
	half            manager.Half
	port            int
	concurrentSyncs int
	qps             float32
	burst           int
	driver          string
	minReadySeconds bool
	recordJoins     bool
}

var (
	// standard has the API rate limit that Gardener sets for MCM, because one process does the work of two.
	standard = defaults{port: 10259, concurrentSyncs: 50, qps: 100, burst: 200, minReadySeconds: true}
	// ofFleet has fewer workers, because each cluster has its own.
	ofFleet = defaults{port: standard.port, concurrentSyncs: 10, qps: standard.qps, burst: standard.burst, minReadySeconds: true}
	// The defaults of MCM's processes. MCM compiles its driver in, and annotates all Machines.
	machineController        = defaults{half: manager.HalfMachines, port: 10259, concurrentSyncs: 50, qps: 20, burst: 30, driver: "vm", recordJoins: true}
	machineControllerManager = defaults{half: manager.HalfSets, port: 10258, concurrentSyncs: 10, qps: 20, burst: 30}
)

func (f *Flags) add(flags *pflag.FlagSet, d defaults) error {
	flags.SetNormalizeFunc(dashes)
	f.Config.Half = d.half
	flags.StringVar(&f.control, "control-kubeconfig", "", `kubeconfig of the control cluster, which contains the Machines; "inClusterConfig" for the in-cluster config; defaults to --target-kubeconfig`)
	flags.StringVar(&f.target, "target-kubeconfig", "", `kubeconfig of the target cluster, which the nodes join; "none" to run without a target cluster; defaults to the in-cluster config`)
	namespace := "namespace of the Machines in the control cluster"
	if d.half == "" {
		namespace += `; with --apis=capi, "" for all namespaces`
	}
	flags.StringVar(&f.namespace, "namespace", "default", namespace)
	flags.Float32Var(&f.qps, "kube-api-qps", d.qps, "QPS of the client of each API server")
	flags.IntVar(&f.burst, "kube-api-burst", d.burst, "burst of the client of each API server")
	args.Section(flags, "cluster")
	flags.StringVar(&f.Config.Address, "address", "0.0.0.0", "IP address on which to serve /healthz and /metrics")
	flags.IntVar(&f.Config.Port, "port", d.port, "port on which to serve /healthz and /metrics over HTTP; 0 to disable")
	flags.BoolVar(&f.Config.Profiling.Enabled, "profiling", false, "enable profiling via web interface host:port/debug/pprof/")
	flags.BoolVar(&f.Config.Profiling.Contention, "contention-profiling", false, "enable block profiling; requires --profiling")
	args.Section(flags, "serving")
	flags.StringVar(&f.Config.Election.Namespace, "leader-elect-namespace", "", "namespace of the leases; defaults to --namespace")
	args.Section(flags, electionSection)
	f.addTuning(flags, d)
	if d.half == "" {
		f.addClusterAPI(flags)
		args.Section(flags, "Cluster API")
	} else {
		f.apis = []string{string(manager.APIMCM)}
	}
	if d.half != manager.HalfSets {
		flags.IntVar(&f.Config.Webhooks.Port, "webhook-port", 0, "port of the optional webhooks, which warn about invalid objects of machine.sapcloud.io and reject unsupported changes to objects of Cluster API; 0 to disable")
		flags.StringVar(&f.Config.Webhooks.CertDir, "webhook-cert-dir", "", "directory with the webhook server's tls.crt and tls.key")
		flags.BoolVar(&f.Config.ApproveNodeCertificates, "approve-node-certificates", false, "approve the node certificate of a Machine when it is requested with the Machine's bootstrap token, and deny all other requests with that token; requires the ClusterRole millwright-node-certificates, and that no other approver handles bootstrap tokens")
		args.Section(flags, "admission")
	}
	f.ignored.add(flags, d.half)
	args.Section(flags, "MCM compatibility")
	f.Logging.TextIsKlog = d.half != ""
	f.Logging.Add(flags)
	if d.half != manager.HalfSets { // last, so that a driver cannot use the name of another flag
		if err := f.Driver.add(flags, d.driver); err != nil {
			return err
		}
		args.Section(flags, driverSection)
	}
	args.BareSeconds(flags)
	return nil
}

// Sections of the help.
const (
	electionSection = "leader election"
	driverSection   = "driver"
)

// AddTuning adds the flags that "millwright up" shares.
func (f *Flags) AddTuning(flags *pflag.FlagSet) {
	f.addTuning(flags, standard)
	args.BareSeconds(flags)
}

func (f *Flags) addTuning(flags *pflag.FlagSet, d defaults) {
	f.flags = flags
	c := &f.Config
	flags.IntVar(&c.ConcurrentSyncs, "concurrent-syncs", d.concurrentSyncs, "number of objects of each kind that are reconciled concurrently, and number of concurrent driver calls")
	flags.DurationVar(&c.ResyncPeriod, "min-resync-period", 12*time.Hour, "resync period of the informers")
	args.Section(flags, "controller")
	AddElection(flags, &c.Election)
	if d.half != manager.HalfSets {
		f.addMachines(flags, d)
		args.Section(flags, "machine")
		f.addHealth(flags)
		args.Section(flags, "health")
		f.addDrain(flags)
		args.Section(flags, "drain")
	}
	if d.half != manager.HalfMachines {
		f.addSets(flags, d)
		args.Section(flags, "MachineSet and MachineDeployment")
	}
}

// AddElection adds the flags of leader election.
func AddElection(flags *pflag.FlagSet, e *manager.Election) {
	flags.BoolVar(&e.Enabled, "leader-elect", true, "enable leader election")
	flags.DurationVar(&e.LeaseDuration, "leader-elect-lease-duration", 15*time.Second, "duration after which non-leaders may acquire a lease that was not renewed")
	flags.DurationVar(&e.RenewDeadline, "leader-elect-renew-deadline", 10*time.Second, "duration after which a leader that cannot renew its lease stops leading")
	flags.DurationVar(&e.RetryPeriod, "leader-elect-retry-period", 2*time.Second, "duration between renewals of a lease; non-leaders check four times as often whether the lease was released")
	args.Section(flags, electionSection)
}

func (f *Flags) addMachines(flags *pflag.FlagSet, d defaults) {
	c := &f.Config
	flags.DurationVar(&c.CreationTimeout, "machine-creation-timeout", timeouts.DefaultCreation, "period after which a Machine whose node has not joined is marked Failed")
	flags.BoolVar(&c.RecordJoins, "annotate-join-duration", d.recordJoins, "annotate every new Machine with the time that its node took to join, which takes one API request per Machine; if false, only Machines with the annotation effective-creation-timeout are annotated")
	flags.DurationVar(&c.DriverTimeout, "driver-timeout", instrument.DefaultTimeout, "timeout of a driver call; set --machine-creation-timeout to more than this plus the time that a node takes to join")
	flags.DurationVar(&c.ResourceExhaustedRetry, "resource-exhausted-retry", timeouts.DefaultResourceExhausted, "retry period after a VM creation that failed with ResourceExhausted")
	flags.DurationVar(&c.Fallback.After, "fallback-after", capacity.DefaultAfter, "period without capacity after which Machines are created with the next MachineClass of their MachineDeployment's fallbackClasses")
	flags.DurationVar(&c.Fallback.Memory, "fallback-memory", capacity.DefaultMemory, "period for which a MachineClass that had no capacity, or whose zone had an outage, is not retried for Machines that can use another class")
	flags.DurationVar(&c.Timeouts.Preserve, "machine-preserve-timeout", timeouts.DefaultPreserve, "period for which a preserved Machine is kept")
	flags.DurationVar(&c.Timeouts.InPlaceUpdate, "machine-inplace-update-timeout", timeouts.DefaultInPlaceUpdate, "period after which an in-place update that is not complete is considered failed")
	flags.StringVar((*string)(&c.Orphans.Mode), "machine-safety-orphan-vms", string(orphans.Delete), `how to handle orphaned VMs: "delete", "report" or "off"`)
	flags.DurationVar(&c.Orphans.Period, "machine-safety-orphan-vms-period", 15*time.Minute, "period of the check for orphaned VMs; an orphaned VM is deleted after two consecutive checks have found it")
	flags.StringVar(&f.nodeConditions, "node-conditions", "KernelDeadlock,ReadonlyFilesystem,DiskPressure,NetworkUnavailable", "comma-separated node conditions that make a Machine unhealthy unless False")
	flags.StringVar(&c.BootstrapTokenGroups, "bootstrap-token-auth-extra-groups", "", "comma-separated extra groups that bootstrap tokens authenticate as; each must begin with system:bootstrappers:")
}

func (f *Flags) addSets(flags *pflag.FlagSet, d defaults) {
	c := &f.Config
	flags.Int32Var(&c.Overshoot.Up, "safety-up", 2, "number of Machines beyond replicas plus maxSurge at which a MachineSet is frozen")
	flags.Int32Var(&c.Overshoot.Down, "safety-down", 1, "number of Machines below the limit of --safety-up at which a frozen MachineSet is unfrozen")
	flags.BoolVar(&c.ProtectNodes, "autoscaler-scaledown-annotation-during-rollout", true, "annotate nodes to disable scale-down by the cluster autoscaler during a rollout")
	flags.BoolVar(&c.EnforceMinReadySeconds, "enforce-min-ready-seconds", d.minReadySeconds, "count a Machine as available only after minReadySeconds; MCM ignores the field")
}

func (f *Flags) addClusterAPI(flags *pflag.FlagSet) {
	c := &f.Config
	flags.StringSliceVar(&f.apis, "apis", []string{string(manager.APIMCM)}, `comma-separated APIs to serve: "mcm" for Machines of machine.sapcloud.io, "capi" for MillwrightMachines of Cluster API`)
	flags.StringVar(&c.Webhooks.HookClientCAs, "runtime-hook-client-ca-file", "", "PEM file with authorities; if set, the runtime hooks at --webhook-port require a client certificate of one of them, as Cluster API presents with --runtime-extension-client-cert-file; empty to accept all clients")
	flags.StringVar(&c.ClusterAPI.WatchFilter, "watch-filter", "", "reconcile only MillwrightMachines and MillwrightClusters whose label cluster.x-k8s.io/watch-filter has this value; empty for all")
	flags.StringVar(&c.Election.ClusterAPILease, "leader-elect-resource-name", infrav1.Lease, "name of the lease for --apis=capi; managers with a different --namespace or --watch-filter must use different names; MCM's lease names are fixed")
}

func (f *Flags) addHealth(flags *pflag.FlagSet) {
	h := &f.Config.Health
	flags.DurationVar(&h.Timeout, "machine-health-timeout", timeouts.DefaultHealth, "period after which an unhealthy Machine is marked Failed and replaced")
	flags.StringVar(&f.totalReplacements, "machine-max-total-health-replacements", "", "maximum number or percentage of unhealthy Machines, across all pools, that are replaced concurrently; 0 replaces none; empty for no limit")
	flags.StringVar(&f.replacements, "machine-max-health-replacements", "1", `maximum number or percentage of the Machines with the same label "name" that are replaced concurrently because they are unhealthy, and that are drained forcefully at the same time after an outage`)
	flags.DurationVar(&h.OutageTimeout, "machine-safety-apiserver-statuscheck-timeout", timeouts.DefaultOutage, "period after which an API server that does not respond is considered unreachable")
	flags.DurationVar(&h.OutagePeriod, "machine-safety-apiserver-statuscheck-period", timeouts.DefaultOutagePeriod, "period of the health check of the API servers; the check runs only while a Machine timeout is pending or metrics are scraped")
}

func (f *Flags) addDrain(flags *pflag.FlagSet) {
	d := &f.Config.Drain
	flags.DurationVar(&d.Timeout, "machine-drain-timeout", timeouts.DefaultDrain, "period after which a node is drained forcefully")
	flags.Int32Var(&d.MaxEvictRetries, "machine-max-evict-retries", timeouts.DefaultMaxEvictRetries, "maximum number of retries of a rejected eviction")
	flags.DurationVar(&d.DetachTimeout, "machine-pv-detach-timeout", drain.DefaultDetachTimeout, "timeout for the detachment of a volume during drain")
	flags.DurationVar(&d.ReattachTimeout, "machine-pv-reattach-timeout", drain.DefaultReattachTimeout, "timeout for the attachment of a detached volume to another node")
	flags.StringVar((*string)(&d.Strategy), "drain-volume-pods", string(drain.Serial), `how to evict Pods with volumes: "serial" for one at a time, "independent" for concurrently unless Pods share a volume`)
}
