// Package comments checks that every package, and every exported name outside of tests and
// generated code, has a doc comment.
package comments

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/test/support/repository"
)

// whenItChanges matches comments that give the reason to change a package, or a command, instead of
// what it does.
var whenItChanges = regexp.MustCompile(`^(Package|Command) \S+ changes (when|with)\b`)

func TestComments_ExportedNamesAreDocumented(t *testing.T) {
	set := token.NewFileSet()
	files := parseTree(t, set, "../../..")
	if len(files) < 10 {
		t.Fatalf("only %d files: looked at the wrong tree", len(files))
	}
	documented := map[string]bool{} // directory -> has a package comment
	for path, file := range files {
		directory := filepath.Dir(path)
		documented[directory] = documented[directory] || file.Doc != nil || ast.IsGenerated(file)
		if file.Doc != nil && whenItChanges.MatchString(file.Doc.Text()) {
			t.Errorf("%s: the comment describes when the package changes, not what it does", path)
		}
		for _, name := range undocumented(file) {
			t.Errorf("%s: %s has no doc comment", set.Position(name.Pos()), name.Name)
		}
	}
	for directory, ok := range documented {
		if !ok {
			t.Errorf("%s has no package comment", directory)
		}
	}
}

// parseTree parses all Go files below root but tests, of all modules, by path.
func parseTree(t *testing.T, set *token.FileSet, root string) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	for _, path := range repository.GoFiles(t, root) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files[path] = file
	}
	return files
}

// selfEvident contains methods that need no comment, because their interfaces document them.
var selfEvident = map[string]bool{"Error": true, "String": true, "Unwrap": true}

// undocumented lists the exported names of a file that have no doc comment.
func undocumented(file *ast.File) []*ast.Ident {
	if ast.IsGenerated(file) {
		return nil
	}
	var names []*ast.Ident
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Doc == nil && decl.Name.IsExported() && exportedReceiver(decl) && !selfEvident[decl.Name.Name] {
				names = append(names, decl.Name)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				names = append(names, undocumentedIn(spec, decl.Doc)...)
			}
		}
	}
	return names
}

// undocumentedIn looks at one type, or one line of constants or variables. A comment
// on the group that it stands in is enough.
func undocumentedIn(spec ast.Spec, group *ast.CommentGroup) []*ast.Ident {
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		if spec.Name.IsExported() && spec.Doc == nil && group == nil {
			return []*ast.Ident{spec.Name}
		}
	case *ast.ValueSpec:
		if spec.Doc == nil && spec.Comment == nil && group == nil {
			return slices.DeleteFunc(slices.Clone(spec.Names), func(n *ast.Ident) bool { return !n.IsExported() })
		}
	}
	return nil
}

// exportedReceiver reports whether a function is a method of an exported type, or none.
func exportedReceiver(decl *ast.FuncDecl) bool {
	if decl.Recv == nil {
		return true
	}
	of := decl.Recv.List[0].Type
	for {
		switch t := of.(type) {
		case *ast.StarExpr:
			of = t.X
		case *ast.IndexExpr:
			of = t.X
		case *ast.IndexListExpr:
			of = t.X
		case *ast.Ident:
			return t.IsExported()
		default:
			return false
		}
	}
}

func TestComments_UndocumentedNamesAreFound(t *testing.T) {
	source := `package p

func Bare()    {}
func private() {}

// Commented is documented.
func Commented() {}

type Type struct{}

func (*Type) Method()       {}
func (t Generic[K]) Other() {}
func (hidden) Method()      {}
func (Type) String() string { return "" }

// Generic is documented.
type Generic[K any] struct{}

type hidden struct{}

// A group.
const (
	One = 1
)

var Loose, loose = 1, 2
`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, name := range undocumented(file) {
		got = append(got, name.Name)
	}
	if diff := cmp.Diff([]string{"Bare", "Type", "Method", "Other", "Loose"}, got); diff != "" {
		t.Errorf("undocumented names (-want +got):\n%s", diff)
	}
}
