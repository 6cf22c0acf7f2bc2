// Package modules checks that programs outside this repository can import the modules that it publishes, as if
// they were tagged: without a replace directive, a workspace or a checkout.
package modules

import (
	"archive/zip"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/repository"
	"github.com/millwright-dev/millwright/test/support/tier"
)

const (
	ours = "github.com/millwright-dev/millwright/"
	// version is the version that is released.
	version = "v0.1.0"
)

// published are the directories of the modules that a release tags.
var published = []string{".", "api", "client", "compat/mcm"}

// TestClients_CanBeImported checks that the packages that users of the clients import are available.
func TestClients_CanBeImported(t *testing.T) {
	tier.All(t)
	found := dependencies(t, "client/clientset/versioned/fake", "client/informers/externalversions", "client/applyconfiguration/machine/v1alpha1")
	for _, want := range []string{ours + "api/machine/v1alpha1", ours + "client/listers/machine/v1alpha1", "k8s.io/client-go/rest"} {
		if !slices.Contains(found, want) {
			t.Errorf("the clients do not bring %s", want)
		}
	}
}

// TestAPI_HasNoClientDependencies checks that a module that imports only the types, such as a driver, does not depend on a
// client.
func TestAPI_HasNoClientDependencies(t *testing.T) {
	tier.All(t)
	found := dependencies(t, "api/machine/v1alpha1", "api/infrastructure/v1alpha1", "api/vm/v1alpha1")
	if !slices.Contains(found, "k8s.io/apimachinery/pkg/apis/meta/v1") {
		t.Error("the types do not even bring those of Kubernetes: the list is not one of imports")
	}
	for _, path := range found {
		for _, heavy := range []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime", ours + "client", ours + "internal"} {
			if path == heavy || strings.HasPrefix(path, heavy+"/") {
				t.Errorf("the types bring %s", path)
			}
		}
	}
}

// dependencies lists all packages that a new module depends on that requires our module and imports the given
// packages.
func dependencies(t *testing.T, imports ...string) []string {
	t.Helper()
	if testing.Short() {
		t.Skip("unpacks modules of Kubernetes")
	}
	t.Parallel()
	user := t.TempDir()
	environment := proxy(t)
	source := "package user\n"
	for _, path := range imports {
		source += "\nimport _ \"" + ours + path + "\"\n"
	}
	write(t, filepath.Join(user, "user.go"), source)
	run := func(arguments ...string) string {
		command := exec.CommandContext(t.Context(), "go", arguments...)
		command.Dir, command.Env = user, environment
		var problems strings.Builder
		command.Stderr = &problems
		out, err := command.Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s", command, err, problems.String())
		}
		return string(out)
	}
	run("mod", "init", "example.org/user")
	module, _, _ := strings.Cut(imports[0], "/")
	run("get", ours+module+"@latest")
	found := strings.Fields(run("list", "-deps", "."))
	if text := read(t, filepath.Join(user, "go.mod")); strings.Contains(text, "replace") {
		t.Errorf("go.mod has a replace:\n%s", text)
	}
	return found
}

// proxy creates a module proxy, a tree of files, from the checkout. It returns the environment in which the go
// command uses the proxy, then the modules fetched by builds of the checkout, and only then other proxies.
func proxy(t *testing.T) []string {
	t.Helper()
	root, err := env.Sources()
	if err != nil {
		t.Fatal(err)
	}
	tree := t.TempDir()
	release := tag(t, root)
	for _, module := range published {
		publish(t, release, filepath.Join(root, module), path.Join(ours, module), filepath.Join(tree, ours, module, "@v"))
	}
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		t.Fatal(err)
	}
	fetched, others, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	downloads := filepath.Join(fetched, "cache", "download")
	return append(os.Environ(),
		"GOPROXY=file://"+filepath.ToSlash(tree)+",file://"+filepath.ToSlash(downloads)+","+others,
		"GOMODCACHE="+t.TempDir(), "GOSUMDB=off", "GONOPROXY=none", "GOFLAGS=-mod=mod -modcacherw -trimpath", "CGO_ENABLED=0", "GOWORK=off", "GOTOOLCHAIN=local")
}

// tag returns a directory with the go.mod of each module as in a release.
func tag(t *testing.T, root string) string {
	t.Helper()
	release := t.TempDir()
	for _, module := range published {
		write(t, filepath.Join(release, module, "go.mod"), read(t, filepath.Join(root, module, "go.mod")))
	}
	rewrite(t, root, release)
	return release
}

