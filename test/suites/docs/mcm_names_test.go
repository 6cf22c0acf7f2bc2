package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/repository"
)

// ofAPI maps the kinds of names that the page lists to the constants of our API with all names of that kind: a prefix
// of their names, or their type.
var ofAPI = map[string]*regexp.Regexp{
	"Finalizers":                       regexp.MustCompile(`^Finalizer`),
	"Leases":                           regexp.MustCompile(`^Lease`),
	"Labels":                           regexp.MustCompile(`^(NodeLabelKey|LabelKey\w+|DefaultMachineDeploymentUniqueLabelKey)$`),
	"Annotations":                      regexp.MustCompile(`^AnnotationKey`),
	"Taints":                           regexp.MustCompile(`^TaintKey`),
	"Phases of Machines":               regexp.MustCompile(`^MachinePhase$`),
	"Types of lastOperation":           regexp.MustCompile(`^MachineOperationType$`),
	"States of lastOperation":          regexp.MustCompile(`^MachineState$`),
	"Conditions of MachineDeployments": regexp.MustCompile(`^MachineDeploymentConditionType$`),
	"Conditions of MachineSets":        regexp.MustCompile(`^MachineSetConditionType$`),
	"Conditions of Nodes":              regexp.MustCompile(`^NodeConditionType$`),
	"Reasons on MachineDeployments":    regexp.MustCompile(`^DeploymentReason`),
	"Reasons on MachineSets":           regexp.MustCompile(`^MachineSetReason`),
	"Values of node.machine.sapcloud.io/update-result": regexp.MustCompile(`^LabelValueNodeUpdate`),
}

// ofCode are the directories whose literals contain the names of the other kinds.
var ofCode = map[string][]string{
	"Reasons on Nodes": {"api/machine/v1alpha1"},
	"Values of node.machine.sapcloud.io/preserve":    {"internal/lifecycle/preservation"},
	"Next steps in the description of lastOperation": {"internal/reconcile/messages"},
	"Events of machineset-controller":                {"internal/controllers/machineset"},
	"Events of machine-controller-manager":           {"internal/controllers/machineset", "internal/controllers/machinedeployment", "internal/pool/rollout", "api/machine/v1alpha1"},
}

var codeSpan = regexp.MustCompile("`([^`]+)`")

