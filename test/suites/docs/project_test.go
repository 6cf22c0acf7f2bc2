package docs

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/repository"
)

// hook has the fields that all versions of pre-commit have with the same values, unlike stages.
type hook struct {
	ID            string   `json:"id"`
	Name          string   `json:"name"`
	Language      string   `json:"language"`
	Entry         string   `json:"entry"`
	Types         []string `json:"types"`
	PassFilenames *bool    `json:"pass_filenames"`
}

// TestProject_HooksRun checks that pre-commit of Debian 12 can run the hooks: it reads their fields, and what they run
// exists. It runs the hook that gets files.
func TestProject_HooksRun(t *testing.T) {
	t.Parallel()
	root, err := env.Root()
	must(t, err)
	var config struct {
		Repos []struct {
			Repo  string `json:"repo"`
			Hooks []hook `json:"hooks"`
		} `json:"repos"`
	}
	must(t, yaml.UnmarshalStrict([]byte(read(t, filepath.Join(root, ".pre-commit-config.yaml"))), &config))
	if len(config.Repos) != 1 || config.Repos[0].Repo != "local" || len(config.Repos[0].Hooks) == 0 {
		t.Fatalf("the repositories of hooks are %v, want a local one", config.Repos)
	}
	makefile := read(t, filepath.Join(root, "Makefile"))
	for _, hook := range config.Repos[0].Hooks {
		target, isTarget := strings.CutPrefix(hook.Entry, "make ")
		switch {
		case hook.Language != "system":
			t.Errorf("%s needs the language %s", hook.ID, hook.Language)
		case hook.PassFilenames == nil || *hook.PassFilenames:
			checkHook(t, hook.Entry)
		case isTarget:
			if !strings.Contains(makefile, "\n.PHONY: "+target+"\n") {
				t.Errorf("%s runs the target %s, which does not exist", hook.ID, target)
			}
		default:
			if info, err := os.Stat(filepath.Join(root, hook.Entry)); err != nil || info.Mode()&0o100 == 0 {
				t.Errorf("%s runs %s, which is not a program: %v", hook.ID, hook.Entry, err)
			}
		}
	}
}

// checkHook checks that a hook accepts a formatted Go file, and neither an unformatted nor an invalid one.
func checkHook(t *testing.T, entry string) {
	t.Helper()
	for text, accepted := range map[string]bool{"package a\n": true, "package  a\n": false, "package\n": false} {
		file := filepath.Join(t.TempDir(), "a.go")
		must(t, os.WriteFile(file, []byte(text), 0o600))
		out, err := exec.CommandContext(t.Context(), "sh", "-c", entry+` "$@"`, "sh", file).CombinedOutput()
		if (err == nil) != accepted || (len(out) == 0) != accepted {
			t.Errorf("with the file %q, the hook %s returned %v and printed %s", text, entry, err, out)
		}
	}
}

// TestProject_DevContainerFits checks that the image has the version of Go in go.mod, and that the targets that it runs exist.
func TestProject_DevContainerFits(t *testing.T) {
	t.Parallel()
	root, err := env.Root()
	must(t, err)
	var config struct{ Image, PostCreateCommand string }
	must(t, json.Unmarshal([]byte(read(t, filepath.Join(root, ".devcontainer", "devcontainer.json"))), &config))
	_, version, _ := strings.Cut(config.Image, "/golang:")
	version, system, _ := strings.Cut(version, "-")
	if system != "bookworm" || version == "" || !strings.Contains(read(t, filepath.Join(root, "go.mod")), "\ngo "+version+".") {
		t.Errorf("the image is %s, want one with the version of go.mod and Debian 12", config.Image)
	}
	makefile := read(t, filepath.Join(root, "Makefile"))
	_, targets, _ := strings.Cut(config.PostCreateCommand, "&& make ")
	if targets == "" {
		t.Errorf("it does not run make: %s", config.PostCreateCommand)
	}
	for target := range strings.FieldsSeq(targets) {
		if !strings.Contains(makefile, "\n.PHONY: "+target+"\n") {
			t.Errorf("it runs the target %s, which does not exist", target)
		}
	}
}

// TestProject_RenovateIgnoresVendoredFiles checks that Renovate does not update copies of packages of others.
func TestProject_RenovateIgnoresVendoredFiles(t *testing.T) {
	t.Parallel()
	root, err := env.Root()
	must(t, err)
	var config struct{ IgnorePaths []string }
	must(t, json.Unmarshal([]byte(read(t, filepath.Join(root, "renovate.json"))), &config))
	found := 0
	for _, file := range repository.Files(t, root) {
		name, err := filepath.Rel(root, file)
		must(t, err)
		if filepath.Base(name) != "package.json" {
			continue
		}
		found++
		if !slices.ContainsFunc(config.IgnorePaths, func(path string) bool { return strings.HasPrefix(name, strings.TrimSuffix(path, "**")) }) {
			t.Errorf("renovate.json does not ignore %s", name)
		}
	}
	if found == 0 {
		t.Error("no package was found")
	}
}
