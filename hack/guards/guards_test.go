package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestTable_CoversThreatModel checks that each line of the threat model has an entry, that the texts which the
// edits replace are unique, and that the tests exist.
func TestTable_CoversThreatModel(t *testing.T) {
	root, table := repositoryTable(t)
	model, err := readModel(root)
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, s := range model {
		rows += len(s.Rows)
	}
	if rows < 200 {
		t.Errorf("%d rows: the form of the tables in %s has changed", rows, modelPath)
	}
	for _, problem := range differences(model, table) {
		t.Error(problem)
	}
	for _, s := range table {
		for _, r := range s.Rows {
			for _, problem := range r.problems(root) {
				t.Errorf("%s, %q: %s", s.Title, r.Attempt, problem)
			}
		}
	}
}

func TestPage_IsGenerated(t *testing.T) {
	root, table := repositoryTable(t)
	want, err := render(root, table)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, pagePath))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is outdated; run make generate: %s", pagePath, diff)
	}
}

func repositoryTable(t *testing.T) (root string, table []section) {
	t.Helper()
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	if table, err = readTable(root); err != nil {
		t.Fatal(err)
	}
	return root, table
}

func TestParseModel(t *testing.T) {
	const page = `# Threat model

| Identity | Permissions |
|---|---|
| A | B |

## Actors

### A guest

| Attempt | What prevents it |
|---|---|
| Read [files](x.md) | It is rejected. |
| Write | It is ignored. |

| Not prevented | Effect and remedy |
|---|---|
| Stop | None. |
`
	want := []section{{Title: "A guest", Rows: []row{{Attempt: "Read files"}, {Attempt: "Write"}}}}
	if diff := cmp.Diff(want, parseModel(page)); diff != "" {
		t.Error(diff)
	}
}

func TestDifferences(t *testing.T) {
	model := []section{{Title: "A", Rows: []row{{Attempt: "1"}, {Attempt: "2"}}}}
	table := []section{{Title: "A", Rows: []row{{Attempt: "1"}}}, {Title: "B", Rows: []row{{Attempt: "2"}}}}
	want := []string{tablePath + ` has no row "2" below "A"`, modelPath + ` has no row "2" below "B"`}
	if diff := cmp.Diff(want, differences(model, table)); diff != "" {
		t.Error(diff)
	}
}

func TestGuard_Switchable(t *testing.T) {
	const source = "package p\n\nfunc f(n int) int {\n\tif n, ok := g(n); !ok || n > 3 {\n\t\treturn 1\n\t}\n\tclean(n)\n\treturn min(n, 4)\n}\n"
	for name, test := range map[string]struct{ old, off, want string }{
		"condition": {
			"if n, ok := g(n); !ok || n > 3 {", "if n, ok := g(n); !ok {",
			`if n, ok := g(n); (!guardOff("1") && (!ok || n > 3) || guardOff("1") && (!ok)) {`,
		},
		"condition with context": {
			"if n, ok := g(n); !ok || n > 3 {\n\t\treturn 1", "if n, ok := g(n); !ok {\n\t\treturn 1",
			"if n, ok := g(n); (!guardOff(\"1\") && (!ok || n > 3) || guardOff(\"1\") && (!ok)) {\n\t\treturn 1",
		},
		"statement":                {"clean(n)", "", "if guardOff(\"1\") {\n\n} else {\nclean(n)\n}"},
		"field":                    {"Limit: 4", "Limit: 5", `Limit: guardPick("1", 4, 5)`},
		"other field":              {"Limit: 4", "Size: 5", ""},
		"expression":               {"min(n, 4)", "n", `guardPick("1", min(n, 4), n)`},
		"condition becomes a loop": {"if n, ok := g(n); !ok || n > 3 {", "for {", ""},
		"function":                 {"func f(n int) int {", "func f(n int) int {\n\treturn n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := guard{File: "p.go", Old: test.old, New: test.off}.switchable(source, "1")
			if got != test.want || ok != (test.want != "") {
				t.Errorf("got %q, %v, want %q", got, ok, test.want)
			}
		})
	}
}

// TestOptions_CheckPackage switches off the guards of a package in testdata.
func TestOptions_CheckPackage(t *testing.T) {
	tier.All(t)
	const file = "hack/guards/testdata/sample/sample.go"
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	of := func(old, off, test string) *mutant {
		return &mutant{guard: guard{File: file, Old: old, New: off, Test: test}, name: old}
	}
	mutants := []*mutant{
		of("if n > 10 {", "if false {", "TestClamp"),
		of("const smallest = 0", "const smallest = -100", "TestClamp"),
		of("if n > 1000 {", "if false {", "TestClamp"),
		of("return 1000", "return undefined", "TestClamp"),
		of("return smallest", "return n", "TestSkipped"),
		of("if n < smallest {", "if false {", "TestFails"),
		of("return 10", "return n", "TestGone"),
	}
	want := []string{
		"", "", "the test passes with the guard off", "the edit does not compile", "the test is skipped",
		"the test fails with the guard on", "the test does not exist",
	}
	o := options{root: root, only: regexp.MustCompile(""), timeout: time.Minute}
	if err := o.checkPackage(t.Context(), "hack/guards/testdata/sample", mutants); err != nil {
		t.Fatal(err)
	}
	for i, m := range mutants {
		if len(m.survived) < len(want[i]) || m.survived[:len(want[i])] != want[i] || (want[i] == "") != (m.survived == "") {
			t.Errorf("%s: got %q, want %q", m.Old, m.survived, want[i])
		}
	}
}
