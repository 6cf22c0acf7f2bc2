package vmcontroller

import (
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/manager"
)

// Migrations are the flags for how virtual machines leave a host. "millwright up" also has them.
type Migrations struct {
	perHost   int
	bandwidth resource.QuantityValue
	time      time.Duration
}

// Add adds the flags.
func (m *Migrations) Add(set *pflag.FlagSet) {
	set.IntVar(&m.perHost, "vm-migrations-per-host", 1, "maximum number of virtual machines that leave a host at the same time, as in a drain; 0 for no limit")
	set.Var(&m.bandwidth, "vm-migration-bandwidth", "maximum bytes per second, such as 100Mi, for each of memory and disk in a live migration; 0 for QEMU's default for memory and no limit for disks; applies to hypervisors that start later")
	set.DurationVar(&m.time, "vm-migration-timeout", manager.DefaultVMMigrationTime, "how long a virtual machine that must leave its host may wait and migrate before it is shut down; applies to hypervisors that start later")
}

// Validate adds all problems with the flags.
func (m *Migrations) Validate(wrong *args.Problems) {
	wrong.If(m.perHost < 0, "--vm-migrations-per-host: must not be negative")
	wrong.If(m.bandwidth.Sign() < 0, "--vm-migration-bandwidth: must not be negative")
	wrong.If(m.time < manager.MinVMMigrationTime, "--vm-migration-timeout: %s is less than the %s of a shutdown", m.time, manager.MinVMMigrationTime)
}

// Config returns the configuration from the flags.
func (m *Migrations) Config() manager.VMMigration {
	return manager.VMMigration{PerHost: m.perHost, Bandwidth: uint64(m.bandwidth.Value()), Time: m.time}
}
