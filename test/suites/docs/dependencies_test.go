package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
)

// reason is a row of the table of dependencies: a module, and its purpose.
var reason = regexp.MustCompile("(?m)^\\| `([^` ]+)` \\| ([^|]+) \\|$")

// TestDocs_DependenciesHaveReasons checks that docs/contributing/development.md lists exactly the modules that a
// go.mod requires for our code.
func TestDocs_DependenciesHaveReasons(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	_, page, _ := strings.Cut(read("docs/contributing/development.md"), "\n## Dependencies\n")
	page, _, _ = strings.Cut(page, "\n## ")
	var listed []string
	for _, row := range reason.FindAllStringSubmatch(page, -1) {
		if len(strings.Fields(row[2])) < 2 {
			t.Errorf("%s has the reason %q", row[1], row[2])
		}
		listed = append(listed, row[1])
	}
	var required []string
	for _, module := range []string{"go.mod", "api/go.mod", "client/go.mod", "compat/mcm/go.mod", "examples/mcm-provider/go.mod", "hack/image/go.mod", "hack/site/go.mod", "test/suites/chart/go.mod", "test/suites/monitoring/go.mod"} {
		required = append(required, direct(read(module))...)
	}
	slices.Sort(required)
	required = slices.Compact(required)
	for _, path := range required {
		if !slices.Contains(listed, path) {
			t.Errorf("%s is required, and docs/contributing/development.md gives no reason", path)
		}
	}
	for _, path := range listed {
		if !slices.Contains(required, path) {
			t.Errorf("docs/contributing/development.md lists %s, which nothing requires", path)
		}
	}
}

// standsFor returns the module that compat/mcm replaces.
const standsFor = "github.com/gardener/machine-controller-manager"

var requirement = regexp.MustCompile(`(?m)^(?:require |\t)([\w.-]+\.[\w.-]+/\S+) v\S+$`)

// direct returns the modules that a go.mod requires directly, without those of this repository.
func direct(text string) []string {
	var paths []string
	for _, found := range requirement.FindAllStringSubmatch(text, -1) {
		if !strings.HasPrefix(found[1], "github.com/millwright-dev/") && found[1] != standsFor {
			paths = append(paths, found[1])
		}
	}
	return paths
}
