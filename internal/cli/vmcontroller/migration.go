package vmcontroller

import (
	"slices"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/manager"
)

// Migrations are the flags for how virtual machines leave a host. "millwright up" also has them.
type Migrations struct {
	perHost   int
	bandwidth resource.QuantityValue
	time      time.Duration
	shutdown  time.Duration
	downtime  time.Duration
	converge  bool
	perGiB    time.Duration
	policy    string
}

// policies are the values of --vm-migration-completion-timeout-policy.
var policies = []string{string(vmv1alpha1.CompletionTimeoutPause), string(vmv1alpha1.CompletionTimeoutCancel)}

// Add adds the flags.
func (m *Migrations) Add(set *pflag.FlagSet) {
	set.IntVar(&m.perHost, "vm-migrations-per-host", 1, "maximum number of virtual machines that leave a host at the same time, as in a drain; 0 for no limit")
	set.Var(&m.bandwidth, "vm-migration-bandwidth", "maximum bytes per second, such as 100Mi, for each of memory and disk in a live migration; 0 for QEMU's default for memory and no limit for disks; spec.migration.bandwidth can only be lower")
	set.DurationVar(&m.downtime, "vm-migration-downtime-limit", manager.DefaultVMDowntimeLimit, "how long a guest may be stopped for the last part of its memory in a live migration, for virtual machines without spec.migration.downtimeLimitMilliseconds: 1ms to 20s")
	set.BoolVar(&m.converge, "vm-migration-auto-converge", true, "slow down the CPUs of a guest that writes memory faster than a live migration copies it, for virtual machines without spec.migration.allowAutoConverge")
	set.DurationVar(&m.perGiB, "vm-migration-completion-timeout-per-gib", manager.DefaultVMCompletionTimeoutPerGiB, "how long a live migration may take for each GiB of memory and copied disks before its completion timeout policy applies, for virtual machines without spec.migration.completionTimeoutSecondsPerGiB: 1s to 1h")
	set.StringVar(&m.policy, "vm-migration-completion-timeout-policy", string(vmv1alpha1.CompletionTimeoutPause), "what happens to a live migration that takes longer, for virtual machines without spec.migration.completionTimeoutPolicy: Pause stops the guest for the last part of the copy, Cancel leaves the guest on its host")
	set.DurationVar(&m.time, "vm-migration-timeout", manager.DefaultVMMigrationTime, "how long a virtual machine that must leave its host may wait and migrate before it is shut down; applies to hypervisors that start later")
	set.DurationVar(&m.shutdown, "vm-host-shutdown-grace-period", 0, "how long kubelets give hypervisors to terminate when a host shuts down or evicts them; their virtual machines migrate within that time. Set it to shutdownGracePeriod minus shutdownGracePeriodCriticalPods, or to evictionMaxPodGracePeriod if hosts use soft evictions and this is less; 0 shuts the guests down instead")
}

// Validate adds all problems with the flags.
func (m *Migrations) Validate(wrong *args.Problems) {
	wrong.If(m.perHost < 0, "--vm-migrations-per-host: must not be negative")
	wrong.If(m.bandwidth.Sign() < 0, "--vm-migration-bandwidth: must not be negative")
	wrong.If(m.downtime < time.Millisecond || m.downtime > manager.MaxVMDowntimeLimit, "--vm-migration-downtime-limit: %s is not between 1ms and %s", m.downtime, manager.MaxVMDowntimeLimit)
	wrong.If(m.perGiB < time.Second || m.perGiB > manager.MaxVMCompletionTimeoutPerGiB, "--vm-migration-completion-timeout-per-gib: %s is not between 1s and %s", m.perGiB, manager.MaxVMCompletionTimeoutPerGiB)
	wrong.If(!slices.Contains(policies, m.policy), "--vm-migration-completion-timeout-policy: unknown value %q; expected Pause or Cancel", m.policy)
	wrong.If(m.shutdown < 0 || m.shutdown > 0 && m.shutdown <= manager.MinVMMigrationTime, "--vm-host-shutdown-grace-period: %s must be 0, or more than the %s of a shutdown", m.shutdown, manager.MinVMMigrationTime)
	wrong.If(m.time < manager.MinVMMigrationTime, "--vm-migration-timeout: %s is less than the %s of a shutdown", m.time, manager.MinVMMigrationTime)
}

// Config returns the configuration from the flags.
func (m *Migrations) Config() manager.VMMigration {
	return manager.VMMigration{
		PerHost: m.perHost, Bandwidth: uint64(m.bandwidth.Value()), Time: m.time, HostShutdown: m.shutdown,
		Defaults: manager.VMMigrationDefaults{
			DowntimeLimit: m.downtime, NoAutoConverge: !m.converge,
			CompletionTimeoutPerGiB: m.perGiB, CompletionTimeoutPolicy: vmv1alpha1.CompletionTimeoutPolicy(m.policy),
		},
	}
}
