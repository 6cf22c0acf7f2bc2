package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
)

// proof is a link of the threat model: a test, and the folder of its package.
var proof = regexp.MustCompile("\\[`((?:Test|Fuzz)\\w+)`\\]\\(\\.\\./([^)]+)\\)")

// unproven begins the cell of a line that no test can prove.
const unproven = "no test: "

// TestThePagesOfThreatsNameTests: every line of a table of actors, or of holes, names a test that exists in the
// package that it links to, or says why there is none.
func TestThePagesOfThreatsNameTests(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, actors, found := strings.Cut(string(text), "\n## Actors\n")
	if !found {
		t.Fatal("the page has no actors")
	}
	for _, link := range proof.FindAllStringSubmatch(string(text), -1) {
		if !hasTest(t, filepath.Join(root, link[2]), link[1]) {
			t.Errorf("package %s has no %s", link[2], link[1])
		}
	}
	lines := 0
	for line := range strings.Lines(actors) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| what ") {
			continue
		}
		lines++
		if !proof.MatchString(line) && !strings.Contains(line, "| "+unproven) {
			t.Errorf("no test is named in: %s", line)
		}
	}
	if lines < 30 {
		t.Errorf("%d lines: the form of the tables has changed", lines)
	}
}

// hasTest reports whether a package has a test of that name.
func hasTest(t *testing.T, folder, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
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
