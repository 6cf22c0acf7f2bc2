// Package drivers lists the kinds of driver that millwright contains. They are registered like those of other
// programs.
package drivers

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/drivers/vm"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/cli/localdir"
)

// Kinds returns all kinds. Each call returns kinds with their own flags.
func Kinds() registry.Kinds { return With(&SimOptions{}) }

// With returns all kinds. The driver sim has the given options, unless its flags are parsed.
func With(simulated *SimOptions) registry.Kinds {
	return registry.Kinds{
		{Name: localdir.DriverVM, Summary: "VirtualMachines", Open: openVM},
		{Name: localdir.DriverSim, Summary: "simulated machines", Flags: simulated.addFlags, Open: simulated.Open},
	}
}

// openVM creates the driver vm. Its infrastructure is the control cluster, unless a class's Secret has the
// kubeconfig of another cluster.
func openVM(_ context.Context, env registry.Environment) (driver.Driver, error) {
	if env.Control == nil {
		return vm.New(vm.Options{Installation: env.Installation}), nil
	}
	own := rest.CopyConfig(env.Control)
	own.UserAgent = "millwright-driver-vm"
	infrastructure, err := vm.NewClient(own)
	if err != nil {
		return nil, fmt.Errorf("driver vm: %w", err)
	}
	return vm.New(vm.Options{Client: infrastructure, Endpoint: vm.Endpoint(own), Installation: env.Installation}), nil
}

// DefaultHeartbeat is the kubelet's default.
const DefaultHeartbeat = 10 * time.Second

// SimOptions configure the driver sim.
type SimOptions struct {
	// Dir is the directory of its VMs. If empty, they are kept in memory.
	Dir string
	// Heartbeat is the time between two heartbeats of its nodes. 0 disables them.
	Heartbeat time.Duration
	// Seed is the seed of all random behavior. Zero is an ordinary seed.
	Seed uint64
}

func (o *SimOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Dir, "sim-dir", "", "directory in which the driver sim stores its VMs; empty to keep them in memory")
	flags.DurationVar(&o.Heartbeat, "sim-heartbeat", DefaultHeartbeat, "interval of the heartbeats of the driver sim's nodes; 0 to disable, so that kube-controller-manager marks them unreachable")
	flags.Uint64Var(&o.Seed, "sim-seed", 0, "seed of the driver sim's random behavior: with the same seed, the same names get the same delays, faults and lifetimes")
}

// Temporary creates a directory for the VMs if the driver of that name is sim and has none, so that the driver
// can be opened again. done removes the directory.
func (o *SimOptions) Temporary(name string) (done func(), err error) {
	if !strings.EqualFold(name, localdir.DriverSim) || o.Dir != "" {
		return func() {}, nil
	}
	if o.Dir, err = os.MkdirTemp("", "millwright-sim-"); err != nil {
		return nil, fmt.Errorf("cannot create the directory of the driver sim: %w", err)
	}
	return func() { _ = os.RemoveAll(o.Dir) }, nil
}

// Open is the registry.Opener of the driver.
func (o *SimOptions) Open(_ context.Context, env registry.Environment) (driver.Driver, error) {
	simulated := sim.Config{HeartbeatInterval: o.Heartbeat, Seed: o.Seed}
	if o.Dir != "" {
		if err := os.MkdirAll(o.Dir, 0o700); err != nil {
			return nil, fmt.Errorf("--sim-dir: cannot use directory %s: %w", o.Dir, err)
		}
		cloud, err := sim.OpenCloud(o.Dir, sim.CloudOptions{Seed: o.Seed})
		if err != nil {
			return nil, fmt.Errorf("--sim-dir: %w", err)
		}
		simulated.Cloud = cloud
	}
	if env.Target != nil {
		// The simulated kubelets have clients of their own, as real ones do.
		kubelets := rest.CopyConfig(env.Target)
		kubelets.UserAgent = "millwright-sim-kubelet"
		kubelets.QPS = -1
		nodes, err := connect.NewClient(kubelets)
		if err != nil {
			return nil, fmt.Errorf("driver sim: %w", err)
		}
		simulated.Nodes = nodes
	}
	return sim.New(simulated), nil
}
