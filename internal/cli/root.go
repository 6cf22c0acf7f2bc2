// Package cli runs the commands of millwright. Only this package and those below it read flags and
// the environment.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/cluster"
	"github.com/millwright-dev/millwright/internal/cli/machine"
	"github.com/millwright-dev/millwright/internal/cli/manager"
	"github.com/millwright-dev/millwright/internal/cli/rollout"
	"github.com/millwright-dev/millwright/internal/cli/terminal"
	"github.com/millwright-dev/millwright/internal/cli/vm"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Program is the input and output of a run.
type Program struct {
	// Version of the program.
	Version string
	// Name is the path by which the program was called. The names of MCM's processes run these; all
	// others, and none, run the command that Args begin with.
	Name string
	// Args are the arguments without the name of the program.
	Args []string
	// Stdout is for results, Stderr for logs and errors.
	Stdout, Stderr io.Writer
}

// Main runs the command of the arguments and returns the exit status: 0 for success, 1 for a
// failure, 2 for invalid arguments. SIGINT and SIGTERM end a command in order; a second one ends
// it at once.
func Main(p Program) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	root := newRootFor(p)
	root.SetArgs(p.Args)
	root.SetOut(terminal.NewText(p.Stdout))
	root.SetErr(terminal.NewText(p.Stderr))
	ran, err := execute(ctx, root)
	if err == nil {
		return 0
	}
	// Several errors are printed in one line.
	fmt.Fprintf(p.Stderr, "%s: %s\n", root.Name(), messages.Line(strings.ReplaceAll(err.Error(), "\n", "; ")))
	if mistake, ok := errors.AsType[*args.UsageError](err); ok {
		fmt.Fprintf(p.Stderr, "Run \"%s --help\" for usage.\n", cmp.Or(mistake.Command, ran).CommandPath())
		return 2
	}
	return 1
}

// newRootFor returns the command for the name of the program.
func newRootFor(p Program) *cobra.Command {
	for _, cmd := range []*cobra.Command{manager.NewMachineController(), manager.NewMachineControllerManager()} {
		if filepath.Base(p.Name) == cmd.Name() {
			return complete(cmd, p.Version)
		}
	}
	return newRoot(p.Version)
}

func newRoot(version string) *cobra.Command {
	root := args.Group(&cobra.Command{
		Use:   "millwright",
		Short: "Manage the machines of Kubernetes clusters",
	},
		cluster.NewUp(), cluster.NewDown(), cluster.NewStatus(), cluster.NewDemo(), cluster.NewHostrunner(),
		machine.NewExplain(), machine.New(), rollout.New(), vm.New(), vm.NewHypervisor(), manager.New(),
		manager.NewMachineController(), manager.NewMachineControllerManager(), newVersionCommand(version),
	)
	root.SetHelpCommand(newHelpCommand())
	return complete(root, version)
}

// complete adds what every command of a program has.
func complete(root *cobra.Command, version string) *cobra.Command {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.Version = versionLine(version)
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return args.Wrong(plainly(err)) })
	return root
}

// newHelpCommand is like cobra's, but refuses unknown commands.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help about a command",
		RunE: func(cmd *cobra.Command, names []string) error {
			of, rest, err := cmd.Root().Find(names)
			if err != nil {
				return args.Wrong(err)
			}
			if len(rest) > 0 {
				if err := of.ValidateArgs(rest); err != nil {
					return err
				}
			}
			of.InitDefaultHelpFlag() // so that its help lists it
			return of.Help()
		},
	}
}

// execute runs the command of the arguments. It refuses --help after an unknown command, where
// cobra prints the help of its parent.
func execute(ctx context.Context, root *cobra.Command) (ran *cobra.Command, err error) {
	var refused error
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if names := cmd.Flags().Args(); cmd.HasSubCommands() && len(names) > 0 {
			refused = cmd.ValidateArgs(names)
		}
		if refused == nil {
			help(cmd, args)
		}
	})
	ran, err = root.ExecuteContextC(ctx)
	return ran, errors.Join(refused, err)
}

// plainly returns the error for a flag value of the wrong type in plain words.
func plainly(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	flag, value := invalid.GetFlag(), invalid.GetValue()
	if errors.Is(err, strconv.ErrRange) {
		return fmt.Errorf("--%s: %s is out of range", flag.Name, value)
	}
	want, known := map[string]string{
		"int": "a whole number", "int32": "a whole number", "int64": "a whole number", "float32": "a number",
		"bool": "true or false", "duration": "a duration, such as 90s or 5m",
	}[flag.Value.Type()]
	if !known {
		return err
	}
	return fmt.Errorf("--%s: %q is not %s", flag.Name, value, want)
}

func newVersionCommand(version string) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  args.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine(version))
			return err
		},
	}
}

// versionLine returns the output of "millwright version" and "millwright --version".
func versionLine(version string) string {
	goVersion := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		goVersion = info.GoVersion
	}
	return fmt.Sprintf("millwright %s (%s)", version, goVersion)
}