// TestDocs_NamesOfMCM checks the page about the switch from MCM: the names that it claims to be the same as in MCM are
// names of MCM and of Millwright, it claims all of MCM's names, and it or another page mentions all other names.
func TestDocs_NamesOfMCM(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	page := read(t, filepath.Join(root, "docs", "get-started", "from-mcm.md"))
	claimed, recorded := claimedNames(t, page), recordedNames(t)
	if diff := cmp.Diff(recorded, claimed); diff != "" {
		t.Errorf("MCM's names (-) and those on the page (+):\n%s", diff)
	}
	constants := apiConstants(t, root, "api/machine/v1alpha1")
	all := allPages(t, root)
	for kind, names := range claimed {
		pattern, isAPI := ofAPI[kind]
		if !isAPI {
			has := literals(t, root, ofCode[kind]...)
			for _, name := range names {
				if !has[name] {
					t.Errorf("%s: Millwright does not have %q", kind, name)
				}
			}
			continue
		}
		ours := constants(pattern)
		for _, name := range names {
			if !slices.Contains(ours, name) {
				t.Errorf("%s: the API of Millwright does not have %q", kind, name)
			}
		}
		for _, name := range ours {
			if !slices.Contains(names, name) && !strings.Contains(all, "`"+name) && !strings.Contains(all, " "+name) {
				t.Errorf("%s: no page mentions %q, which MCM does not have", kind, name)
			}
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// claimedNames returns the names in the page's table, by kind.
func claimedNames(t *testing.T, page string) map[string][]string {
	t.Helper()
	_, table, found := strings.Cut(page, "| Kind | The same names as in MCM |\n|---|---|\n")
	table, _, ended := strings.Cut(table, "\n\n")
	if !found || !ended {
		t.Fatal("the page has no table of names")
	}
	claimed := map[string][]string{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		kind := strings.ReplaceAll(strings.TrimSpace(cells[1]), "`", "")
		for _, name := range codeSpan.FindAllStringSubmatch(cells[2], -1) {
			claimed[kind] = append(claimed[kind], name[1])
		}
		slices.Sort(claimed[kind])
	}
	return claimed
}

// recordedNames returns the names of MCM, by kind.
func recordedNames(t *testing.T) map[string][]string {
	t.Helper()
	recorded := map[string][]string{}
	for line := range strings.Lines(read(t, filepath.Join("testdata", "mcm-names.tsv"))) {
		if kind, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); ok {
			recorded[kind] = append(recorded[kind], name)
		}
	}
	for _, names := range recorded {
		slices.Sort(names)
	}
	return recorded
}

// TestDocs_NamesAreInReference checks that the reference lists each constant of our APIs that users see.
func TestDocs_NamesAreInReference(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	reference := filepath.Join(root, "docs", "reference")
	keys := read(t, filepath.Join(reference, "labels-and-annotations.md"))
	reasons := read(t, filepath.Join(reference, "events-and-conditions.md"))
	for _, kind := range []struct {
		page, name, directory string
		constants             *regexp.Regexp
		atLeast               int
	}{
		{keys, "labels-and-annotations.md", "api/machine/v1alpha1", regexp.MustCompile(`^(Finalizer|Lease|NodeLabelKey|LabelKey|AnnotationKey|TaintKey)`), 50},
		{keys, "labels-and-annotations.md", "api/machine/legacy", regexp.MustCompile(`^Annotation`), 3},
		{keys, "labels-and-annotations.md", "api/vm/v1alpha1", regexp.MustCompile(`^(Finalizer|Label|Annotation|HostKey)`), 15},
		{keys, "labels-and-annotations.md", "api/infrastructure/v1alpha1", regexp.MustCompile(`Finalizer$|^Annotation`), 8},
		{reasons, "events-and-conditions.md", "api/machine/v1alpha1", regexp.MustCompile(`^(EventAnnotation|Cause|Step|DeploymentReason|MachineSetReason|MachineDeploymentConditionType|MachineSetConditionType)`), 60},
		{reasons, "events-and-conditions.md", "api/vm/v1alpha1", regexp.MustCompile(`^(Condition|Reason)[A-Z]`), 20},
		{reasons, "events-and-conditions.md", "api/infrastructure/v1alpha1", regexp.MustCompile(`^(Condition|Reason)[A-Z]`), 40},
	} {
		names := apiConstants(t, root, kind.directory)(kind.constants)
		if len(names) < kind.atLeast {
			t.Errorf("%s has %d names: %q", kind.directory, len(names), names)
		}
		for _, name := range names {
			if !strings.Contains(kind.page, "`"+name+"`") {
				t.Errorf("docs/reference/%s does not list %s of %s", kind.name, name, kind.directory)
			}
		}
	}
}

// allPages returns the text of all pages for users.
func allPages(t *testing.T, root string) string {
	t.Helper()
	var all strings.Builder
	for _, path := range userPages(t, root) {
		all.WriteString(read(t, path))
	}
	return all.String()
}

// apiConstants returns a function that returns the values of the string constants of an API whose name or type matches.
func apiConstants(t *testing.T, root, directory string) func(*regexp.Regexp) []string {
	t.Helper()
	values := map[string]map[string]bool{} // by name and by type
	add := func(key, value string) {
		if values[key] == nil {
			values[key] = map[string]bool{}
		}
		values[key][value] = true
	}
	for _, file := range parsed(t, root, directory) {
		ast.Inspect(file, func(node ast.Node) bool {
			spec, ok := node.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, name := range spec.Names {
				if value, isText := textOf(spec, i); isText {
					add(name.Name, value)
					add(typeOf(spec), value)
				}
			}
			return false
		})
	}
	return func(pattern *regexp.Regexp) []string {
		found := map[string]bool{}
		for key, of := range values {
			if pattern.MatchString(key) {
				maps.Copy(found, of)
			}
		}
		return slices.Sorted(maps.Keys(found))
	}
}

func textOf(spec *ast.ValueSpec, i int) (string, bool) {
	if i >= len(spec.Values) {
		return "", false
	}
	literal, ok := spec.Values[i].(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(literal.Value)
	return text, err == nil
}

// typeOf returns the name of the type of constants without its package. It is empty if they have none.
func typeOf(spec *ast.ValueSpec) string {
	switch kind := spec.Type.(type) {
	case *ast.Ident:
		return kind.Name
	case *ast.SelectorExpr:
		return kind.Sel.Name
	}
	return ""
}

// literals returns the string literals in the Go files of directories.
func literals(t *testing.T, root string, directories ...string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, directory := range directories {
		for _, file := range parsed(t, root, directory) {
			ast.Inspect(file, func(node ast.Node) bool {
				if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
					if text, err := strconv.Unquote(literal.Value); err == nil {
						found[text] = true
					}
				}
				return true
			})
		}
	}
	return found
}

// parsed returns the Go files of a directory without its tests.
func parsed(t *testing.T, root, directory string) (files []*ast.File) {
	t.Helper()
	for _, path := range repository.GoFiles(t, filepath.Join(root, directory)) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}
