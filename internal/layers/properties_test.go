package layers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/repository"
)

// TestProperties_UseTierCheck checks that tests use tier.Check. A test that calls rapid directly would use a
// different seed in each run.
func TestProperties_UseTierCheck(t *testing.T) {
	const call, may = "rapid." + "Check(", "test/support/tier/tier.go"
	found := map[string]bool{}
	for _, path := range repository.GoFiles(t, root) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), call) {
			found[filepath.ToSlash(strings.TrimPrefix(path, root+"/"))] = true
		}
	}
	if !found[may] {
		t.Errorf("%s does not call rapid; check the path in this test", may)
	}
	delete(found, may)
	for name := range found {
		t.Errorf("%s calls rapid directly; use tier.Check", name)
	}
}
