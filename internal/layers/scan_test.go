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

// scan reads the imports of all Go files of the repository: of all modules, and whatever
// their build tags, which is why it does not ask the go command.
func scan(t *testing.T) []goPackage {
	t.Helper()
	byFolder := map[string]map[string]bool{}
	for _, path := range repository.GoFiles(t, root) {
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		folder = filepath.ToSlash(folder)
		if byFolder[folder] == nil {
			byFolder[folder] = map[string]bool{}
		}
		if err := addImports(byFolder[folder], path); err != nil {
			t.Fatal(err)
		}
	}
	var packages []goPackage
	for folder, imports := range byFolder {
		packages = append(packages, goPackage{folder: folder, imports: imports})
	}
	return packages
}

// addImports adds the imports of one file. A file that vanished meanwhile (an editor's, say)
// imports nothing.
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
