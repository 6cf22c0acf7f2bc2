package provider

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/millwright-dev/millwright/internal/cli/plugin"
	"github.com/millwright-dev/millwright/internal/cli/program"
)

// Serve runs the driver for a manager in another process, with which it registers, and exits the process: with
// status 0 after SIGTERM or SIGINT, 1 after a failure or when the manager rejects the driver permanently, or 2 for
// invalid arguments. Flags specify the address of the manager; see --help of the program.
//
// The arguments are those of [Main]. Of the Environment, only Installation is set: a plugin has no access to a
// cluster. WithDriver and [AnyClass] are rejected, because a plugin has one driver with a name. WithoutMetrics has
// no effect, because the manager counts calls.
func Serve(name string, newDriver NewDriver, options ...Option) {
	end(New(name, newDriver, options...), (*Provider).plugin)
}

// RunPlugin runs the program of [Serve] with these arguments until ctx is done. It returns an error if the program
// failed, and nil if ctx is done. The help goes to standard output, logs to standard error.
func (p *Provider) RunPlugin(ctx context.Context, arguments ...string) error {
	root, err := p.plugin()
	if err != nil {
		return err
	}
	run := program.Program{Args: arguments, Stdout: os.Stdout, Stderr: os.Stderr}
	_, err = run.Execute(ctx, root)
	return err
}

// plugin returns the command of a plugin.
func (p *Provider) plugin() (*cobra.Command, error) {
	if len(p.others) > 0 {
		return nil, fmt.Errorf("driver %q: a plugin has only one driver", p.others[0].Name)
	}
	root, err := plugin.New(p.driver, p.version)
	if err != nil {
		return nil, err
	}
	root.Use = p.name
	root.CompletionOptions.HiddenDefaultCmd = true
	return program.Complete(root, program.VersionLine(p.name, p.version)), nil
}
