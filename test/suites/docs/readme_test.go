package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
)

// maxLength is the maximum length of the README in words, including its commands and the output of explain.
const maxLength = 500

// TestReadme_IsShort also checks that it names what continuous integration runs.
func TestReadme_IsShort(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	text := read(t, filepath.Join(root, "README.md"))
	if length := len(strings.Fields(text)); length > maxLength {
		t.Errorf("the README has %d words, at most %d are allowed", length, maxLength)
	}
	var targets []string
	for _, found := range regexp.MustCompile(`(?m)^(?:exec )?make ([a-z-]+)$`).FindAllStringSubmatch(read(t, filepath.Join(root, ".ci", "run")), -1) {
		targets = append(targets, found[1])
	}
	if command := "`make " + strings.Join(targets, " ") + "`"; len(targets) == 0 || !strings.Contains(text, command) {
		t.Errorf("the README does not name %s, which .ci/run runs", command)
	}
}

// TestReadme_TargetsExist checks that the Makefile has the targets that the README names.
func TestReadme_TargetsExist(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	makefile := read(t, filepath.Join(root, "Makefile"))
	found := regexp.MustCompile("(?m)(?:^|`)make ([a-z -]+)").FindAllStringSubmatch(read(t, filepath.Join(root, "README.md")), -1)
	if len(found) < 3 {
		t.Fatalf("the README names the targets %q", found)
	}
	for _, targets := range found {
		for target := range strings.FieldsSeq(targets[1]) {
			if !strings.Contains(makefile, "\n.PHONY: "+target+"\n") {
				t.Errorf("the README names the target %s, which does not exist", target)
			}
		}
	}
}

// TestReadme_ExplainOutputIsReal compares the output with a golden file of explain.
func TestReadme_ExplainOutputIsReal(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	golden := read(t, filepath.Join(root, "internal", "observe", "explain", "testdata", "class-missing.txt"))
	block := "```console\n$ millwright explain machine pool-a-x7k2p -n machines\n" + strings.TrimSpace(golden) + "\n```\n"
	if !strings.Contains(read(t, filepath.Join(root, "README.md")), block) {
		t.Errorf("the README does not contain\n%s", block)
	}
}
