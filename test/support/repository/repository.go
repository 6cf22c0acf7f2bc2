// Package repository lists the files of this repository.
//
// Tests that read all files use it instead of walking the directories. The go command reruns a test when a
// directory that it has read changes, and the root directory changes whenever git writes one of its own files.
package repository

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// DependOnAllFiles makes the go command rerun the calling test when any file of the repository has changed. Tests
// that start another process that reads files, such as a script or the go command, call it, because the go
// command tracks only the files and variables that the test itself reads. "make test" sets this variable.
func DependOnAllFiles() { _ = os.Getenv("MILLWRIGHT_SOURCES") }

// Files returns the sorted paths of the regular files below a directory, each beginning with the directory. It
// lists files under version control, and new files that are not ignored.
func Files(t testing.TB, directory string) []string {
	t.Helper()
	DependOnAllFiles()
	git := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
	git.Dir = directory
	out, err := git.Output()
	if err != nil {
		t.Fatalf("%v in %s: %v", git, directory, err)
	}
	var files []string
	for name := range strings.SplitSeq(string(out), "\x00") {
		path := filepath.Join(directory, filepath.FromSlash(name))
		// Git lists a deleted file until the deletion is staged.
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
			files = append(files, path)
		}
	}
	slices.Sort(files)
	return files
}

// GoFiles returns the Go files among Files, of all modules, in directories that the go command considers.
func GoFiles(t testing.TB, directory string) []string {
	t.Helper()
	return slices.DeleteFunc(Files(t, directory), func(path string) bool {
		name, err := filepath.Rel(directory, path)
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Ext(name) != ".go" || slices.ContainsFunc(strings.Split(filepath.ToSlash(name), "/"), ignored)
	})
}

// ignored reports whether the go command ignores a directory or file with this name.
func ignored(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata"
}
