// Package standalone opens the driver of a command that calls the driver without a manager.
package standalone

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/cli/manifest"
	"github.com/millwright-dev/millwright/internal/cli/plugins"
)

// Flags select and configure a driver, either built-in or in another process.
type Flags struct {
	// Kinds are the built-in drivers.
	Kinds registry.Kinds
	// Name of the driver. If empty, Choose sets it to the provider of the class.
	Name string
	// kubeconfig of the cluster that a driver needs, or empty.
	kubeconfig, installation string
	plugins                  plugins.Flags
	wait                     time.Duration
}

// DefaultWait is how long a command waits for a driver in another process.
const DefaultWait = time.Minute

// Add adds the flags to those of a command. The error names drivers with the same flags.
func (f *Flags) Add(set *pflag.FlagSet) error {
	set.StringVar(&f.Name, "driver", "", "driver to call: "+f.Kinds.Names()+", or the kind of a driver in another process; defaults to the provider of the class")
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the infrastructure cluster of drivers such as vm; not needed if the Secret has one")
	set.StringVar(&f.installation, "installation", "", "name with which drivers such as vm label their VMs")
	f.plugins.Add(set)
	set.DurationVar(&f.wait, "driver-wait", DefaultWait, "how long to wait until the driver has registered at --driver-socket or --driver-listen")
	return f.Kinds.AddFlags(set)
}

// Choose sets the name of the driver, and returns mistakes in the flags.
func (f *Flags) Choose(class manifest.Class) error {
	f.Name = cmp.Or(f.Name, class.Provider())
	if f.Name == "" && len(f.Kinds) == 1 && !f.plugins.Serve() {
		f.Name = f.Kinds[0].Name
	}
	_, known := f.kind()
	var wrong args.Problems
	if err := f.plugins.Validate(); err != nil {
		wrong.Add(err)
	}
	wrong.If(f.wait <= 0, "--driver-wait: must be greater than 0")
	switch {
	case f.Name == "" && !known:
		wrong.If(true, "--driver: required, since the class names no provider; known drivers: %s", f.Kinds.Names())
	case !f.plugins.Serve() && !known:
		wrong.If(true, "--driver: unknown driver %q; known drivers: %s; a driver in another process requires --driver-socket or --driver-listen", f.Name, f.Kinds.Names())
	}
	return wrong.Err()
}

// kind returns the built-in driver with the name, or else the one that serves the classes of all providers.
func (f *Flags) kind() (registry.Kind, bool) {
	if kind, known := f.Kinds.Find(f.Name); known {
		return kind, true
	}
	return f.Kinds.Find(registry.AnyProvider)
}

// Opened is an open driver.
type Opened struct {
	Driver driver.Driver
	// Again opens the driver once more, as after a restart of its process. It is nil for a driver in another
	// process, and for a driver of MCM, which its program creates only once.
	Again func() (driver.Driver, error)
	// Close closes the driver, including those of Again, or closes the connection of a driver in another
	// process. Errors are logged. It is never nil.
	Close func()
}

// Open opens the driver that Choose selected. It waits for a driver in another process, and reports that to
// out.
func (f *Flags) Open(ctx context.Context, out io.Writer) (*Opened, error) {
	if f.plugins.Serve() {
		return f.await(ctx, out)
	}
	kind, _ := f.kind()
	env := registry.Environment{Installation: f.installation}
	if f.kubeconfig != "" {
		var err error
		if env.Control, _, err = connect.Named("--kubeconfig", f.kubeconfig, ""); err != nil {
			return nil, args.Wrong(err)
		}
	}
	var all []driver.Driver
	again := func() (driver.Driver, error) {
		d, err := kind.Open(ctx, env)
		if err != nil {
			return nil, fmt.Errorf("cannot open driver %s: %w", f.Name, err)
		}
		all = append(all, d)
		return d, nil
	}
	d, err := again()
	if err != nil {
		return nil, err
	}
	opened := &Opened{Driver: d, Again: again, Close: func() {
		for _, opened := range all {
			registry.Close(opened, logTo(out))
		}
	}}
	if kind.Name == registry.AnyProvider {
		opened.Again = nil
	}
	return opened, nil
}
