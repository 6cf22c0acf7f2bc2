package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mayCompareText are the files that may compare the text of a field named Message or Description. They only format, show
// or store it, or find a name that is not available anywhere else. They make no other decisions based on it.
var mayCompareText = []string{
	"internal/observe/explain/report/events.go", // finds the Machine that a MachineSet of MCM deleted, whose events have no annotations
	"internal/cli/logging/logging.go",           // suppresses a message that controller-runtime logs at every normal shutdown
}

// deciders are the functions of package strings whose result is a decision.
var deciders = []string{"Contains", "ContainsAny", "HasPrefix", "HasSuffix", "Index", "EqualFold"}

// TestMessages_AreNotUsedForDecisions checks that programs do not make decisions based on messages, which are outputs. They
// must use reasons, generations and typed causes instead.
func TestMessages_AreNotUsedForDecisions(t *testing.T) {
	used := map[string]bool{}
	for _, directory := range []string{"api", "bench", "cmd", "driver", "drivers", "guest", "internal"} {
		err := filepath.WalkDir(filepath.Join("../..", directory), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
				strings.HasSuffix(path, ".pb.go") || strings.HasPrefix(entry.Name(), "zz_generated.") {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, 0)
			if err != nil {
				return err
			}
			name := filepath.ToSlash(strings.TrimPrefix(path, "../../"))
			for _, position := range sentenceDecisions(file) {
				used[name] = true
				if !slices.Contains(mayCompareText, name) {
					t.Errorf("%s:%d makes a decision based on a message; use a reason or a typed cause", name, set.Position(position).Line)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range mayCompareText {
		if !used[name] {
			t.Errorf("%s does not compare a message; remove it from the list", name)
		}
	}
}

// sentenceDecisions returns the positions in a file where a decision is based on a message.
func sentenceDecisions(file *ast.File) []token.Pos {
	var found []token.Pos
	ast.Inspect(file, func(node ast.Node) bool {
		if decidesOnSentence(node) {
			found = append(found, node.Pos())
		}
		return true
	})
	return found
}

func decidesOnSentence(node ast.Node) bool {
	switch n := node.(type) {
	case *ast.BinaryExpr: // a comparison with the empty string is allowed
		return (n.Op == token.EQL || n.Op == token.NEQ) && (isSentence(n.X) || isSentence(n.Y)) && !isEmpty(n.X) && !isEmpty(n.Y)
	case *ast.SwitchStmt:
		return isSentence(n.Tag)
	case *ast.IndexExpr:
		return isSentence(n.Index)
	case *ast.CallExpr:
		return len(n.Args) > 0 && isSentence(n.Args[0]) && isDecider(n.Fun)
	}
	return false
}

// isDecider reports whether a function is one of the deciders.
func isDecider(function ast.Expr) bool {
	f, ok := function.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	of, ok := f.X.(*ast.Ident)
	return ok && of.Name == "strings" && slices.Contains(deciders, f.Sel.Name)
}

// isSentence reports whether an expression is a field named Message or Description.
func isSentence(e ast.Expr) bool {
	s, ok := e.(*ast.SelectorExpr)
	return ok && (s.Sel.Name == "Message" || s.Sel.Name == "Description")
}

func isEmpty(e ast.Expr) bool {
	b, ok := e.(*ast.BasicLit)
	return ok && b.Value == `""`
}

func TestSentenceDecisions(t *testing.T) {
	for source, want := range map[string]int{
		`a.Message == "full"`:                     1,
		`a.Message != b.Description`:              1,
		`a.Message == ""`:                         0,
		`strings.Contains(a.Message, "full")`:     1,
		`strings.HasPrefix(a.Description, "VM ")`: 1,
		`strings.TrimSpace(a.Message) + a.Reason`: 0,
		`known[a.Message]`:                        1,
		`a.Reason == "Full"`:                      0,
	} {
		expression, err := parser.ParseExpr(source)
		if err != nil {
			t.Fatal(err)
		}
		file := &ast.File{Name: ast.NewIdent("x"), Decls: []ast.Decl{&ast.GenDecl{
			Tok: token.VAR, Specs: []ast.Spec{&ast.ValueSpec{Names: []*ast.Ident{ast.NewIdent("_")}, Values: []ast.Expr{expression}}},
		}}}
		if got := len(sentenceDecisions(file)); got != want {
			t.Errorf("%s: %d decisions, want %d", source, got, want)
		}
	}
}
