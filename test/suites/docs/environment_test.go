package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/repository"
)

// TestEnvironment_PrefixOfMCMIsReserved checks that no file has an environment variable with the prefix that MCM's contract
// for providers reserves. The only one is a variable of MCM's integration suite.
func TestEnvironment_PrefixOfMCMIsReserved(t *testing.T) {
	repository.DependOnAllFiles()
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	variable, checked := regexp.MustCompile(`\bMC`+`_[A-Z]\w*`), 0
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", "bin", ".ci", ".millwright"}, entry.Name()):
			return filepath.SkipDir
		case !entry.Type().IsRegular() || !slices.Contains([]string{".go", ".sh", ".py", ".yaml", ".tpl", ".md", ""}, filepath.Ext(path)):
			return nil
		}
		text, err := os.ReadFile(path)
		checked++
		for _, name := range variable.FindAllString(string(text), -1) {
			if name != "MC"+"_IMAGE_TAG" {
				t.Errorf("%s: %s has a reserved prefix", path, name)
			}
		}
		return err
	})
	if err != nil || checked < 500 {
		t.Errorf("checked %d files, %v", checked, err)
	}
}
