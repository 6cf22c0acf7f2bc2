// Command mutate reports conditions of a package that no test guards.
//
//	mutate [flags] PACKAGE...
//
// It makes each condition of a package always true, always false, and each comparison off by one, and runs the tests of
// the package for each of these mutants. A mutant that no test notices survives: either a test is missing, or the
// condition makes no difference.
//
// All mutants of a package are compiled into one test binary, which reads from the environment which of them is active.
// So a mutant costs one run of the tests, and no compilation.
//
// Survivors that make no difference are listed in accepted.txt next to this file, each with its reason. The exit status
// is 1 if any other mutant survives, or if the list names a mutant that no longer exists or survives.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	var o options
	tests := flag.String("tests", "", "packages whose tests run in addition to those of the mutated package, separated by commas")
	only := flag.String("only", "", "regular expression; only mutants whose description matches it are tried")
	flag.StringVar(&o.run, "run", ".", "regular expression of the tests to run, as for go test")
	flag.DurationVar(&o.timeout, "timeout", time.Minute, "time after which the tests of a mutant are stopped; the mutant then counts as noticed")
	flag.StringVar(&o.accepted, "accepted", "hack/mutate/accepted.txt", "file that lists the accepted survivors")
	flag.BoolVar(&o.list, "list", false, "list the mutants and exit")
	flag.Parse()
	o.packages = flag.Args()
	o.tests = strings.FieldsFunc(*tests, func(r rune) bool { return r == ',' })
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if o.only, err = regexp.Compile(*only); err == nil {
		err = o.mutate(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		stop()
		os.Exit(1)
	}
}

// options are what the command line sets.
type options struct {
	packages, tests []string
	only            *regexp.Regexp
	run             string
	timeout         time.Duration
	accepted        string
	list            bool
}

// mutate tries the mutants of all packages, and fails if one survives that is not accepted.
func (o options) mutate(ctx context.Context) error {
	if len(o.packages) == 0 {
		return fmt.Errorf("expected at least one package; run mutate -h for usage")
	}
	accepted, err := readAccepted(o.accepted)
	if err != nil {
		return err
	}
	unexpected := 0
	for _, path := range o.packages {
		survivors, err := o.survivors(ctx, path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, m := range survivors {
			if !accepted.take(m.key()) {
				unexpected++
				fmt.Println(m.report())
			}
		}
		unexpected += o.reportStale(accepted, path)
	}
	if unexpected > 0 {
		return fmt.Errorf("unguarded conditions: %d; add a test for each, or a line with a reason to %s", unexpected, o.accepted)
	}
	return nil
}

// reportStale prints the accepted mutants of a package that did not survive. It does nothing if only some mutants
// were tried.
func (o options) reportStale(accepted acceptance, path string) int {
	if o.only.String() != "" || o.list {
		return 0
	}
	stale := accepted.left(strings.TrimPrefix(path, "./") + " ")
	slices.Sort(stale)
	for _, key := range stale {
		fmt.Printf("%s: listed in %s, but a test notices it, or it no longer exists\n", key, o.accepted)
	}
	return len(stale)
}
