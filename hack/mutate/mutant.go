package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"strings"
)

// mutant is one change of one condition.
type mutant struct {
	number int
	// pkg is the directory of the package, relative to the module.
	pkg string
	// function is the function or method that holds the condition, and condition its text.
	function, condition string
	// change is the effect of the mutant: "true", "false" or "off by one".
	change   string
	position token.Position
	// reached reports whether any test evaluates the condition.
	reached bool
}

// key identifies the mutant in the file of accepted survivors. It has no line number, so that it survives edits.
func (m mutant) key() string {
	return fmt.Sprintf("%s %s: %s → %s", m.pkg, m.function, m.condition, m.change)
}

// report describes a survivor for users.
func (m mutant) report() string {
	why := "no test fails"
	if !m.reached {
		why = "no test evaluates it"
	}
	return fmt.Sprintf("%s:%d: %s (%s)", m.position.Filename, m.position.Line, m.key(), why)
}

// support is a file that is added to each mutated package. The environment variable MUTANT contains the number of
// the active mutant; MUTANT_REACHED is a file to which the numbers of evaluated conditions are written.
const support = `package %s

import (
	"cmp"
	"os"
	"strconv"
	"sync"
)

var mutantActive, _ = strconv.Atoi(os.Getenv("MUTANT"))
var mutantReached = os.Getenv("MUTANT_REACHED")
var mutantSeen sync.Map

func mutantReach(n int) {
	if mutantReached == "" {
		return
	}
	if _, seen := mutantSeen.LoadOrStore(n, true); !seen {
		if f, err := os.OpenFile(mutantReached, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
			_, _ = f.WriteString(strconv.Itoa(n) + "\n")
			_ = f.Close()
		}
	}
}

func mutantCondition(n int, condition bool) bool {
	mutantReach(n)
	switch mutantActive {
	case n:
		return true
	case n + 1:
		return false
	}
	return condition
}

func mutantCompare[T cmp.Ordered](n int, a, b T, strict, less bool) bool {
	mutantReach(n)
	if mutantActive == n {
		strict = !strict
	}
	if !less {
		a, b = b, a
	}
	return a < b || !strict && a == b
}
`

// mutator rewrites the conditions of one file.
type mutator struct {
	pkg      string
	set      *token.FileSet
	function string
	mutants  []mutant
	// next is the number of the next mutant. Numbers start at 1; 0 means no mutant.
	next int
}

// rewrite returns the source of the file at path with all its mutants, which are appended to m.mutants.
func (m *mutator) rewrite(path string) ([]byte, error) {
	file, err := parser.ParseFile(m.set, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, declaration := range file.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok || function.Body == nil {
			continue
		}
		m.function = name(function)
		m.body(function.Body)
	}
	var text bytes.Buffer
	if err := format.Node(&text, m.set, file); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

// name returns the name of a function for reports, including its receiver, as in Controller.Reconcile.
func name(function *ast.FuncDecl) string {
	if function.Recv == nil || len(function.Recv.List) == 0 {
		return function.Name.Name
	}
	receiver := function.Recv.List[0].Type
	for {
		switch r := receiver.(type) {
		case *ast.StarExpr:
			receiver = r.X
		case *ast.IndexExpr:
			receiver = r.X
		case *ast.IndexListExpr:
			receiver = r.X
		case *ast.Ident:
			return r.Name + "." + function.Name.Name
		default:
			return function.Name.Name
		}
	}
}

// body rewrites the conditions of all statements below a node.
func (m *mutator) body(node ast.Node) {
	ast.Inspect(node, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			n.Cond = m.condition(n.Cond)
		case *ast.ForStmt:
			// Mutants of a loop's condition could only be noticed by a timeout, so loops are not changed.
			return true
		case *ast.CaseClause:
			m.clause(n)
		case *ast.BinaryExpr:
			if n.Op == token.LAND || n.Op == token.LOR {
				n.X, n.Y = m.condition(n.X), m.condition(n.Y)
			}
		case *ast.CallExpr:
			// Calls that condition has created are not rewritten again.
			if id, ok := n.Fun.(*ast.Ident); ok && id.Name == "mutantCompare" {
				return false
			}
		}
		return true
	})
}

// clause rewrites the conditions of a case of a switch without a value.
func (m *mutator) clause(clause *ast.CaseClause) {
	for i, expression := range clause.List {
		if logical(expression) {
			clause.List[i] = m.condition(expression)
		}
	}
}

// logical reports whether an expression is boolean by its form alone.
func logical(expression ast.Expr) bool {
	switch e := expression.(type) {
	case *ast.BinaryExpr:
		return boolean(e.Op)
	case *ast.UnaryExpr:
		return e.Op == token.NOT
	case *ast.ParenExpr:
		return logical(e.X)
	}
	return false
}

// boolean reports whether the result of an operator is boolean.
func boolean(op token.Token) bool {
	switch op {
	case token.LAND, token.LOR, token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ:
		return true
	}
	return false
}

// condition returns the replacement of a condition: a call whose result depends on the active mutant.
func (m *mutator) condition(expression ast.Expr) ast.Expr {
	if call, ok := expression.(*ast.CallExpr); ok {
		if id, ok := call.Fun.(*ast.Ident); ok && id.Name == "mutantCondition" {
			return expression
		}
	}
	text, position := m.text(expression), m.set.Position(expression.Pos())
	first := m.add(text, position, "true")
	m.add(text, position, "false")
	return call("mutantCondition", first, m.compare(expression, text, position))
}

// compare returns the replacement of a comparison of order, or the expression itself if it is not one.
func (m *mutator) compare(expression ast.Expr, text string, position token.Position) ast.Expr {
	e, ok := expression.(*ast.BinaryExpr)
	if !ok {
		return expression
	}
	strict, less := e.Op == token.LSS || e.Op == token.GTR, e.Op == token.LSS || e.Op == token.LEQ
	if !strict && e.Op != token.LEQ && e.Op != token.GEQ {
		return expression
	}
	number := m.add(text, position, "off by one")
	return call("mutantCompare", number, e.X, e.Y, boolLiteral(strict), boolLiteral(less))
}

func (m *mutator) add(text string, position token.Position, change string) int {
	m.mutants = append(m.mutants, mutant{number: m.next, pkg: m.pkg, function: m.function, condition: text, change: change, position: position})
	m.next++
	return m.next - 1
}

// text returns an expression on one line.
func (m *mutator) text(expression ast.Expr) string {
	var text bytes.Buffer
	if err := format.Node(&text, m.set, expression); err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(text.String()), " ")
}

func call(function string, number int, arguments ...ast.Expr) ast.Expr {
	first := &ast.BasicLit{Kind: token.INT, Value: fmt.Sprint(number)}
	return &ast.CallExpr{Fun: ast.NewIdent(function), Args: append([]ast.Expr{first}, arguments...)}
}

func boolLiteral(value bool) ast.Expr { return ast.NewIdent(fmt.Sprint(value)) }
