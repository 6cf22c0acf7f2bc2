package manager

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/instrument"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/drivers/vm"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/folder"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/manager"
)

// DriverFlags configure the driver.
type DriverFlags struct {
	// Name of the driver.
	Name string
	// Installation is the name by which the driver distinguishes its VMs from those of other
	// installations.
	Installation string
	// SimDir is the folder of the driver sim. Empty keeps its VMs in memory.
	SimDir string
	// SimHeartbeat is the time between two heartbeats of its nodes; 0 means none.
	SimHeartbeat time.Duration
}

func (f *DriverFlags) add(flags *pflag.FlagSet, name string) {
	flags.StringVar(&f.Name, "driver", name, `driver of the machines: "vm" for VirtualMachines, "sim" for simulated ones`)
	flags.StringVar(&f.Installation, "installation", "", "name of this installation, which labels the VirtualMachines of the driver vm; must not change")
	flags.StringVar(&f.SimDir, "sim-dir", "", "directory in which the driver sim persists its VMs; empty for in memory")
	flags.DurationVar(&f.SimHeartbeat, "sim-heartbeat", DefaultHeartbeat, "period of the heartbeats of the driver sim's nodes; 0 for none, so that kube-controller-manager marks them unreachable")
}

// DefaultHeartbeat is the kubelet's default.
const DefaultHeartbeat = 10 * time.Second

// open puts the driver into the manager's configuration.
func (f *DriverFlags) open(config *manager.Config) error {
	config.DriverName, config.Installation = f.Name, f.Installation
	switch f.Name {
	case folder.DriverSim:
		return f.openSim(config)
	case folder.DriverVM:
		return f.openVM(config)
	case "":
		return args.Wrongf("--driver: required; known drivers: vm, sim")
	default:
		return args.Wrongf("--driver: there is no driver %q; known drivers: vm, sim", f.Name)
	}
}

func (f *DriverFlags) instrumented(d driver.Driver) driver.Driver {
	return instrument.Wrap(d, instrument.Options{Provider: f.Name, Registerer: metrics.Registry})
}

// openVM creates the driver vm. Its infrastructure is the control cluster, unless a class's Secret
// has the kubeconfig of another.
func (f *DriverFlags) openVM(config *manager.Config) error {
	own := rest.CopyConfig(config.Control)
	own.UserAgent = "millwright-driver-vm"
	infrastructure, err := vm.NewClient(own)
	if err != nil {
		return fmt.Errorf("driver vm: %w", err)
	}
	config.Driver = f.instrumented(vm.New(vm.Options{Client: infrastructure, Endpoint: vm.Endpoint(own), Installation: f.Installation}))
	return nil
}

func (f *DriverFlags) openSim(config *manager.Config) error {
	simulated := sim.Config{HeartbeatInterval: f.SimHeartbeat}
	if f.SimDir != "" {
		if err := os.MkdirAll(f.SimDir, 0o700); err != nil {
			return fmt.Errorf("--sim-dir: folder %s cannot be used: %w", f.SimDir, err)
		}
		cloud, err := sim.OpenCloud(f.SimDir, sim.CloudOptions{})
		if err != nil {
			return fmt.Errorf("--sim-dir: %w", err)
		}
		simulated.Cloud = cloud
	}
	if config.Target != nil {
		// The simulated kubelets have a client of their own, as real ones do.
		kubelets := rest.CopyConfig(config.Target)
		kubelets.UserAgent = "millwright-sim-kubelet"
		kubelets.QPS = -1
		nodes, err := kubeconfig.NewClient(kubelets)
		if err != nil {
			return fmt.Errorf("driver sim: %w", err)
		}
		simulated.Nodes = nodes
	}
	d := sim.New(simulated)
	config.Driver = f.instrumented(d)
	config.Runnables = append(config.Runnables, d)
	return nil
}
