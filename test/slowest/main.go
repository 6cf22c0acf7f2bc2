// Command slowest prints what go test -json says as go test itself would, and the slowest
// tests at the end:
//
//	go test -json ./... | go run ./test/slowest
//
// A package that passed is one line; of one that failed, the output of every test that did
// not pass is shown in full. Lines that are not JSON pass through. It does not tell success
// from failure: in a pipe, let the shell do so (set -o pipefail).
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	count := flag.Int("n", 10, "how many tests are listed")
	verbose := flag.Bool("v", false, "print the output of tests that passed too")
	flag.Parse()
	if err := run(os.Stdin, os.Stdout, *count, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "slowest:", err)
		os.Exit(1)
	}
}

// event is a line of go test -json; see go doc test2json.
type event struct {
	Action     string
	Package    string
	ImportPath string // of a build
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// finished is a test that passed or failed.
type finished struct {
	name, pkg string
	seconds   float64
}

// report is what is known of the packages whose tests run.
type report struct {
	out     io.Writer
	verbose bool
	// output is what was printed, in order, of each package's tests that may still fail.
	output map[string][]event
	tests  []finished
}

func run(in io.Reader, out io.Writer, count int, verbose bool) error {
	r := &report{out: out, verbose: verbose, output: map[string][]event{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			r.line(line)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(r.output)) { // go test was killed
		r.print(r.output[pkg])
	}
	r.slowest(count)
	return nil
}

func (r *report) line(line string) {
	var e event
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
		fmt.Fprint(r.out, line)
		return
	}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		r.keep(e)
	case "pass", "skip", "fail":
		r.ended(e)
	}
}

// keep holds output back until it is known whether it is of a test that fails.
func (r *report) keep(e event) {
	if r.verbose {
		fmt.Fprint(r.out, e.Output)
		return
	}
	r.output[e.Package] = append(r.output[e.Package], e)
}

func (r *report) ended(e event) {
	if e.Test == "" {
		r.endedPackage(e)
		return
	}
	if e.Action != "fail" {
		r.output[e.Package] = slices.DeleteFunc(r.output[e.Package], func(kept event) bool { return kept.Test == e.Test })
	}
	if e.Action != "skip" {
		r.tests = append(r.tests, finished{e.Test, e.Package, e.Elapsed})
	}
}

// endedPackage prints what go test prints of a package: its last line, and before that, if
// it failed, all that is left.
func (r *report) endedPackage(e event) {
	kept := r.output[e.Package]
	delete(r.output, e.Package)
	if e.Action != "fail" {
		kept = slices.DeleteFunc(kept, func(e event) bool { return e.Test != "" || e.Output == "PASS\n" })
	}
	r.print(kept)
}

// print prints the output of one test after that of the other, and the package's own last:
// tests that ran at the same time wrote between each other's lines.
func (r *report) print(events []event) {
	first := map[string]int{"": len(events)}
	for i, e := range events {
		if _, ok := first[e.Test]; !ok {
			first[e.Test] = i
		}
	}
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(first[a.Test], first[b.Test]) })
	for _, e := range events {
		if !strings.HasPrefix(e.Output, "=== ") {
			fmt.Fprint(r.out, e.Output)
		}
	}
}

// slowest lists the tests that took longest, without those that only run subtests.
func (r *report) slowest(count int) {
	parents := map[[2]string]bool{}
	for _, test := range r.tests {
		for at, char := range test.name {
			if char == '/' {
				parents[[2]string{test.pkg, test.name[:at]}] = true
			}
		}
	}
	tests := slices.DeleteFunc(r.tests, func(test finished) bool { return parents[[2]string{test.pkg, test.name}] })
	if len(tests) == 0 {
		return
	}
	slices.SortStableFunc(tests, func(a, b finished) int { return cmp.Compare(b.seconds, a.seconds) })
	fmt.Fprintln(r.out, "the slowest tests:")
	for _, test := range tests[:min(count, len(tests))] {
		took := time.Duration(test.seconds * float64(time.Second)).Round(100 * time.Millisecond)
		fmt.Fprintf(r.out, "%8v  %s  %s\n", took, test.pkg, test.name)
	}
}
