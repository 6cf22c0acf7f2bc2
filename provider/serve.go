package provider

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/millwright-dev/millwright/internal/cli/plugin"
	"github.com/millwright-dev/millwright/internal/cli/program"
)

// Serve runs the driver for a manager in another process, at which it registers, and ends the process:
// with status 0 after SIGTERM or SIGINT, 1 after a failure or when the manager refuses the driver for
// good, 2 for invalid arguments. Flags say where the manager is; see --help of the program.
//
// The arguments are those of [Main]. Of the Environment only Installation is set: a plug-in sees no
// cluster. WithDriver is refused, as is [AnyClass]: a plug-in has one driver with a name. Calls are
// counted by the manager, so WithoutMetrics has no effect.
func Serve(name string, newDriver NewDriver, options ...Option) {
	end(New(name, newDriver, options...), (*Provider).plugin)
}

// RunPlugin runs the program of [Serve] with these arguments until ctx ends, and returns why it failed; nil
// if ctx has ended. The help goes to standard output, logs to standard error.
func (p *Provider) RunPlugin(ctx context.Context, arguments ...string) error {
	root, err := p.plugin()
	if err != nil {
		return err
	}
	run := program.Program{Args: arguments, Stdout: os.Stdout, Stderr: os.Stderr}
	_, err = run.Execute(ctx, root)
	return err
}

// plugin returns the command of a plug-in.
func (p *Provider) plugin() (*cobra.Command, error) {
	if len(p.others) > 0 {
		return nil, fmt.Errorf("driver %q: a plug-in has one driver", p.others[0].Name)
	}
	root, err := plugin.New(p.driver, p.version)
	if err != nil {
		return nil, err
	}
	root.Use = p.name
	root.CompletionOptions.HiddenDefaultCmd = true
	return program.Complete(root, program.VersionLine(p.name, p.version)), nil
}
