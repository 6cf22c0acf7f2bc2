package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// support is a file that is added to each package with guards that can be switched off when the test runs.
const support = `package %s

import "os"

var guardOffName = os.Getenv("GUARD_OFF")

func guardOff(name string) bool { return name == guardOffName }

func guardPick[T any](name string, on, off T) T {
	if guardOff(name) {
		return off
	}
	return on
}
`

// supportName is the name of that file.
const supportName = "zz_guard_off.go"

// switchable returns a text that behaves like Old unless the environment variable GUARD_OFF is name, and like New
// then. It reports false if the edit has another form than the header of an if statement, a case, whole statements, an
// expression, or a field of a composite literal. Expressions and fields are evaluated in both forms each time, so they must
// not have effects. The result may not compile, for example if a case belongs to a switch over values.
func (g guard) switchable(source, name string) (string, bool) {
	if filepath.Ext(g.File) != ".go" {
		return "", false
	}
	off := fmt.Sprintf("guardOff(%q)", name)
	either := func(on, replaced string) string {
		return fmt.Sprintf("(!%s && (%s) || %s && (%s))", off, on, off, replaced)
	}
	if start, on, end, ok := condition(g.Old); ok {
		if newStart, replaced, newEnd, ok := condition(g.New); ok && start == newStart && end == newEnd {
			return start + either(on, replaced) + end, true
		}
		return "", false
	}
	switch {
	case wholeLines(source, g.Old) && statements(g.Old) && statements(g.New):
		return fmt.Sprintf("if %s {\n%s\n} else {\n%s\n}", off, g.New, g.Old), true
	case expression(g.Old) && expression(g.New):
		return fmt.Sprintf("guardPick(%q, %s, %s)", name, g.Old, g.New), true
	}
	return g.switchableField(name)
}

// switchableField is switchable for a field of a composite literal.
func (g guard) switchableField(name string) (string, bool) {
	old, replaced := field.FindStringSubmatch(g.Old), field.FindStringSubmatch(g.New)
	if old == nil || replaced == nil || old[1] != replaced[1] || !expression(old[2]) || !expression(replaced[2]) {
		return "", false
	}
	return fmt.Sprintf("%sguardPick(%q, %s, %s)", old[1], name, old[2], replaced[2]), true
}

// field matches the key and the value of a field in a composite literal.
var field = regexp.MustCompile(`^("?\w+"?:\s+)([^\n]*[^,\n])$`)

// condition splits the header of an if statement, or a case of a switch without a value, before and after its
// condition. Further lines belong to the end.
func condition(text string) (start, condition, end string, ok bool) {
	header, rest, further := strings.Cut(text, "\n")
	for _, form := range []struct{ start, end string }{{"if ", " {"}, {"} else if ", " {"}, {"case ", ":"}} {
		condition, found := strings.CutPrefix(header, form.start)
		condition, closed := strings.CutSuffix(condition, form.end)
		if !found || !closed {
			continue
		}
		start, end = form.start, form.end
		if i := strings.LastIndex(condition, "; "); i >= 0 {
			start, condition = start+condition[:i+2], condition[i+2:]
		}
		if further {
			end += "\n" + rest
		}
		return start, condition, end, expression(condition)
	}
	return "", "", "", false
}

func expression(text string) bool {
	_, err := parser.ParseExpr(text)
	return err == nil
}

// wholeLines reports whether the text begins and ends with a line of the source.
func wholeLines(source, text string) bool {
	before, after, found := strings.Cut(source, text)
	line := before[strings.LastIndex(before, "\n")+1:]
	return found && strings.TrimSpace(line) == "" && (after == "" || after[0] == '\n')
}

// statements reports whether the text consists of statements that declare nothing. Empty text does.
func statements(text string) bool {
	file, err := parser.ParseFile(token.NewFileSet(), "", "package p\nfunc _() {\n"+text+"\n}", parser.SkipObjectResolution)
	if err != nil || len(file.Decls) != 1 {
		return false
	}
	body := file.Decls[0].(*ast.FuncDecl).Body
	return !slices.ContainsFunc(body.List, func(s ast.Stmt) bool {
		assignment, ok := s.(*ast.AssignStmt)
		_, declares := s.(*ast.DeclStmt)
		return declares || ok && assignment.Tok == token.DEFINE
	})
}

// overlay writes the overlay of the go command with all mutants, and the edited files, to a directory. If plain is set,
// it applies the edits as they are. Otherwise they can be switched.
func overlay(root, directory string, mutants []*mutant, plain bool) (string, error) {
	edited := map[string]string{}
	for _, m := range mutants {
		if err := m.apply(root, edited, plain); err != nil {
			return "", err
		}
	}
	if !plain {
		if err := addSupport(root, edited); err != nil {
			return "", err
		}
	}
	replace := map[string]string{}
	for path, text := range edited {
		original, err := filepath.Abs(filepath.Join(root, path))
		if err != nil {
			return "", err
		}
		replace[original] = filepath.Join(directory, fmt.Sprintf("%d-%s", len(replace), filepath.Base(path)))
		if err := os.WriteFile(replace[original], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(directory, "overlay.json")
	return path, os.WriteFile(path, text, 0o600)
}

// apply adds the edit of a mutant to the texts of edited files.
func (m *mutant) apply(root string, edited map[string]string, plain bool) error {
	source, found := edited[m.File]
	if !found {
		text, err := os.ReadFile(filepath.Join(root, m.File))
		if err != nil {
			return err
		}
		source = string(text)
	}
	if count := strings.Count(source, m.Old); count != 1 {
		return fmt.Errorf("%s: the text %q occurs %d times, want once; edits of one file must not overlap", m.File, m.Old, count)
	}
	replacement := m.New
	if !plain {
		replacement, _ = m.switchable(source, m.name)
	}
	edited[m.File] = strings.Replace(source, m.Old, replacement, 1)
	return nil
}

// addSupport adds the functions that switch guards off to the package of each edited file.
func addSupport(root string, edited map[string]string) error {
	for path := range edited {
		if filepath.Base(path) == supportName {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, parser.PackageClauseOnly)
		if err != nil {
			return err
		}
		edited[filepath.Join(filepath.Dir(path), supportName)] = fmt.Sprintf(support, file.Name.Name)
	}
	return nil
}
