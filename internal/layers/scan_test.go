package layers

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/repository"
)

// scan reads the imports of all Go files of the repository. It does not use the go command, because it includes all
// modules and files with any build tags.
func scan(t *testing.T) []goPackage {
	t.Helper()
	byDirectory := map[string]map[string]bool{}
	for _, path := range repository.GoFiles(t, root) {
		directory, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		directory = filepath.ToSlash(directory)
		if byDirectory[directory] == nil {
			byDirectory[directory] = map[string]bool{}
		}
		if err := addImports(byDirectory[directory], path); err != nil {
			t.Fatal(err)
		}
	}
	var packages []goPackage
	for directory, imports := range byDirectory {
		packages = append(packages, goPackage{directory: directory, imports: imports})
	}
	return packages
}

// addImports adds the imports of one file. A file that was deleted in the meantime, such as a temporary file of an editor,
// has no imports.
func addImports(imports map[string]bool, path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	isTest := strings.HasSuffix(path, "_test.go")
	for _, spec := range file.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return err
		}
		onlyTests, seen := imports[name]
		imports[name] = isTest && (!seen || onlyTests)
	}
	return nil
}
