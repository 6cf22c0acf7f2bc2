package manager

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/instrument"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/plugins"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/internal/tracing"
)

// DriverFlags configure the drivers.
type DriverFlags struct {
	// Name is the name of the driver. It may contain several names, separated by commas.
	Name string
	// Default is the driver of MachineClasses without a provider. If empty, and Name contains a single driver, that
	// driver is used.
	Default string
	// Installation is the name that drivers use to distinguish their VMs from those of other installations.
	Installation string
	// Kinds are the drivers that Name can select.
	Kinds registry.Kinds
	// Uninstrumented disables the metrics of driver calls. Set it for drivers that record these metrics themselves.
	Uninstrumented bool
	// Plugins configures where drivers of other processes register.
	Plugins plugins.Flags

	// shared is the server of Plugins if several managers of this process use it. If nil, the manager runs its own.
	shared *pluginServer
	// timeout of a driver call.
	timeout time.Duration
	// registerer is where the metrics of driver calls are registered.
	registerer prometheus.Registerer
	opened     []driver.Driver
	// leave removes the manager from those that the drivers of other processes serve.
	leave func()
}

// add adds the flags. A program with a single kind of driver does not have the flag --driver.
func (f *DriverFlags) add(flags *pflag.FlagSet, name string) error {
	if err := f.Kinds.Check(); err != nil {
		return err
	}
	if len(f.Kinds) > 1 {
		flags.StringVar(&f.Name, "driver", cmp.Or(f.Name, name), f.usage())
	}
	flags.StringVar(&f.Installation, "installation", "", "name of this installation, by which drivers such as vm label their VMs; must not change")
	f.Plugins.Add(flags)
	return f.Kinds.AddFlags(flags)
}

func (f *DriverFlags) usage() string {
	text := "driver of the machines"
	for i, kind := range f.Kinds {
		separator := ","
		if i == 0 {
			separator = ":"
		}
		text += fmt.Sprintf("%s %q", separator, kind.Name)
		if kind.Summary != "" {
			text += " for " + kind.Summary
		}
	}
	return text + "; to use several, separate them with commas: the provider of the MachineClass selects one"
}

// chosen returns the kinds that the flag names.
func (f *DriverFlags) chosen() (registry.Kinds, error) {
	if len(f.Kinds) == 1 {
		return f.Kinds, nil
	}
	if f.Name == "" && f.Plugins.Serve() {
		return nil, nil
	}
	if f.Name == "" {
		return nil, args.Wrongf("--driver: required; known drivers: %s", f.Kinds.Names())
	}
	var chosen registry.Kinds
	for name := range strings.SplitSeq(f.Name, ",") {
		kind, known := f.Kinds.Find(name)
		switch {
		case !known:
			return nil, args.Wrongf("--driver: unknown driver %q; known drivers: %s", name, f.Kinds.Names())
		case slices.ContainsFunc(chosen, func(other registry.Kind) bool { return other.Name == kind.Name }):
			return nil, args.Wrongf("--driver: duplicate driver %q", name)
		}
		chosen = append(chosen, kind)
	}
	return chosen, nil
}

// environment returns what drivers may use. In a fleet, they may not use its permissions in the seed, because classes of any
// namespace could.
func (f *DriverFlags) environment(config *manager.Config) registry.Environment {
	env := registry.Environment{Control: config.Control, Target: config.Target, Installation: f.Installation}
	if config.Seed != nil {
		env.Control = nil
	}
	return env
}

// open opens the drivers and adds them to the manager's configuration.
func (f *DriverFlags) open(ctx context.Context, config *manager.Config) error {
	kinds, err := f.chosen()
	if err != nil {
		return err
	}
	config.Installation, f.timeout, f.registerer = f.Installation, config.DriverTimeout, metrics.Registry
	if config.Metrics != nil {
		f.registerer = config.Metrics
	}
	drivers := registry.New(registry.Options{Decorate: f.decorate, Default: f.standard(kinds), MayGrow: f.Plugins.Serve()})
	env := f.environment(config)
	for _, kind := range kinds {
		opened, err := kind.Open(ctx, env)
		if err != nil {
			return err
		}
		f.opened = append(f.opened, opened)
		if _, err := drivers.Register(kind.Name, opened); err != nil {
			return err
		}
		if starter, ok := driver.As[registry.Starter](opened); ok {
			config.Runnables = append(config.Runnables, starter)
		}
	}
	if f.Plugins.Serve() {
		server := f.shared
		if server == nil {
			server = newPlugins(f.Plugins, kinds, config.Log)
			config.Runnables = append(config.Runnables, server)
		}
		if f.leave, err = server.use(drivers); err != nil {
			return err
		}
	}
	config.Drivers = drivers
	return nil
}

// standard returns the driver of MachineClasses without a provider, or an empty string. It never returns a driver that
// registers later, because the order of registration would then decide where a VM is created.
func (f *DriverFlags) standard(opened registry.Kinds) string {
	if _, ok := opened.Find(f.Default); ok && f.Default != "" {
		return f.Default
	}
	if len(opened) == 1 {
		return opened[0].Name
	}
	return ""
}

// close closes the drivers that open has opened.
func (f *DriverFlags) close(log logr.Logger) {
	for _, opened := range f.opened {
		registry.Close(opened, log)
	}
	f.opened = nil
	if f.leave != nil {
		f.leave()
	}
}

func (f *DriverFlags) decorate(name string, d driver.Driver) driver.Driver {
	options := instrument.Options{Provider: name, Timeout: f.timeout, Tracer: tracing.Tracer()}
	if !f.Uninstrumented {
		options.Registerer = f.registerer
	}
	return instrument.Wrap(d, options)
}
