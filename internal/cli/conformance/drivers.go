package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/cli/drivers"
	"github.com/millwright-dev/millwright/internal/cli/folder"
)

// opener opens the driver of the flags.
type opener struct {
	kinds registry.Kinds
	sim   *drivers.SimOptions
	// kubeconfig of the infrastructure; empty if there is none.
	name, kubeconfig, installation string
}

func newOpener() *opener {
	simulated := &drivers.SimOptions{}
	return &opener{kinds: drivers.With(simulated), sim: simulated}
}

func (o *opener) add(cmd *cobra.Command) error {
	flags := cmd.Flags()
	flags.StringVar(&o.name, "driver", "", "driver to check: "+o.kinds.Names())
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the infrastructure cluster of drivers such as vm; not needed if the Secret has one")
	flags.StringVar(&o.installation, "installation", "", "name by which drivers such as vm label their VMs")
	return o.kinds.AddFlags(flags)
}

// open returns how to open the driver, each time a new one of the same provider, and how to remove
// what that has left. The errors are mistakes in the arguments.
func (o *opener) open() (again func(context.Context) (driver.Driver, error), done func(), err error) {
	kind, known := o.kinds.Find(o.name)
	switch {
	case o.name == "":
		return nil, nil, args.Wrongf("--driver: required; known drivers: %s", o.kinds.Names())
	case !known:
		return nil, nil, args.Wrongf("--driver: there is no driver %q; known drivers: %s", o.name, o.kinds.Names())
	}
	env := registry.Environment{Installation: o.installation}
	if o.kubeconfig != "" {
		if env.Control, _, err = connect.Named("--kubeconfig", o.kubeconfig, ""); err != nil {
			return nil, nil, args.Wrong(err)
		}
	}
	done = func() {}
	if kind.Name == folder.DriverSim && o.sim.Dir == "" {
		if done, err = o.temporary(); err != nil {
			return nil, nil, err
		}
	}
	return func(ctx context.Context) (driver.Driver, error) { return kind.Open(ctx, env) }, done, nil
}

// temporary keeps the VMs of the driver sim in a folder, so that it can be restarted.
func (o *opener) temporary() (done func(), err error) {
	if o.sim.Dir, err = os.MkdirTemp("", "millwright-conformance-"); err != nil {
		return nil, fmt.Errorf("the folder of the driver sim: %w", err)
	}
	return func() { _ = os.RemoveAll(o.sim.Dir) }, nil
}

var errNoRule = errors.New("--run, --skip: no rule is left; docs/conformance.md lists them")
