package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
)

// proof is a link to a test: the test's name, and the directory of its package.
var proof = regexp.MustCompile("\\[`((?:Test|Fuzz)\\w+)`\\]\\(\\.\\./\\.\\./([^)]+)\\)")

const (
	// unproven begins the cell of a row that no test can prove.
	unproven = "no test: "
	// fixed is the only heading with a table that the threat model does not have.
	fixed = "Fixed vulnerabilities"
)

// TestDocs_ThreatsHaveTests checks that each row of the threat model has a row in the page of its tests and the
// reverse, and that each of these names existing tests, or the reason why there are none.
func TestDocs_ThreatsHaveTests(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	contributing := filepath.Join(root, "docs", "contributing")
	threats, err := os.ReadFile(filepath.Join(contributing, "threat-model.md"))
	if err != nil {
		t.Fatal(err)
	}
	proofs, err := os.ReadFile(filepath.Join(contributing, "security-tests.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range proof.FindAllStringSubmatch(string(proofs), -1) {
		if !hasTest(t, filepath.Join(root, link[2]), link[1]) {
			t.Errorf("package %s has no %s", link[2], link[1])
		}
	}
	model, tested := tableRows(string(threats)), tableRows(string(proofs))
	rows := 0
	for key := range model {
		rows++
		if _, found := tested[key]; !found {
			t.Errorf("docs/contributing/security-tests.md has no row %q below %q", key.cell, key.heading)
		}
	}
	for key, tests := range tested {
		if _, found := model[key]; !found && key.heading != fixed {
			t.Errorf("docs/contributing/threat-model.md has no row %q below %q", key.cell, key.heading)
		}
		if !proof.MatchString(tests) && !strings.HasPrefix(tests, unproven) {
			t.Errorf("no test is named for %q below %q", key.cell, key.heading)
		}
	}
	if rows < 200 {
		t.Errorf("%d rows: the form of the tables has changed", rows)
	}
}

// tableRow identifies a row of a page's tables by the heading above it and its first cell, without targets of links.
type tableRow struct{ heading, cell string }

// tableRows returns the last cell of each row of the tables of a page, except header rows.
func tableRows(text string) map[tableRow]string {
	found, last := map[tableRow]string{}, ""
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if title := heading.FindStringSubmatch(line); title != nil {
			last = title[1]
		}
		header := i+1 < len(lines) && strings.HasPrefix(lines[i+1], "|---")
		if !strings.HasPrefix(line, "| ") || header {
			continue
		}
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		found[tableRow{last, link.ReplaceAllString(cells[0], "]")}] = cells[len(cells)-1]
	}
	return found
}

// hasTest reports whether a package has a test of that name.
func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}
