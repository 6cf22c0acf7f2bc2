// Package conformance checks drivers from the command line.
package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/spf13/cobra"
	utilrand "k8s.io/apimachinery/pkg/util/rand"

	"github.com/millwright-dev/millwright/driver/conformance"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/output"
	"github.com/millwright-dev/millwright/internal/cli/standalone"
)

// Program describes the program that the command is part of.
type Program struct {
	// Kinds are the program's drivers.
	Kinds registry.Kinds
	// Prepare is called before the driver of that name is opened. The function that it returns is called at the
	// end. If nil, nothing is prepared.
	Prepare func(name string) (done func(), err error)
}

// flags are the flags of the command.
type flags struct {
	program    Program
	driver     standalone.Flags
	files      files
	initialize bool
	run, skip  string
	limit      int
	timeout    time.Duration
	// ruleTimeout is the limit of a rule, or zero. resume is the path of a file with results, or empty.
	ruleTimeout time.Duration
	resume      string
	format      output.Format
}

// defaultLimit suffices for all rules.
const defaultLimit = 100

// New returns the command. It returns an error if two drivers have the same flags.
func New(program Program) (*cobra.Command, error) {
	f := &flags{program: program, driver: standalone.Flags{Kinds: program.Kinds}}
	cmd := &cobra.Command{
		Use:   "conformance",
		Short: "Check that a driver fulfills its contract",
		Long: `Check that a driver fulfills its contract, with machines of a class at the real provider.

Each rule of the contract has a number; docs/drivers/conformance.md lists them. The checks create
machines, at most four at a time, and delete them again, also after Ctrl-C. Their names begin
with "` + conformance.Prefix + `". Other machines are not touched. Machines that could not be deleted are listed.

The driver is the provider of the class, or --driver. With --driver-socket or --driver-listen, it is a driver
in another process, which registers there.

With --resume, a run can be stopped and continued, and repeated for the rules that were
skipped.

Exit status: 0 if no rule is broken and no machine remains, 1 otherwise, 2 for invalid arguments.`,
		Example: `  millwright conformance --driver sim --class class.yaml --secret secret.yaml
  millwright conformance --driver vm --class class.yaml --secret secret.yaml --kubeconfig infrastructure.yaml \
      --cost-limit 20 --run 'R0[1-9]|R17'
  millwright conformance --driver sim --class class.yaml --secret secret.yaml --changed-class larger.yaml -o json
  millwright conformance --driver mine --driver-socket drivers.sock --class class.yaml --secret secret.yaml`,
		Args: args.None,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.check(cmd) },
	}
	f.add(cmd)
	args.Section(cmd.Flags(), "conformance")
	err := f.driver.Add(cmd.Flags())
	args.Section(cmd.Flags(), "driver")
	return cmd, err
}

func (f *flags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.files.class, "class", "", "file with the MachineClass of the machines; required")
	flags.StringArrayVar(&f.files.secrets, "secret", nil, "file with a Secret of the class; may be given twice, then the data of the second Secret takes precedence; required")
	flags.StringVar(&f.files.changed, "changed-class", "", "file with the class with other parameters, which no existing machine matches")
	flags.StringVar(&f.files.other, "other-cluster-class", "", "file with the class for another cluster; defaults to the class with a different kubernetes.io/cluster/NAME tag")
	flags.StringVar(&f.files.badSecret, "bad-secret", "", "file with a Secret that the provider rejects")
	flags.BoolVar(&f.initialize, "initialize", false, "set if VMs of the class need InitializeMachine")
	flags.IntVar(&f.limit, "cost-limit", defaultLimit, "maximum number of machines to create in total; rules that need more are skipped")
	flags.StringVar(&f.run, "run", "", `regular expression for the rules to check, such as "R07|namespaces"`)
	flags.StringVar(&f.skip, "skip", "", "regular expression for the rules to skip")
	flags.DurationVar(&f.timeout, "call-timeout", 10*time.Minute, "deadline of a driver call, and time limit of a deletion")
	flags.DurationVar(&f.ruleTimeout, "rule-timeout", 0, "time limit of the check of a rule; a rule that exceeds it is skipped; 0 for no limit")
	flags.StringVar(&f.resume, "resume", "", "file with the results so far, which is written after each rule; rules that passed or failed in an earlier run with the same file are not checked again")
	f.format.Add(cmd, output.Values)
}

