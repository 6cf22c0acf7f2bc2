package driver_test

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/fake"
)

// located is a driver that reports a fixed location.
type located struct {
	driver.Driver
	location string
}

func (l located) Unwrap() driver.Driver { return l.Driver }

func (l located) LocateMachine(context.Context, *driver.LocateMachineRequest) (*driver.LocateMachineResponse, error) {
	return &driver.LocateMachineResponse{Location: l.location}, nil
}

// plain is a driver that wraps another one without changing it.
type plain struct{ driver.Driver }

func (p plain) Unwrap() driver.Driver { return p.Driver }

func TestAs(t *testing.T) {
	vms := fake.New(fake.Config{})
	for name, tc := range map[string]struct {
		driver driver.Driver
		// locator and updater are the expected abilities.
		locator, updater any
	}{
		"the driver itself":              {vms, vms, vms},
		"a wrapped driver":               {plain{vms}, vms, vms},
		"the outermost of several":       {plain{located{located{vms, "inner"}, "outer"}}, located{located{vms, "inner"}, "outer"}, vms},
		"hidden by a wrapper":            {plain{struct{ driver.Driver }{vms}}, nil, nil},
		"a driver without the abilities": {struct{ driver.Driver }{}, nil, nil},
		"a wrapper without a driver":     {plain{}, nil, nil},
		"no driver":                      {nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			locator, locates := driver.As[driver.Locator](tc.driver)
			updater, updates := driver.As[driver.Updater](tc.driver)
			if any(locator) != tc.locator || any(updater) != tc.updater || locates != (tc.locator != nil) || updates != (tc.updater != nil) {
				t.Errorf("found %v, %v; want %v, %v", locator, updater, tc.locator, tc.updater)
			}
		})
	}
}

// TestDriver_DecoratorsImplementUnwrap: a decorator without Unwrap hides the abilities of the driver that it wraps.
func TestDriver_DecoratorsImplementUnwrap(t *testing.T) {
	decorators := 0
	for dir, files := range sources(t, "..") {
		has := methodsOf(files)
		for name, fields := range structsOf(files) {
			embeds, wraps := false, false
			for _, field := range fields {
				if isDriver(field.Type) {
					wraps = true
					embeds = embeds || len(field.Names) == 0
				}
			}
			if !wraps || !embeds && !slices.Contains(has[name], "CreateMachine") {
				continue
			}
			decorators++
			if !slices.Contains(has[name], "Unwrap") {
				t.Errorf("%s: %s wraps a driver but has no Unwrap method", dir, name)
			}
		}
	}
	if decorators < 2 {
		t.Errorf("found %d decorators, want at least 2; check how this test looks for them", decorators)
	}
}

// TestDriver_DecoratorsImplementAllMethods: if the decorator lacks a method, driver.As finds it in the wrapped driver,
// where the call has no deadline and Secrets are not redacted.
func TestDriver_DecoratorsImplementAllMethods(t *testing.T) {
	has := methodsOf(sources(t, "instrument")["instrument"])["Driver"]
	calls := 0
	for _, file := range sources(t, ".")["."] {
		ast.Inspect(file, func(n ast.Node) bool {
			declared, ok := n.(*ast.InterfaceType)
			if !ok {
				return true
			}
			for _, method := range declared.Methods.List {
				signature, ok := method.Type.(*ast.FuncType)
				if !ok || len(signature.Params.List) == 0 {
					continue
				}
				calls++
				if !slices.Contains(has, method.Names[0].Name) {
					t.Errorf("instrument.Driver has no method %s", method.Names[0].Name)
				}
			}
			return true
		})
	}
	if calls < 11 {
		t.Errorf("found %d driver methods, want at least 11; check how this test looks for them", calls)
	}
}

// sources parses the Go files below a directory, except tests, and groups them by directory.
func sources(t *testing.T, root string) map[string][]*ast.File {
	t.Helper()
	parsed := map[string][]*ast.File{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		parsed[filepath.Dir(path)] = append(parsed[filepath.Dir(path)], file)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// methodsOf returns the names of the methods in a package, by receiver type.
func methodsOf(files []*ast.File) map[string][]string {
	all := map[string][]string{}
	for _, file := range files {
		for _, declared := range file.Decls {
			method, ok := declared.(*ast.FuncDecl)
			if !ok || method.Recv == nil {
				continue
			}
			of := method.Recv.List[0].Type
			if pointer, ok := of.(*ast.StarExpr); ok {
				of = pointer.X
			}
			if of, ok := of.(*ast.Ident); ok {
				all[of.Name] = append(all[of.Name], method.Name.Name)
			}
		}
	}
	return all
}

// structsOf returns the fields of the structs in a package, by struct name.
func structsOf(files []*ast.File) map[string][]*ast.Field {
	all := map[string][]*ast.Field{}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if declared, ok := spec.Type.(*ast.StructType); ok {
					all[spec.Name.Name] = declared.Fields.List
				}
			}
			return true
		})
	}
	return all
}

// isDriver reports whether a type is driver.Driver.
func isDriver(of ast.Expr) bool {
	selected, ok := of.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	from, ok := selected.X.(*ast.Ident)
	return ok && from.Name == "driver" && selected.Sel.Name == "Driver"
}
