// Package confine keeps untrusted file names inside a directory.
package confine

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// OutsideError means that a name leads outside its directory or does not name a file.
type OutsideError struct{ Name string }

// Error implements error.
func (e *OutsideError) Error() string {
	return fmt.Sprintf("%q is not the clean path of a file below the directory", e.Name)
}

// Name returns the path of a file below a directory, for use with os.Root, which also confines symbolic links.
// The path may be absolute, like paths in a container; the directory is then its root. It returns an
// *OutsideError if the path is not clean or is the directory itself.
func Name(file string) (string, error) {
	name := strings.TrimPrefix(file, "/")
	if name == "." || path.Clean(name) != name || !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
		return "", &OutsideError{file}
	}
	return name, nil
}

// Element returns the name of a file or directory directly in a directory. It returns an *OutsideError for
// other names.
func Element(file string) (string, error) {
	if name, err := Name(file); err != nil || name != file || strings.Contains(name, "/") {
		return "", &OutsideError{file}
	}
	return file, nil
}

// Below returns the path of a file relative to a directory, without accessing the files. Both paths must be
// absolute. It returns an *OutsideError if the file is not below the directory.
func Below(dir, file string) (string, error) {
	name, err := filepath.Rel(dir, file)
	if err != nil || path.Clean(file) != file {
		return "", &OutsideError{file}
	}
	if name, err = Name(name); err != nil {
		return "", &OutsideError{file}
	}
	return name, nil
}

// Remove removes a file or directory, with everything in it, directly in dir. It does nothing if the file does
// not exist. It returns an *OutsideError, and errors of the file system.
func Remove(dir, file string) error {
	name, err := Element(file)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return root.RemoveAll(name)
}
