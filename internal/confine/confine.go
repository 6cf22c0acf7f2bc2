// Package confine keeps names that others chose inside a folder.
package confine

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// OutsideError means that a name leads out of its folder, or is not one of a file.
type OutsideError struct{ Name string }

// Error implements error.
func (e *OutsideError) Error() string {
	return fmt.Sprintf("%q is not the path of something below the folder, in its shortest form", e.Name)
}

// Name returns the path of a file below a folder, for use with os.Root, which also confines
// symbolic links. The path may be absolute, as those in a container: then the folder is its
// root. Errors: *OutsideError if it is not in its shortest form, or is the folder itself.
func Name(file string) (string, error) {
	name := strings.TrimPrefix(file, "/")
	if name == "." || path.Clean(name) != name || !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
		return "", &OutsideError{file}
	}
	return name, nil
}

// Element returns the name of a file or folder directly in a folder. Errors: *OutsideError.
func Element(file string) (string, error) {
	if name, err := Name(file); err != nil || name != file || strings.Contains(name, "/") {
		return "", &OutsideError{file}
	}
	return file, nil
}

// Below returns the path of a file relative to a folder, without looking at the files. Both
// are absolute. Errors: *OutsideError.
func Below(folder, file string) (string, error) {
	name, err := filepath.Rel(folder, file)
	if err != nil || path.Clean(file) != file {
		return "", &OutsideError{file}
	}
	if name, err = Name(name); err != nil {
		return "", &OutsideError{file}
	}
	return name, nil
}

// Remove removes a file or folder directly in a folder with everything in it. It does
// nothing if there is none. Errors: *OutsideError, and those of the file system.
func Remove(folder, file string) error {
	name, err := Element(file)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return root.RemoveAll(name)
}
