package instance

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
)

// driverFlags choose and configure the driver.
type driverFlags struct {
	name, installation string
	cluster            kubeconfig.Flags
}

func (f *driverFlags) add(set *pflag.FlagSet, kinds registry.Kinds) {
	set.StringVar(&f.name, "driver", "", "driver to call: "+kinds.Names()+"; defaults to the provider of the class")
	set.StringVar(&f.installation, "installation", "", "name of the installation whose VMs these are, for drivers that have one")
	set.StringVar(&f.cluster.File, "kubeconfig", "", "path to the kubeconfig of a cluster, for drivers that need one")
	if err := kinds.AddFlags(set); err != nil {
		panic(err) // our own drivers collide
	}
}

// open opens the driver of the class.
func (f *driverFlags) open(ctx context.Context, kinds registry.Kinds, in inputs) (driver.Driver, error) {
	name := f.name
	if name == "" && in.class != nil {
		name = in.class.Provider
	}
	if name == "" {
		return nil, args.Wrongf("--driver: required, since the class names no provider; known drivers: %s", kinds.Names())
	}
	kind, ok := kinds.Find(name)
	if !ok {
		return nil, args.Wrongf("there is no driver %q; known drivers: %s", name, kinds.Names())
	}
	if in.class != nil && in.class.Provider != "" && !strings.EqualFold(in.class.Provider, name) {
		return nil, args.Wrongf("--driver: the class is for %q, not for %q", in.class.Provider, name)
	}
	env := registry.Environment{Installation: f.installation}
	if f.cluster.File != "" {
		config, _, err := f.cluster.Load()
		if err != nil {
			return nil, err
		}
		env.Control = config
	}
	d, err := kind.Open(ctx, env)
	if err != nil {
		return nil, fmt.Errorf("opening the driver %s: %w", name, err)
	}
	return d, nil
}
