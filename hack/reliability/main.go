// Command reliability reads the output of "go test -json" and writes a table of the faults that tests injected to a
// page.
//
//	go test -json … | reliability [-part] PAGE
//
// A test reports its fault and the outcome with the attributes "fault" and "outcome" (testing.T.Attr). The table
// replaces the text between two comments of the page. With -part, the rows of tests that did not run are kept.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

func main() {
	part := flag.Bool("part", false, "keep the rows of tests that did not run")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: go test -json … | reliability [-part] PAGE")
		os.Exit(2)
	}
	if err := run(os.Stdin, flag.Arg(0), *part); err != nil {
		fmt.Fprintln(os.Stderr, "reliability:", err)
		os.Exit(1)
	}
}

func run(events io.Reader, page string, part bool) error {
	faults, err := read(events)
	if err != nil {
		return err
	}
	if len(faults) == 0 {
		return errors.New("no test reported a fault")
	}
	before, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	old, err := split(string(before))
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	rows := rowsOf(faults)
	if part {
		rows = merge(old.rows, rows)
	}
	after := old.head + begin + heading + strings.Join(rows, "") + end + old.tail
	if err := os.WriteFile(page, []byte(after), 0o644); err != nil {
		return err
	}
	for _, f := range faults {
		if f.result != "pass" {
			err = errors.Join(err, fmt.Errorf("%s.%s: %s", f.pkg, f.test, f.result))
		}
	}
	return err
}

// event is a line of go test -json.
type event struct {
	Action, Package, Test, Key, Value string
}

// fault is a fault that a test injected.
type fault struct {
	pkg, test, name, outcome, result string
}

// read returns the faults in the order in which their tests started.
func read(events io.Reader) ([]*fault, error) {
	var faults []*fault
	byTest := map[string]*fault{}
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 64<<20) // a test's output is a single line
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			continue // output of the go command itself, for example of a failed build
		}
		test := e.Package + "." + e.Test
		f := byTest[test]
		switch {
		case e.Action == "attr" && e.Key == "fault":
			f = &fault{pkg: e.Package, test: e.Test, name: e.Value}
			byTest[test] = f
			faults = append(faults, f)
		case f == nil:
		case e.Action == "attr" && e.Key == "outcome":
			f.outcome = e.Value
		case e.Action == "pass" || e.Action == "fail" || e.Action == "skip":
			f.result = e.Action
		}
	}
	return faults, lines.Err()
}

// module is the import path of this module, with which all packages start.
const module = "github.com/millwright-dev/millwright/"

const heading = "| Fault | Observed behavior | Result | Test |\n|---|---|---|---|\n"

func rowsOf(faults []*fault) []string {
	var rows []string
	for _, f := range faults {
		name, _, _ := strings.Cut(f.test, "/")
		rows = append(rows, fmt.Sprintf("| %s | %s | %s | `%s` %s |\n", cell(f.name), cell(f.outcome), f.result, strings.TrimPrefix(f.pkg, module), name))
	}
	return rows
}

// testOf returns the last cell of a row: the package and the test.
func testOf(row string) string {
	cells := strings.Split(strings.TrimSuffix(row, " |\n"), " | ")
	return cells[len(cells)-1]
}

// merge returns the old rows with the new rows of each test in their place. Rows of tests without old rows follow
// those of their packages, or are at the end.
func merge(old, ran []string) []string {
	byTest := map[string][]string{}
	var tests []string
	for _, row := range ran {
		test := testOf(row)
		if byTest[test] == nil {
			tests = append(tests, test)
		}
		byTest[test] = append(byTest[test], row)
	}
	var merged []string
	placed := map[string]bool{}
	for _, row := range old {
		test := testOf(row)
		switch {
		case byTest[test] == nil:
			merged = append(merged, row)
		case !placed[test]:
			placed[test] = true
			merged = append(merged, byTest[test]...)
		}
	}
	for _, test := range tests {
		if !placed[test] {
			merged = slices.Insert(merged, endOf(merged, test), byTest[test]...)
		}
	}
	return merged
}

// endOf returns the index after the last row of a test's package, or the number of rows if there is none.
func endOf(rows []string, test string) int {
	pkg, _, _ := strings.Cut(test, " ")
	for i, row := range slices.Backward(rows) {
		if strings.HasPrefix(testOf(row), pkg+" ") {
			return i + 1
		}
	}
	return len(rows)
}

func cell(text string) string { return strings.NewReplacer("|", "\\|", "\n", " ").Replace(text) }

const (
	begin = "<!-- faults: begin -->\n"
	end   = "<!-- faults: end -->"
)

// parts are the parts of a page. Rows end with a newline.
type parts struct {
	head, tail string
	rows       []string
}

// split splits a page into the rows between the comments and the surrounding text.
func split(page string) (parts, error) {
	head, rest, found := strings.Cut(page, begin)
	inner, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		return parts{}, fmt.Errorf("the page lacks the comments %q and %q", strings.TrimSpace(begin), end)
	}
	p := parts{head: head, tail: tail}
	if _, rows, found := strings.Cut(inner, heading); found {
		p.rows = slices.Collect(strings.Lines(rows))
	}
	return p, nil
}
