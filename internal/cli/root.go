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
	"strings"
	"syscall"

	"github.com/spf13/cobra"
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
	err := root.ExecuteContext(ctx)
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
	root.SetFlagErrorFunc(usage)
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
