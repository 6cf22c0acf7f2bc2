package release

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/test/support/env"
)

const (
	release  = "v0.1.0"
	image    = "registry.example.com:5000/team/millwright"
	provider = "infrastructure-millwright"
)

// place is a directory with a built release.
type place struct {
	t   *testing.T
	dir string
}

// newPlace builds a release, for a test that runs in parallel with others.
func newPlace(t *testing.T) *place {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: this test needs what make controlplane and make capi build")
	}
	t.Parallel()
	p := &place{t: t, dir: t.TempDir()}
	if out, err := p.release(release, image); err != nil {
		t.Fatalf("hack/clusterctl.sh: %v\n%s", err, out)
	}
	return p
}

// release runs the script, and returns its output.
func (p *place) release(version, image string, platforms ...string) (string, error) {
	p.t.Helper()
	binaries, err := env.Binaries()
	if err != nil {
		p.t.Fatal(err)
	}
	command := exec.CommandContext(p.t.Context(), filepath.Join(root(p.t), "hack", "clusterctl.sh"), append([]string{p.dir, version, image}, platforms...)...)
	command.Env = append(os.Environ(), "KUBECTL="+filepath.Join(binaries, "kubectl"))
	out, err := command.CombinedOutput()
	return string(out), err
}

// bills builds the release with the software bills of materials for this platform, and returns their directory.
func (p *place) bills() string {
	p.t.Helper()
	if out, err := p.release(release, image, "linux/"+runtime.GOARCH); err != nil {
		p.t.Fatalf("hack/clusterctl.sh: %v\n%s", err, out)
	}
	return filepath.Join(p.dir, "sbom", release)
}

// images builds the image of the release for this platform several times concurrently, and returns the
// directories of its layouts.
func (p *place) images(names ...string) []string {
	p.t.Helper()
	var dirs []string
	var group errgroup.Group
	for _, name := range names {
		dir := filepath.Join(p.dir, name)
		dirs = append(dirs, dir)
		group.Go(func() error {
			command := exec.CommandContext(p.t.Context(), filepath.Join(root(p.t), "hack", "image.sh"), dir, release, image)
			if out, err := command.CombinedOutput(); err != nil {
				return fmt.Errorf("hack/image.sh: %w\n%s", err, out)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		p.t.Fatal(err)
	}
	return dirs
}

// read reads a file of the release.
func (p *place) read(contract, name string) []byte {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, contract, provider, release, name))
	if err != nil {
		p.t.Fatal(err)
	}
	return text
}

// clusterctl runs clusterctl with the configuration for a contract, and with variables in its environment. It
// returns its standard output.
func (p *place) clusterctl(contract string, variables []string, args ...string) []byte {
	p.t.Helper()
	out, errors, err := p.tryClusterctl(filepath.Join(p.dir, contract, "clusterctl.yaml"), variables, args...)
	if err != nil {
		p.t.Fatalf("clusterctl %s: %v\n%s", strings.Join(args, " "), err, errors)
	}
	return out
}

func (p *place) tryClusterctl(config string, variables []string, args ...string) (stdout, stderr []byte, err error) {
	p.t.Helper()
	command := exec.CommandContext(p.t.Context(), coreFile(p.t, "clusterctl"), append([]string{"--config", config}, args...)...)
	// The environment is isolated, and no request goes to the internet.
	command.Env = append([]string{"HOME=" + p.dir, "XDG_CONFIG_HOME=" + p.dir, "CLUSTERCTL_DISABLE_VERSIONCHECK=true", "GOPROXY=off"}, variables...)
	var errors bytes.Buffer
	command.Stderr = &errors
	stdout, err = command.Output()
	return stdout, errors.Bytes(), err
}

// only returns the only object of a kind.
func only(t *testing.T, all []*unstructured.Unstructured, kind string) *unstructured.Unstructured {
	t.Helper()
	var found *unstructured.Unstructured
	for _, object := range all {
		if object.GetKind() != kind {
			continue
		}
		if found != nil {
			t.Fatalf("there is more than one %s", kind)
		}
		found = object
	}
	if found == nil {
		t.Fatalf("there is no %s", kind)
	}
	return found
}

// decode converts an unstructured object to a typed object.
func decode[T any](t *testing.T, object *unstructured.Unstructured) *T {
	t.Helper()
	text, err := yaml.Marshal(object.Object)
	if err != nil {
		t.Fatal(err)
	}
	typed := new(T)
	if err := yaml.UnmarshalStrict(text, typed); err != nil {
		t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
	}
	return typed
}
