package layers

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// scan reads the imports of all Go files below root: of all modules, and whatever
// their build tags, which is why it does not ask the go command.
func scan(root string) ([]goPackage, error) {
	byFolder := map[string]map[string]bool{}
	err := eachGoFile(root, func(path string) error {
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		folder = filepath.ToSlash(folder)
		if byFolder[folder] == nil {
			byFolder[folder] = map[string]bool{}
		}
		return addImports(byFolder[folder], path)
	})
	var packages []goPackage
	for folder, imports := range byFolder {
		packages = append(packages, goPackage{folder: folder, imports: imports})
	}
	return packages, err
}

// eachGoFile calls visit with the path of each Go file below root.
func eachGoFile(root string, visit func(path string) error) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && ignored(entry.Name()):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		return visit(path)
	})
}

// ignored names folders that the go command does not look into either, and bin.
func ignored(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "bin"
}

// addImports adds the imports of one file. A file that vanished while the tree was
// walked (an editor's, say) imports nothing.
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
