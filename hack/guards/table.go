package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// section is a section of the threat model.
type section struct {
	// Title is the heading of the section in the threat model.
	Title string `json:"title"`
	Rows  []row  `json:"rows"`
}

// row is a line of the threat model that prevents an attempt. It has guards or a reason.
type row struct {
	// Attempt is the first cell of the line, without targets of links.
	Attempt string  `json:"attempt"`
	Guards  []guard `json:"guards,omitempty"`
	// Reason is why no edit of this repository can switch the guard off, for example because Kubernetes is the guard.
	Reason string `json:"reason,omitempty"`
	// Shown is a test that shows the behavior of a row with a Reason, as PACKAGE.TEST. It is optional.
	Shown string `json:"shown,omitempty"`
}

// guard is one guard, with an edit that switches it off.
type guard struct {
	// File is the path of the file that contains the guard.
	File string `json:"file"`
	// Old is text that occurs once in File, and New replaces it.
	Old string `json:"old"`
	New string `json:"new"`
	// Package is the directory of the package whose test fails without the guard. If empty, it is that of File.
	Package string `json:"package,omitempty"`
	// Test is the name of that test, or that of a subtest (TestX/name).
	Test string `json:"test"`
	// Slow is why the test is not a fast unit test. It is empty for fast tests.
	Slow string `json:"slow,omitempty"`
}

// directory returns the directory of the package whose test fails without the guard.
func (g guard) directory() string {
	if g.Package != "" {
		return g.Package
	}
	return filepath.Dir(g.File)
}

// readTable reads the table of guards.
func readTable(root string) ([]section, error) {
	text, err := os.ReadFile(filepath.Join(root, tablePath))
	if err != nil {
		return nil, err
	}
	var table []section
	if err := yaml.UnmarshalStrict(text, &table); err != nil {
		return nil, fmt.Errorf("%s: %w", tablePath, err)
	}
	return table, nil
}

var (
	heading = regexp.MustCompile(`^#+ (.*)$`)
	// link is a link in Markdown: its text, and its target.
	link = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
)

// readModel returns the lines of the threat model that prevent an attempt, with only their titles and attempts.
func readModel(root string) ([]section, error) {
	text, err := os.ReadFile(filepath.Join(root, modelPath))
	if err != nil {
		return nil, err
	}
	return parseModel(string(text)), nil
}

func parseModel(text string) []section {
	var model []section
	title, prevents := "", false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch found := heading.FindStringSubmatch(line); {
		case found != nil:
			title = found[1]
		case !strings.HasPrefix(line, "|"):
			prevents = false
		case strings.HasPrefix(line, "| Attempt |"):
			prevents = true
			model = append(model, section{Title: title})
		case prevents && !strings.HasPrefix(line, "|---"):
			attempt, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
			last := &model[len(model)-1]
			last.Rows = append(last.Rows, row{Attempt: link.ReplaceAllString(attempt, "$1")})
		}
	}
	return model
}

// differences compares the titles and attempts of the table with the threat model.
func differences(model, table []section) []string {
	return append(missing(model, table, tablePath), missing(table, model, modelPath)...)
}

// missing returns a problem for each row of a table that another one lacks. Path is the file with the other one.
func missing(rows, other []section, path string) []string {
	type key struct{ title, attempt string }
	there := map[key]bool{}
	for _, s := range other {
		for _, r := range s.Rows {
			there[key{s.Title, r.Attempt}] = true
		}
	}
	var problems []string
	for _, s := range rows {
		for _, r := range s.Rows {
			if !there[key{s.Title, r.Attempt}] {
				problems = append(problems, fmt.Sprintf("%s has no row %q below %q", path, r.Attempt, s.Title))
			}
		}
	}
	return problems
}

// problems returns what is wrong with a row, apart from its attempt.
func (r row) problems(root string) []string {
	if (len(r.Guards) == 0) == (r.Reason == "") {
		return []string{"has neither guards nor a reason, or both"}
	}
	var problems []string
	if pkg, test, found := strings.Cut(r.Shown, "."); r.Shown != "" && !(found && hasTest(root, pkg, test)) {
		problems = append(problems, fmt.Sprintf("the test %s does not exist; write PACKAGE.TEST", r.Shown))
	}
	for _, g := range r.Guards {
		problems = append(problems, g.problems(root)...)
	}
	return problems
}

func (g guard) problems(root string) []string {
	var problems []string
	text, err := os.ReadFile(filepath.Join(root, g.File))
	switch count := strings.Count(string(text), g.Old); {
	case err != nil:
		problems = append(problems, err.Error())
	case g.Old == "" || g.Old == g.New:
		problems = append(problems, g.File+": the edit changes nothing")
	case count != 1:
		problems = append(problems, fmt.Sprintf("%s contains the text %q %d times, want once", g.File, g.Old, count))
	}
	if !hasTest(root, g.directory(), g.Test) {
		problems = append(problems, fmt.Sprintf("package %s has no test %s", g.directory(), g.Test))
	}
	return problems
}

// hasTest reports whether a package has a test of that name. The names of subtests are not checked.
func hasTest(root, directory, name string) bool {
	name, _, _ = strings.Cut(name, "/")
	files, err := filepath.Glob(filepath.Join(root, directory, "*_test.go"))
	if err != nil {
		return false
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}
