package layers

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPropertiesAreDrawnByLot: a test that calls rapid itself is not tested anew in each run of "make test". See lot.Check.
func TestPropertiesAreDrawnByLot(t *testing.T) {
	const call, may = "rapid." + "Check(", "test/lot/lot.go"
	found := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && ignored(entry.Name()):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
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
