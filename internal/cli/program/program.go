// Package program runs a command as a process: signals, errors and the exit status.
package program

import (
	"cmp"
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

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/terminal"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Program is the input and output of a run.
type Program struct {
	// Version of the program.
	Version string
	// Archives has the checksums of the archives that belong to a release; see the package archives. It is empty in
	// other builds.
	Archives string
	// Name is the path by which the program was called. It is optional.
	Name string
	// Args are the arguments without the name of the program.
	Args []string
	// Stdout is for results, Stderr is for logs and errors.
	Stdout, Stderr io.Writer
}

// Signals returns a context that is done after SIGINT or SIGTERM. A second signal terminates the process
// immediately.
func Signals() (ctx context.Context, stop context.CancelFunc) {
	ctx, stop = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// Run runs the command that the arguments select, prints errors, and returns the exit status: 0 for success, 1
// for a failure, 2 for invalid arguments. It adapts the runtime to the memory limit of the container.
func (p Program) Run(ctx context.Context, root *cobra.Command) int {
	limitMemory(memoryMax)
	ran, err := p.Execute(ctx, root)
	if err == nil {
		return 0
	}
	if status, is := errors.AsType[args.ExitStatus](err); is {
		return int(status)
	}
	// Several errors are printed on one line.
	fmt.Fprintf(p.Stderr, "%s: %s\n", root.Name(), messages.Line(strings.ReplaceAll(err.Error(), "\n", "; ")))
	if mistake, ok := errors.AsType[*args.UsageError](err); ok {
		fmt.Fprintf(p.Stderr, "Run \"%s --help\" for usage.\n", cmp.Or(mistake.Command, ran).CommandPath())
		return 2
	}
	return 1
}

// Execute runs the command that the arguments select, and returns it.
func (p Program) Execute(ctx context.Context, root *cobra.Command) (ran *cobra.Command, err error) {
	root.SetArgs(p.Args)
	root.SetOut(terminal.NewText(p.Stdout))
	root.SetErr(terminal.NewText(p.Stderr))
	return execute(ctx, root)
}

// Complete adds what every command of a program has. --version prints versionLine.
func Complete(root *cobra.Command, versionLine string) *cobra.Command {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.Version = versionLine
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return args.Wrong(plainly(err)) })
	setHelp(root)
	return root
}

// execute runs the command that the arguments select. It rejects --help after an unknown command, for which
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

// plainly returns a readable error for a flag value of the wrong type.
func plainly(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	flag, value := invalid.GetFlag(), invalid.GetValue()
	if mistake, ok := errors.AsType[*args.UsageError](err); ok {
		return fmt.Errorf("--%s: %w", flag.Name, mistake.Err)
	}
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

// VersionLine returns the output of --version.
func VersionLine(name, version string) string {
	goVersion := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		goVersion = info.GoVersion
	}
	return fmt.Sprintf("%s %s (%s)", name, version, goVersion)
}
