// Package repository says which files this repository has.
//
// Tests that look at all of them ask it, and do not walk the folders: the go command runs a test again when a folder
// that it read has changed, as the root has whenever git wrote a file of its own.
package repository

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// DependOnAllFiles has the go command run the calling test again when any file of the repository has changed. Tests call
// it that have another process read files: a script, or the go command itself. The go command sees which files and
// variables a test asks for; "make test" sets this one.
func DependOnAllFiles() { _ = os.Getenv("MILLWRIGHT_SOURCES") }

// Files returns the paths of the regular files below a folder, each beginning with the folder, in their order: those
// that are under version control, and those that may come under it.
func Files(t testing.TB, folder string) []string {
	t.Helper()
	DependOnAllFiles()
	git := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
	git.Dir = folder
	out, err := git.Output()
	if err != nil {
		t.Fatalf("%v in %s: %v", git, folder, err)
	}
	var files []string
	for name := range strings.SplitSeq(string(out), "\x00") {
		path := filepath.Join(folder, filepath.FromSlash(name))
		// What is deleted is on git's list until git is told.
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
			files = append(files, path)
		}
	}
	slices.Sort(files)
	return files
}

// GoFiles returns those of Files that are Go files, of all modules, and in folders that the go command looks into.
func GoFiles(t testing.TB, folder string) []string {
	t.Helper()
	return slices.DeleteFunc(Files(t, folder), func(path string) bool {
		name, err := filepath.Rel(folder, path)
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Ext(name) != ".go" || slices.ContainsFunc(strings.Split(filepath.ToSlash(name), "/"), ignored)
	})
}

// ignored reports whether the go command does not look into a folder, or a file, of that name.
func ignored(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata"
}
