package cli

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/millwright-dev/millwright/driver/instrument"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/drivers/vm"
	"github.com/millwright-dev/millwright/internal/manager"
)

// The drivers that are built in.
const (
	driverVM  = "vm"
	driverSim = "sim"
)

// driverFlags say which driver is used, and how.
type driverFlags struct {
	name         string
	installation string
	simDir       string
	simHeartbeat time.Duration
}

func (f *driverFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.name, "driver", "", `driver that makes and removes machines: "vm" makes VirtualMachines, "sim" only simulates`)
	flags.StringVar(&f.installation, "installation", "", "name of this installation, by which the driver vm knows its VirtualMachines among those of others; it must never change")
	flags.StringVar(&f.simDir, "sim-dir", "", "folder that the driver sim keeps its VMs in, so that they outlive this process; empty keeps them in memory")
	flags.DurationVar(&f.simHeartbeat, "sim-heartbeat", defaultHeartbeat, "time between two signs of life of a node of the driver sim; 0 for none, whereupon a controller manager takes the node for dead")
}

// defaultHeartbeat is a kubelet's.
const defaultHeartbeat = 10 * time.Second

// open puts the driver into the manager's configuration.
func (f *driverFlags) open(config *manager.Config) error {
	config.DriverName, config.Installation = f.name, f.installation
	switch f.name {
	case driverSim:
		return f.openSim(config)
	case driverVM:
		return f.openVM(config)
	case "":
		return &usageError{command: "manager", err: fmt.Errorf("--driver: required; known drivers: vm, sim")}
	default:
		return &usageError{command: "manager", err: fmt.Errorf("--driver: there is no driver %q; known drivers: vm, sim", f.name)}
	}
}

// openVM makes the driver whose infrastructure is the control cluster, or the one whose
// kubeconfig the class's Secret has.
func (f *driverFlags) openVM(config *manager.Config) error {
	own := rest.CopyConfig(config.Control)
	own.UserAgent = "millwright-driver-vm"
	infrastructure, err := vm.NewClient(own)
	if err != nil {
		return fmt.Errorf("driver vm: %w", err)
	}
	d := vm.New(vm.Options{Client: infrastructure, Installation: f.installation})
	config.Driver = instrument.Wrap(d, instrument.Options{Provider: driverVM, Registerer: metrics.Registry})
	return nil
}

func (f *driverFlags) openSim(config *manager.Config) error {
	simulated := sim.Config{HeartbeatInterval: f.simHeartbeat}
	if f.simDir != "" {
		if err := writable(f.simDir); err != nil {
			return fmt.Errorf("--sim-dir: %w", err)
		}
		cloud, err := sim.OpenCloud(f.simDir, sim.CloudOptions{})
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
		nodes, err := client.New(kubelets, client.Options{Scheme: manager.Scheme()})
		if err != nil {
			return fmt.Errorf("driver sim: %w", err)
		}
		simulated.Nodes = nodes
	}
	d := sim.New(simulated)
	config.Driver = instrument.Wrap(d, instrument.Options{Provider: driverSim, Registerer: metrics.Registry})
	config.Runnables = append(config.Runnables, d)
	return nil
}
