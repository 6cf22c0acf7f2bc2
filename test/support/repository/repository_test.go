package repository_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/test/support/repository"
)

// TestFiles checks that new files are listed, and that ignored and deleted files are not.
func TestFiles(t *testing.T) {
	root := t.TempDir()
	directory := filepath.Join(root, "folder")
	for name, text := range map[string]string{
		".gitignore": "*.log\n", "b.go": "", "a.go": "", "below/c.go": "", "testdata/d.go": "", "page.md": "", "gone.go": "", "build.log": "",
	} {
		path := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, arguments := range [][]string{{"init", "--quiet"}, {"add", "folder/a.go", "folder/gone.go"}} {
		if out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", root}, arguments...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", arguments, err, out)
		}
	}
	if err := os.Remove(filepath.Join(directory, "gone.go")); err != nil {
		t.Fatal(err)
	}
	below := func(names ...string) (paths []string) {
		for _, name := range names {
			paths = append(paths, filepath.Join(directory, name))
		}
		return paths
	}
	if diff := cmp.Diff(below(".gitignore", "a.go", "b.go", "below/c.go", "page.md", "testdata/d.go"), repository.Files(t, directory)); diff != "" {
		t.Errorf("all files (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(below("a.go", "b.go", "below/c.go"), repository.GoFiles(t, directory)); diff != "" {
		t.Errorf("Go files (-want +got):\n%s", diff)
	}
}