// rewrite makes the modules in a directory require our modules at the released version.
func rewrite(t *testing.T, root, location string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), filepath.Join(root, "hack", "modules.sh"), version, location).CombinedOutput(); err != nil {
		t.Fatalf("hack/modules.sh: %v\n%s", err, out)
	}
}

// copied is a copy of a module of this repository that requires our modules at the released version, without a
// replace directive.
type copied struct {
	*testing.T
	directory   string
	environment []string // with the proxy that serves them
}

func copyModule(t *testing.T, path string) copied {
	t.Helper()
	root, err := env.Sources()
	if err != nil {
		t.Fatal(err)
	}
	c := copied{T: t, directory: t.TempDir()}
	if err := os.CopyFS(c.directory, os.DirFS(filepath.Join(root, path))); err != nil {
		t.Fatal(err)
	}
	rewrite(t, root, c.directory)
	c.environment = proxy(t)
	for _, replaced := range []string{strings.TrimSuffix(ours, "/"), ours + "api", ours + "client"} {
		c.run("mod", "edit", "-dropreplace="+replaced)
	}
	return c
}

// run runs the go command in the module.
func (c copied) run(arguments ...string) {
	c.Helper()
	command := exec.CommandContext(c.Context(), "go", arguments...)
	command.Dir, command.Env = c.directory, c.environment
	if out, err := command.CombinedOutput(); err != nil {
		c.Fatalf("%v: %v\n%s", command, err, out)
	}
}

// mod returns the go.mod file.
func (c copied) mod() string {
	c.Helper()
	return read(c.T, filepath.Join(c.directory, "go.mod"))
}

// TestRelease_ModulesRequireSameVersion checks that the modules require each other at the released version, that nothing else changes, and
// that a version that Go would not accept is rejected.
func TestRelease_ModulesRequireSameVersion(t *testing.T) {
	tier.All(t)
	root, err := env.Sources()
	if err != nil {
		t.Fatal(err)
	}
	release := tag(t, root)
	for module, want := range map[string][]string{".": {"api", "client"}, "api": nil, "client": {"api"}, "compat/mcm": {"api"}} {
		before, after := read(t, filepath.Join(root, module, "go.mod")), read(t, filepath.Join(release, module, "go.mod"))
		for _, required := range want {
			if !strings.Contains(after, "\t"+ours+required+" "+version+"\n") {
				t.Errorf("%s does not require %s in %s:\n%s", module, required, version, after)
			}
		}
		if strings.Count(before, "\n") != strings.Count(after, "\n") || len(want) == 0 && before != after {
			t.Errorf("more of %s is changed:\n%s", module, after)
		}
	}
	for _, nonsense := range []string{"0.1.0", "v1", "latest", "v0.1.0+dirty"} {
		if out, err := exec.CommandContext(t.Context(), filepath.Join(root, "hack", "modules.sh"), nonsense, release).CombinedOutput(); err == nil {
			t.Errorf("%s is taken as a version: %s", nonsense, out)
		}
	}
}

// publish writes the files of the released version of a module, as a proxy serves them.
func publish(t *testing.T, release, from, module, to string) {
	t.Helper()
	requirements := read(t, filepath.Join(release, strings.TrimPrefix(module, strings.TrimSuffix(ours, "/")), "go.mod"))
	write(t, filepath.Join(to, "list"), version+"\n")
	write(t, filepath.Join(to, version+".info"), `{"Version":"`+version+`"}`)
	write(t, filepath.Join(to, version+".mod"), requirements)
	file, err := os.Create(filepath.Join(to, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	archive := zip.NewWriter(file)
	for _, path := range filesOf(t, from) {
		name, err := filepath.Rel(from, path)
		if err != nil {
			t.Fatal(err)
		}
		in, err := archive.Create(module + "@" + version + "/" + filepath.ToSlash(name))
		if err != nil {
			t.Fatal(err)
		}
		text := requirements
		if name != "go.mod" {
			text = read(t, path)
		}
		if _, err := io.WriteString(in, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
}

// filesOf returns the files of the module in a directory, without those of nested modules.
func filesOf(t *testing.T, location string) []string {
	t.Helper()
	files := repository.Files(t, location)
	var others []string
	for _, path := range files {
		if of := filepath.Dir(path); filepath.Base(path) == "go.mod" && of != location {
			others = append(others, of+string(filepath.Separator))
		}
	}
	return slices.DeleteFunc(files, func(path string) bool {
		return slices.ContainsFunc(others, func(other string) bool { return strings.HasPrefix(path, other) })
	})
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
