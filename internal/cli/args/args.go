// Package args checks the arguments of commands.
package args

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// UsageError is a mistake in the arguments. The program exits with status 2.
type UsageError struct {
	// Command whose help explains the arguments; nil means the command that ran.
	Command *cobra.Command
	Err     error
}

// Error implements error.
func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns the mistake.
func (e *UsageError) Unwrap() error { return e.Err }

// Wrong returns a UsageError.
func Wrong(err error) error { return &UsageError{Err: err} }

// Wrongf returns a UsageError with a formatted message.
func Wrongf(format string, values ...any) error { return Wrong(fmt.Errorf(format, values...)) }

// ExitStatus is the exit status of a program that a command has run, and that has printed why it failed. This program
// exits with the same status, and prints nothing.
type ExitStatus int

// Error implements error.
func (s ExitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// None rejects arguments other than flags.
func None(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return Wrongf("unexpected argument %q; this command accepts only flags", args[0])
}

// OneName returns a check that the only argument is the name of an object of the given kind.
func OneName(kind string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 1 && args[0] != "" {
			return nil
		}
		return Wrongf("expected one argument, the name of a %s", kind)
	}
}

// KnownCommand rejects arguments after a command that has only subcommands.
func KnownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("unknown command %q", args[0])
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(like, " or "))
	}
	return &UsageError{Command: cmd, Err: err}
}

// Group returns a command that has only subcommands. Without arguments it prints its help.
func Group(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	cmd.SuggestionsMinimumDistance = 2
	cmd.Args = KnownCommand
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(commands...)
	return cmd
}

// Problems collects problems with flags, so that all of them are reported together.
type Problems []error

// If adds a problem if wrong is true.
func (p *Problems) If(wrong bool, format string, values ...any) {
	if wrong {
		*p = append(*p, fmt.Errorf(format, values...))
	}
}

// Add adds a problem unless it is nil.
func (p *Problems) Add(err error) { *p = append(*p, err) }

// Port adds a problem unless the value of a flag is a port number or 0.
func (p *Problems) Port(flag string, value int) {
	p.If(value < 0 || value > 65535, "--%s: %d is not a port number between 0 and 65535", flag, value)
}

// Negative adds one problem that names all negative flags of the types int32, int64 and duration, since no
// command accepts negative values for these.
func (p *Problems) Negative(flags *pflag.FlagSet) {
	var negative []string
	flags.VisitAll(func(flag *pflag.Flag) { // in the order of their names
		if slices.Contains([]string{"int32", "int64", "duration"}, flag.Value.Type()) && strings.HasPrefix(flag.Value.String(), "-") {
			negative = append(negative, "--"+flag.Name)
		}
	})
	p.If(len(negative) > 0, "%s: must not be negative", strings.Join(negative, ", "))
}

// Err returns all problems as one error, or nil if there are none.
func (p *Problems) Err() error { return errors.Join(*p...) }
