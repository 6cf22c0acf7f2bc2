package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
)

// sections are the directories of the documentation, and the headings below which docs/README.md lists their pages.
var sections = map[string]string{
	"get-started":  "Get started",
	"concepts":     "Concepts",
	"tasks":        "Tasks",
	"drivers":      "Drivers",
	"reference":    "Reference",
	"contributing": "Contributing",
	"design":       "Design notes",
}

// userPages returns the paths of the pages for users, without the generated references.
func userPages(t *testing.T, root string) []string {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages = slices.DeleteFunc(pages, func(page string) bool {
		section := filepath.Base(filepath.Dir(page))
		return section == "contributing" || section == "design"
	})
	if len(pages) < 50 {
		t.Fatalf("%d pages", len(pages))
	}
	return pages
}

// TestDocs_IndexListsEveryPage checks that each page is in a directory of a section, and that the index links to it
// once, below the heading of that section.
func TestDocs_IndexListsEveryPage(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	docs := filepath.Join(root, "docs")
	flat, err := filepath.Glob(filepath.Join(docs, "*.md"))
	if err != nil || len(flat) != 1 {
		t.Errorf("docs contains %q, want only README.md, %v", flat, err)
	}
	listed := map[string][]string{} // headings by page
	title := ""
	for _, found := range regexp.MustCompile(`(?m)^## (.+)$|\]\(([a-z-]+/[^)#]+\.md)\)`).FindAllStringSubmatch(read(t, filepath.Join(docs, "README.md")), -1) {
		if found[1] != "" {
			title = found[1]
			continue
		}
		listed[found[2]] = append(listed[found[2]], title)
	}
	pages, err := filepath.Glob(filepath.Join(docs, "*", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		name, err := filepath.Rel(docs, page)
		if err != nil {
			t.Fatal(err)
		}
		want, known := sections[filepath.Dir(name)]
		if !known {
			t.Errorf("%s is in no section", name)
		}
		if got := listed[filepath.ToSlash(name)]; !slices.Equal(got, []string{want}) {
			t.Errorf("docs/README.md lists %s below %q, want once below %q", name, got, want)
		}
	}
}

// TestDocs_UserPagesNameNoTest checks that evidence is on pages for contributors only.
func TestDocs_UserPagesNameNoTest(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range userPages(t, root) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range testName.FindAllString(fenced.ReplaceAllString(string(text), ""), -1) {
			if name != "TestConformance" { // the test that users write for their driver
				t.Errorf("%s names %s: move it to docs/contributing", page, name)
			}
		}
	}
}
