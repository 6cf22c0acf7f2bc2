package vmcontroller

import (
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/manager"
)

// Migrations are the flags that say how virtual machines leave a host. "millwright up" has them too.
type Migrations struct {
	perHost   int
	bandwidth resource.QuantityValue
	time      time.Duration
}

// Add adds the flags.
func (m *Migrations) Add(set *pflag.FlagSet) {
	set.IntVar(&m.perHost, "vm-migrations-per-host", 1, "how many virtual machines leave a host at a time, as in a drain; 0 for any number")
	set.Var(&m.bandwidth, "vm-migration-bandwidth", "bytes per second, such as 100Mi, with which memory and disk, each, are copied to another host; 0 for QEMU's default for the memory, and no limit for the disk; for hypervisors that start from then on")
	set.DurationVar(&m.time, "vm-migration-timeout", manager.DefaultVMMigrationTime, "how long a virtual machine that has to leave its host may wait and migrate before it is shut down; for hypervisors that start from then on")
}

// Validate adds all problems with the flags.
func (m *Migrations) Validate(wrong *args.Problems) {
	wrong.If(m.perHost < 0, "--vm-migrations-per-host: %d is negative", m.perHost)
	wrong.If(m.bandwidth.Sign() < 0, "--vm-migration-bandwidth: %s is negative", m.bandwidth.String())
	wrong.If(m.time < manager.MinVMMigrationTime, "--vm-migration-timeout: %s is less than the %s of a shutdown", m.time, manager.MinVMMigrationTime)
}

// Config returns what the flags say.
func (m *Migrations) Config() manager.VMMigration {
	return manager.VMMigration{PerHost: m.perHost, Bandwidth: uint64(m.bandwidth.Value()), Time: m.time}
}
