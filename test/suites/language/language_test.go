package language

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/test/support/repository"
)

const root = "../../.."

func TestRepository_UsesTheTermsOfContributing(t *testing.T) {
	contributing, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	terms, err := termsOf(string(contributing), "## How we write")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range repository.Files(t, root) {
		name, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		if !isRead(name) {
			continue
		}
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		messages, err := terms.check(name, string(source))
		if err != nil {
			t.Fatal(err)
		}
		for _, message := range messages {
			t.Error(message)
		}
	}
}

const page = `# Page

## How we write

| Write | Not |
|---|---|
| directory | folder |
| immediately | at once |
| standard term (in names) | hope |

## Next
`

func TestTerms_Check(t *testing.T) {
	terms, err := termsOf(page, "## How we write")
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		path, source string
		want         []string
	}{
		"comment": {"p.go", "package p\n\n// F opens folders at\n// once.\nfunc F() {}\n", []string{
			`p.go:3: "folder": write directory`, `p.go:3: "at once": write immediately`,
		}},
		"code in a comment": {"p.go", "package p\n\n// F calls `at once`:\n//\n//\tat once\nfunc F() {}\n", nil},
		"string":            {"p.go", "package p\n\nconst F = \"no folder\"\n", []string{`p.go:3: "folder": write directory`}},
		"key":               {"p.go", "package p\n\nconst F = \"folder\"\n", nil},
		"names": {"p.go", "package p\n\nfunc newFolder(hope int) {\n\tfor hopeLeft := range hope {\n\t}\n}\n", []string{
			`p.go:3: "folder": write directory`, `p.go:3: "hope": write standard term`, `p.go:4: "hope": write standard term`,
		}},
		"page":                       {"p.md", "We hope.\n\nStarts at\nonce, in a `folder`.\n\n```\nfolder\n```\n", []string{`p.md:3: "at once": write immediately`}},
		"other file, allowed phrase": {"p.yaml", "# all at once\n# folder\n", []string{`p.yaml:2: "folder": write directory`}},
		"term in two lines of a protocol": {"p.proto", "message A {\n\n  // Ready at\n  // once.\n  bool b = 1;\n}\n", []string{
			`p.proto:3: "at once": write immediately`,
		}},
		"text and a field of the page": {"p.tsx", "const text = <p>Starts at once</p>;\nconst sum = pool.wanted + folder;\n", []string{
			`p.tsx:1: "at once": write immediately`, `p.tsx:2: "folder": write directory`,
		}},
		"telegram": {"p.go", "package p\n\n// F is the path.\n// Empty: none. If it ends with 0: none.\nconst F = \"\"\n", []string{
			`p.go:4: "Empty:": write a full sentence, such as "If empty, …"`,
		}},
		"telegram in a protocol": {"p.proto", "// The size. 0:\n// unknown.\n// Absent: 30 s.\n", []string{
			`p.proto:1: "0:": write a full sentence, such as "If empty, …"`,
			`p.proto:3: "Absent:": write a full sentence, such as "If empty, …"`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := terms.check(test.path, test.source)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
		})
	}
}