// options returns the options of the run. Its errors are usage errors.
func (f *flags) options() (conformance.Options, error) {
	var wrong args.Problems
	wrong.If(f.limit < 1, "--cost-limit: %d is not a number of machines greater than 0", f.limit)
	wrong.If(f.timeout <= 0, "--call-timeout: must be greater than 0")
	wrong.If(f.ruleTimeout < 0, "--rule-timeout: must not be negative")
	options := conformance.Options{Name: utilrand.String(5), MaxMachines: f.limit, Timeout: f.timeout, RuleTimeout: f.ruleTimeout}
	var err error
	options.Run, err = pattern("run", f.run)
	wrong.If(err != nil, "%v", err)
	options.Skip, err = pattern("skip", f.skip)
	wrong.If(err != nil, "%v", err)
	return options, wrong.Err()
}

func pattern(flag, text string) (*regexp.Regexp, error) {
	if text == "" {
		return nil, nil
	}
	compiled, err := regexp.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("--%s: %q is not a regular expression", flag, text)
	}
	return compiled, nil
}

// check reads the files, opens the driver and checks it.
func (f *flags) check(cmd *cobra.Command) error {
	options, err := f.options()
	if err != nil {
		return args.Wrong(err)
	}
	read, err := f.files.read()
	if err == nil {
		err = f.driver.Choose(read.class)
	}
	if err == nil {
		err = read.areFor(f.driver.Name)
	}
	if err != nil {
		return args.Wrong(err)
	}
	results, err := openResults(f.resume, f.driver.Name, read.class.Name())
	if err != nil {
		return args.Wrong(err)
	}
	options.Earlier = results.Results
	if prepare := f.program.Prepare; prepare != nil {
		done, err := prepare(f.driver.Name)
		if err != nil {
			return err
		}
		defer done()
	}
	opened, err := f.driver.Open(cmd.Context(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer opened.Close()
	provider, err := read.provider(cmd.Context(), opened.Driver)
	if err != nil {
		return err
	}
	provider.Hooks.Restart = opened.Again
	return f.report(cmd, provider, options, results)
}

// report checks the driver and prints the report.
func (f *flags) report(cmd *cobra.Command, provider conformance.Provider, options conformance.Options, results *results) error {
	provider.Uninitialized = f.initialize
	progress := cmd.OutOrStdout()
	if !f.format.IsText() {
		progress = cmd.ErrOrStderr()
	}
	fmt.Fprintf(progress, "Checking driver %s with class %s: at most %d machines in total, 4 at a time; their names begin with %s%s\n",
		cmp.Or(f.driver.Name, "of this program"), provider.Class.Name, f.limit, conformance.Prefix, options.Name)
	if len(options.Earlier) > 0 {
		fmt.Fprintf(progress, "Continuing with %d results of %s\n", len(options.Earlier), f.resume)
	}
	var unwritten error
	options.Done = func(result conformance.Result) {
		unwritten = results.add(result)
		if result.Outcome != conformance.Unchecked {
			_ = result.Print(progress)
		}
	}
	forget := context.AfterFunc(cmd.Context(), func() {
		fmt.Fprintln(cmd.ErrOrStderr(), "Interrupted: deleting the machines of the current rule. Interrupt again to exit immediately and leave them.")
	})
	defer forget()
	report, err := conformance.Check(cmd.Context(), provider, options)
	if err != nil {
		return err
	}
	if len(report.Results) == 0 && !report.Interrupted {
		return args.Wrong(errNoRule)
	}
	return errors.Join(f.print(report, cmd.OutOrStdout()), unwritten)
}

var errNoRule = errors.New("--run, --skip: no rule matches; docs/drivers/conformance.md lists the rules")

var (
	errBroken      = errors.New("the driver breaks rules of its contract; the report lists them")
	errLeft        = errors.New("machines remain at the provider; delete those that the report lists")
	errInterrupted = errors.New("interrupted")
)

// print prints the end of the report. It returns the verdict as an error.
func (f *flags) print(report conformance.Report, out io.Writer) error {
	if err := f.format.Print(out, report, report.PrintSummary); err != nil {
		return fmt.Errorf("cannot write the report: %w", err)
	}
	var verdict error
	if report.Count(conformance.Failed) > 0 {
		verdict = errBroken
	}
	if len(report.Left) > 0 {
		verdict = errors.Join(verdict, errLeft)
	}
	if report.Interrupted {
		verdict = errors.Join(verdict, errInterrupted)
	}
	return verdict
}
