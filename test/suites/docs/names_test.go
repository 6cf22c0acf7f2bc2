package docs

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/repository"
)

var (
	testName = regexp.MustCompile(`\bTest[A-Z]\w*`)
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(`)
	literal  = regexp.MustCompile(`"([^"\n]+)"`)
	// subtest is the name of a subtest.
	subtest = regexp.MustCompile(`(?:Test\w+|, )/([^\s|;]+)`)
)

// Pages that list which tests cover what.
var coverage = []string{
	"contributing/autoscaler-coverage.md", "contributing/cluster-api-coverage.md", "contributing/halves-coverage.md",
	"contributing/mcm-coverage.md", "contributing/vm-protocol-tests.md",
}

func TestDocs_NamedTestsExist(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	there, literals := tests(t, root)
	for _, page := range coverage {
		text, err := os.ReadFile(filepath.Join(root, "docs", page))
		if err != nil {
			t.Fatal(err)
		}
		named := testName.FindAllString(string(text), -1)
		if len(named) == 0 {
			t.Errorf("%s names no test", page)
		}
		for _, name := range named {
			if !there[name] {
				t.Errorf("%s names %s, which does not exist", page, name)
			}
		}
		for _, found := range subtest.FindAllStringSubmatch(string(text), -1) {
			name := strings.ReplaceAll(strings.TrimSuffix(found[1], ","), "_", " ")
			if whole := !strings.Contains(name, "…"); whole && !literals[name] {
				t.Errorf("%s names the subtest %q, which does not exist", page, name)
			}
		}
	}
}

// TestDocs_ProtocolRulesHaveTests checks that each row of the tables of rules names a test.
func TestDocs_ProtocolRulesHaveTests(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "contributing", "vm-protocol-tests.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Rules\n")
	section, _, ended := strings.Cut(section, "\n## ")
	if !found || !ended {
		t.Fatal("the page has no section of rules")
	}
	rules, lines := 0, strings.Split(section, "\n")
	for i, line := range lines {
		header := i+1 < len(lines) && strings.HasPrefix(lines[i+1], "|---")
		if !strings.HasPrefix(line, "| ") || header {
			continue
		}
		rules++
		if cells := strings.Split(strings.Trim(line, "| "), " | "); len(cells) != 2 || !testName.MatchString(cells[1]) {
			t.Errorf("this rule has no test: %s", line)
		}
	}
	if rules < 70 {
		t.Errorf("there are %d rules only", rules)
	}
}

// faultRow is a row of the table of faults: the directory of a package, and a test.
var faultRow = regexp.MustCompile("\\| `([^`]+)` (Test\\w+) \\|$")

// fault matches where a test reports a fault.
var fault = regexp.MustCompile(`(?m)^func (Test\w+)\(|t\.Attr\("fault"`)

// TestDocs_FaultTableIsComplete checks that each row names a test of that package that injects faults, and that
// each such test has a row.
func TestDocs_FaultTableIsComplete(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "contributing", "reliability.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, begins := strings.Cut(string(text), "<!-- faults: begin -->")
	table, _, terminated := strings.Cut(table, "<!-- faults: end -->")
	if !begins || !terminated {
		t.Fatal("the page has no table of faults")
	}
	written := map[string]bool{}
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| Fault ") {
			continue
		}
		row := faultRow.FindStringSubmatch(strings.TrimSpace(line))
		if row == nil {
			t.Errorf("no test is named in: %s", line)
			continue
		}
		written[row[1]+" "+row[2]] = true
	}
	injecting := faults(t, root)
	for test := range written {
		if !injecting[test] {
			t.Errorf("the page names %s, which does not exist or injects no fault", test)
		}
	}
	for test := range injecting {
		if !written[test] {
			t.Errorf("%s injects a fault but has no row; run make reliability FAULTS=./PACKAGE RUN=TEST", test)
		}
	}
}

// faults returns all tests that inject faults, as "DIRECTORY TEST".
func faults(t *testing.T, root string) map[string]bool {
	t.Helper()
	injecting := map[string]bool{}
	for _, path := range testFiles(t, root) {
		directory, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		if directory == "test/suites/docs" || directory == "hack/reliability" {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		test := ""
		for _, found := range fault.FindAllSubmatch(text, -1) {
			if test = cmp.Or(string(found[1]), test); len(found[1]) == 0 {
				injecting[directory+" "+test] = true
			}
		}
	}
	return injecting
}

// tests returns the names of all tests of the repository, and all strings in them, which include the names of
// subtests.
func tests(t *testing.T, root string) (names, literals map[string]bool) {
	t.Helper()
	names, literals = map[string]bool{}, map[string]bool{}
	for _, path := range testFiles(t, root) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range testFunc.FindAllSubmatch(text, -1) {
			names[string(found[1])] = true
		}
		for _, found := range literal.FindAllSubmatch(text, -1) {
			literals[string(found[1])] = true
		}
	}
	return names, literals
}

func testFiles(t *testing.T, root string) []string {
	t.Helper()
	return slices.DeleteFunc(repository.GoFiles(t, root), func(path string) bool { return !strings.HasSuffix(path, "_test.go") })
}
