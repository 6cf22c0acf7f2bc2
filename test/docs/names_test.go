package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/env"
)

var (
	testName = regexp.MustCompile(`\bTest[A-Z]\w*`)
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(`)
)

// Pages that say which test covers what.
var coverage = []string{"mcm-coverage.md", "cluster-api.md", "halves.md"}

func TestThePagesNameTestsThatExist(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	there := tests(t, root)
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
	}
}

// tests are the names of all tests of the repository.
func tests(t *testing.T, root string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, found := range testFunc.FindAllSubmatch(text, -1) {
			names[string(found[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
