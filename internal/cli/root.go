// Package cli holds the commands of millwright. It is the only place that reads flags
// and the environment.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Program is what a run of the program is given.
type Program struct {
	// Version is what "millwright version" prints.
	Version string
	// Args are the arguments, without the name of the program.
	Args []string
	// Stdout gets results, Stderr gets logs and what went wrong.
	Stdout, Stderr io.Writer
}

// Main runs the command that the arguments name and returns the exit status: 0 if it
// went well, 1 if not, 2 if the arguments are wrong. SIGINT and SIGTERM end a command
// in order; a second one ends it at once.
func Main(p Program) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	root := newRoot(p.Version)
	root.SetArgs(p.Args)
	root.SetOut(p.Stdout)
	root.SetErr(p.Stderr)
	err := execute(ctx, root)
	if err == nil {
		return 0
	}
	// Several mistakes are said in one line.
	fmt.Fprintf(p.Stderr, "millwright: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	var usage *usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(p.Stderr, "Run \"%s --help\" for usage.\n", strings.TrimSpace("millwright "+usage.command))
		return 2
	}
	return 1
}

// usageError is a mistake in the arguments.
type usageError struct {
	// command is the one that they were for; empty if for none.
	command string
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }

func (e *usageError) Unwrap() error { return e.err }

func newRoot(version string) *cobra.Command {
	root := &cobra.Command{
		Use:                        "millwright",
		Short:                      "Machines for Kubernetes: declare them, and they become nodes",
		SilenceErrors:              true,
		SilenceUsage:               true,
		SuggestionsMinimumDistance: 2,
		Args:                       knownCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.Version = versionLine(version)
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, plainly(err)) })
	root.SetHelpCommand(newHelpCommand())
	root.AddCommand(
		newUpCommand(), newDownCommand(), newStatusCommand(), newVMCommand(), newDemoCommand(), newExplainCommand(), newRolloutCommand(), newManagerCommand(),
		newHypervisorCommand(), newHostrunnerCommand(), newVersionCommand(version),
	)
	return root
}

// usage is the error for a mistake in the arguments of a command.
func usage(cmd *cobra.Command, err error) error {
	_, command, _ := strings.Cut(cmd.CommandPath(), " ")
	return &usageError{command: command, err: err}
}

// knownCommand refuses what is left of the arguments when no command was found in them.
func knownCommand(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("there is no command %q", args[0])
	if like := root.SuggestionsFor(args[0]); len(like) > 0 {
		err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(like, " or "))
	}
	return usage(root, err)
}

// newHelpCommand is like cobra's, but knows what is no command.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help on a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			if err != nil {
				return usage(cmd, err)
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

// execute runs the command that the arguments name. It refuses --help on one that does not
// exist, where cobra would give help on the commands above it.
func execute(ctx context.Context, root *cobra.Command) error {
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
	err := root.ExecuteContext(ctx)
	return errors.Join(refused, err)
}

// plainly says without the names of functions that the value of a flag does not fit.
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

// noArguments refuses arguments that are no flags.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usage(cmd, fmt.Errorf("%q is one argument too many: there are flags only", args[0]))
}

func newVersionCommand(version string) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine(version))
			return err
		},
	}
}

// versionLine is what "millwright version" and "millwright --version" print.
func versionLine(version string) string {
	goVersion := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		goVersion = info.GoVersion
	}
	return fmt.Sprintf("millwright %s (%s)", version, goVersion)
}
