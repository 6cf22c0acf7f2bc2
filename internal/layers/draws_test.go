package layers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPropertiesAreDrawnByLot: a test that calls rapid itself is not tested anew in each run of "make test". See lot.Check.
func TestPropertiesAreDrawnByLot(t *testing.T) {
	const call, may = "rapid." + "Check(", "test/lot/lot.go"
	found := map[string]bool{}
	err := eachGoFile(root, func(path string) error {
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), call) {
			found[filepath.ToSlash(strings.TrimPrefix(path, root+"/"))] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !found[may] {
		t.Errorf("%s does not call it: is its name here still right?", may)
	}
	delete(found, may)
	for name := range found {
		t.Errorf("%s calls rapid itself: use lot.Check", name)
	}
}
