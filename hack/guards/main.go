// Command guards checks that each line of the threat model has a test that fails when its guard is switched off.
//
//	guards [flags]
//
// The file guards.yaml next to this program lists, for each line of docs/contributing/threat-model.md that prevents an attempt,
// where the guard is, an edit that switches it off, and the test that must fail then. The command applies each edit in
// an overlay of the go command, so the working tree does not change, and runs the test.
//
// All edits that the tests of one package notice are compiled into one test binary where possible. The environment
// variable GUARD_OFF names the guard that is switched off.
//
// The exit status is 1 if a guard survives: a test passes without it, does not run, or the edit does not compile.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"time"
)

const (
	tablePath = "hack/guards/guards.yaml"
	modelPath = "docs/contributing/threat-model.md"
	pagePath  = "docs/contributing/guards.md"
)

func main() {
	var o options
	only := flag.String("only", "", "regular expression; only guards whose attempt, file, package or test matches it are switched off")
	page := flag.Bool("page", false, "write "+pagePath+" and exit")
	flag.BoolVar(&o.fast, "fast", false, "omit guards that are marked as slow")
	flag.DurationVar(&o.timeout, "timeout", 5*time.Minute, "time after which a test is stopped; it then counts as failed")
	flag.StringVar(&o.root, "root", ".", "root directory of the repository")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := o.compile(*only)
	switch {
	case err != nil:
	case *page:
		err = writePage(o.root)
	default:
		err = o.check(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "guards:", err)
		stop()
		os.Exit(1)
	}
}

// options are what the command line sets.
type options struct {
	root    string
	only    *regexp.Regexp
	fast    bool
	timeout time.Duration
}

// compile completes the options with the expression that selects guards, and with the absolute path of the root directory.
func (o *options) compile(only string) (err error) {
	if o.only, err = regexp.Compile(only); err == nil {
		o.root, err = filepath.Abs(o.root)
	}
	return err
}

// writePage generates the page that lists the guards.
func writePage(root string) error {
	table, err := readTable(root)
	if err != nil {
		return err
	}
	text, err := render(root, table)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, pagePath), []byte(text), 0o644)
}
