// Package plugin runs a driver as a process that registers with a manager.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/plugin"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/probes"
)

// New returns the command. The error reports what is wrong with the driver, or flags with the same name.
func New(kind registry.Kind, version string) (*cobra.Command, error) {
	kinds := registry.Kinds{kind}
	if err := kinds.Check(); err != nil {
		return nil, err
	}
	if kind.Name == registry.AnyProvider {
		return nil, errors.New("a driver in its own process needs a name")
	}
	f := &flags{}
	cmd := &cobra.Command{
		Use:   kind.Name,
		Short: fmt.Sprintf("Run the driver %q for a manager in another process", kind.Name),
		Long: fmt.Sprintf(`Run the driver %q for a manager in another process.

The driver connects to the manager, registers for the MachineClasses whose provider is %q, and runs the
operations that the manager sends, until SIGTERM. If the connection is lost, it reconnects.`, kind.Name, kind.Name),
		Args: args.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), kind, version, cmd.ErrOrStderr())
		},
	}
	f.add(cmd.Flags())
	return cmd, kinds.AddFlags(cmd.Flags())
}

// run runs the driver until the context is done. Logs go to stderr.
func (f *flags) run(ctx context.Context, kind registry.Kind, version string, stderr io.Writer) error {
	if err := f.validate(); err != nil {
		return args.Wrong(err)
	}
	log, err := f.logging.SetUp(stderr)
	if err != nil {
		return err
	}
	var registered atomic.Bool
	options, err := f.options(kind.Name, version, registered.Store)
	if err != nil {
		return args.Wrong(err)
	}
	d, err := kind.Open(ctx, registry.Environment{Installation: f.installation})
	if err != nil {
		return fmt.Errorf("cannot open the driver: %w", err)
	}
	defer registry.Close(d, log)
	all, ctx := errgroup.WithContext(logr.NewContext(ctx, log))
	if f.healthAddress != "" {
		health, err := probes.Listen(ctx, f.healthAddress, func() error {
			if !registered.Load() {
				return errors.New("the driver is not registered with the manager")
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("--health-address: %w", err)
		}
		all.Go(func() error { return health.Serve(ctx) })
	}
	if starter, ok := driver.As[registry.Starter](d); ok {
		all.Go(func() error { return starter.Start(ctx) })
	}
	all.Go(func() error { return plugin.Serve(ctx, d, options) })
	return all.Wait()
}
