package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} (.+)$`)
	// noLetter matches what the anchor of a heading leaves out.
	noLetter = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	fenced   = regexp.MustCompile("(?ms)^```.*?^```$")
)

// written returns the text of all pages of the repository that people read.
func written(t *testing.T) map[string]string {
	t.Helper()
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "docs/reference/*/*.md", "examples/*.md", "config/*.md", "driver/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			pages[file] = string(text)
		}
	}
	if len(pages) < 40 {
		t.Fatalf("%d pages", len(pages))
	}
	return pages
}

// anchors returns the anchors of the headings of a page, as GitHub generates them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		plain := link.ReplaceAllString(match[1], "]")
		found[strings.ReplaceAll(noLetter.ReplaceAllString(strings.ToLower(plain), ""), " ", "-")] = true
	}
	return found
}

// TestDocs_LinksExist checks links to files, directories, and headings of pages.
func TestDocs_LinksExist(t *testing.T) {
	pages := written(t)
	for file, text := range pages {
		for _, match := range link.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(match[1], "#")
			target := file
			if path != "" {
				target = filepath.Join(filepath.Dir(file), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", file, match[1], err)
			} else if anchor != "" && !anchors(pages[target])[anchor] {
				t.Errorf("%s links to %s, and there is no such heading", file, match[1])
			}
		}
	}
}

// TestDocs_DesignNotesAreListed checks that every design note is listed, and has a unique number.
func TestDocs_DesignNotesAreListed(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	pages, named := written(t), map[string]string{}
	list := pages[filepath.Join(root, "docs", "README.md")]
	for file, text := range pages {
		if filepath.Base(filepath.Dir(file)) != "design" {
			continue
		}
		name := filepath.Base(file)
		number, _, _ := strings.Cut(name, "-")
		if !strings.HasPrefix(text, "# "+number+": ") {
			t.Errorf("the title of %s does not begin with its number", name)
		}
		if !strings.Contains(list, "](design/"+name+")") {
			t.Errorf("docs/README.md does not list %s", name)
		}
		if other, taken := named[number]; taken {
			t.Errorf("%s and %s have the same number", name, other)
		}
		named[number] = name
	}
}
