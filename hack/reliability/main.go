// Command reliability writes a table of the faults that tests played, from what "go test -json"
// printed, into a page.
//
//	go test -json … | reliability PAGE
//
// A test tells its fault, and what came of it, by the attributes "fault" and "outcome" (testing.T.Attr).
// The table replaces what stands in the page between two comments.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go test -json … | reliability PAGE")
		os.Exit(2)
	}
	if err := run(os.Stdin, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "reliability:", err)
		os.Exit(1)
	}
}

func run(events io.Reader, page string) error {
	faults, err := read(events)
	if err != nil {
		return err
	}
	if len(faults) == 0 {
		return errors.New("no test told of a fault")
	}
	before, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	after, err := replace(string(before), table(faults))
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
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

// fault is what a test played.
type fault struct {
	pkg, test, name, outcome, result string
}

// read returns the faults in the order in which their tests began.
func read(events io.Reader) ([]*fault, error) {
	var faults []*fault
	byTest := map[string]*fault{}
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 64<<20) // what a test prints is one line
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			continue // what the go command itself says, as about a build that failed
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

// module is the import path of this module, which all packages begin with.
const module = "github.com/millwright-dev/millwright/"

func table(faults []*fault) string {
	var text strings.Builder
	fmt.Fprintf(&text, "| fault | what was seen | result | test |\n|---|---|---|---|\n")
	for _, f := range faults {
		name, _, _ := strings.Cut(f.test, "/")
		fmt.Fprintf(&text, "| %s | %s | %s | `%s` %s |\n", cell(f.name), cell(f.outcome), f.result, strings.TrimPrefix(f.pkg, module), name)
	}
	return text.String()
}

func cell(text string) string { return strings.NewReplacer("|", "\\|", "\n", " ").Replace(text) }

const (
	begin = "<!-- faults: begin -->\n"
	end   = "<!-- faults: end -->"
)

// replace puts a text between the comments of a page.
func replace(page, text string) (string, error) {
	head, rest, found := strings.Cut(page, begin)
	_, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		return "", fmt.Errorf("there is no %q and %q", strings.TrimSpace(begin), end)
	}
	return head + begin + text + end + tail, nil
}
