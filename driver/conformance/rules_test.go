package conformance_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/driver/conformance"
)

// mcmSentences is the number of normative sentences in each section of MCM's document on machine error codes: those
// that require or permit something of a provider. Sentences that bind only MCM are not counted.
var mcmSentences = map[string]int{
	"ProviderSpec": 1, "Identifying Cluster Machines": 1, "Error Scheme": 1, "Machine Provider Interface": 2, "CreateMachine": 14, "DeleteMachine": 13,
	"GetMachineStatus": 10, "ListMachines": 9, "GetVolumeIDs": 6, "GenerateMachineClassForMigration": 6,
	"Supervised Lifecycle Management": 4, "Environment Variables": 4, "Logging": 4, "Available Services": 3, "Linux Capabilities": 1,
	"Cgroup Isolation": 1, "Resource Requirements": 1,
}

func TestRules_AreComplete(t *testing.T) {
	for i, rule := range conformance.Rules() {
		if rule.Number != i+1 {
			t.Fatalf("rule %d has the number %d; numbers have no gaps and never change", i+1, rule.Number)
		}
		if rule.Title == "" || rule.Level == "" || len(rule.Places) == 0 {
			t.Errorf("%s lacks a title, a level or a place", rule.ID())
		}
		if rule.Checked() == (rule.Unchecked != "") {
			t.Errorf("%s must have either a check or a reason for having none", rule.Name())
		}
	}
}

// A rule covers each item of the comments in package driver and each normative sentence of MCM's document, and no
// rule names another place.
func TestRules_CoverContract(t *testing.T) {
	sentences := map[string]bool{}
	for section, n := range mcmSentences {
		for i := range n {
			sentences[fmt.Sprintf("MCM %s %d", section, i+1)] = true
		}
	}
	for place := range itemsOf(t) {
		sentences[place] = true
	}
	if len(sentences) < 120 {
		t.Fatalf("found only %d sentences; check whether the form of the comments has changed", len(sentences))
	}
	named := map[string]bool{}
	for _, rule := range conformance.Rules() {
		for _, place := range rule.Places {
			named[place] = true
			if !sentences[place] {
				t.Errorf("%s names place %q, which does not exist", rule.ID(), place)
			}
		}
		if rule.Departs != "" && !sentences[rule.Departs] {
			t.Errorf("%s departs from %q, which does not exist", rule.ID(), rule.Departs)
		}
	}
	for _, place := range slices.Sorted(maps.Keys(sentences)) {
		if !named[place] {
			t.Errorf("no rule covers %q", place)
		}
	}
}

// itemsOf returns the places in package driver: "driver SECTION N" for the items of the package comment and of the
// comments of methods, "driver METHOD Codes", and the names of some types.
func itemsOf(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("../*.go")
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]bool{"driver CreateMachineResponse": true, "driver SeparatesAPIGroups": true, "driver Logging 1": true, "driver UpdateMachineResponse": true}
	for _, name := range files {
		file, err := parser.ParseFile(gotoken.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		section := ""
		for line := range strings.Lines(file.Doc.Text()) {
			if heading, ok := strings.CutPrefix(line, "# "); ok {
				section = strings.TrimSpace(heading)
			}
			addItem(places, section, line)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			method, ok := node.(*ast.Field)
			if _, is := fieldType(method).(*ast.FuncType); !ok || !is || len(method.Names) == 0 {
				return true
			}
			for line := range strings.Lines(method.Doc.Text()) {
				addItem(places, method.Names[0].Name, line)
			}
			return true
		})
	}
	return places
}

func fieldType(field *ast.Field) ast.Expr {
	if field == nil {
		return nil
	}
	return field.Type
}

// addItem adds the place of a line that starts an item or the list of codes.
func addItem(places map[string]bool, section, line string) {
	switch {
	case strings.HasPrefix(line, "  - "):
		for i := 1; ; i++ {
			if place := fmt.Sprintf("driver %s %d", section, i); !places[place] {
				places[place] = true
				return
			}
		}
	case strings.HasPrefix(line, "Codes: "):
		places["driver "+section+" Codes"] = true
	}
}

// sources returns the places of a rule, and the one from which it departs.
func sources(rule conformance.Rule) []string {
	if rule.Departs == "" {
		return rule.Places
	}
	return append(slices.Clone(rule.Places), "departs from "+rule.Departs)
}

// docs/drivers/conformance.md lists all rules.
func TestRules_AreInDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/drivers/conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	var have, want []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| R") {
			have = append(have, strings.TrimSpace(line))
		}
	}
	for _, rule := range conformance.Rules() {
		check := "yes"
		if rule.Unchecked != "" {
			check = "no: " + rule.Unchecked
		}
		want = append(want, fmt.Sprintf("| %s | %s | %s | %s | %s |", rule.ID(), rule.Level, rule.Title, strings.Join(sources(rule), "; "), check))
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("docs/drivers/conformance.md (-want +have):\n%s\nThe rows are:\n%s", diff, strings.Join(want, "\n"))
	}
}
