package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
)

var jsonByLine = regexp.MustCompile(`-o json \| (sed|grep)[^\n]*`)

// TestDocs_JSONIsNotEditedByLine checks that pages do not edit JSON by line. Removing a line can leave a trailing
// comma, which not every kubectl accepts. YAML has none.
func TestDocs_JSONIsNotEditedByLine(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range userPages(t, root) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if found := jsonByLine.Find(text); found != nil {
			t.Errorf("%s: %s", filepath.Base(page), found)
		}
	}
}
