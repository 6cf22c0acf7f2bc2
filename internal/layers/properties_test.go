package layers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/repository"
)

// TestPropertiesAreTheSameInEachRun: a test that calls rapid itself has another seed in each run. See tier.Check.
func TestPropertiesAreTheSameInEachRun(t *testing.T) {
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
		t.Errorf("%s does not call it: is its name here still right?", may)
	}
	delete(found, may)
	for name := range found {
		t.Errorf("%s calls rapid itself: use tier.Check", name)
	}
}
