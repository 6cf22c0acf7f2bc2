package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/version"
)

const repository = "../.."

func file(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// supported returns the row with the given ID.
func supported(t *testing.T, id string) component {
	t.Helper()
	versions, err := read(filepath.Join(repository, "docs", "reference"))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(versions.Components, func(c component) bool { return c.ID == id })
	if i < 0 {
		t.Fatalf("support.yaml does not contain %s", id)
	}
	return versions.Components[i]
}

// found returns the first group of a match.
func found(t *testing.T, pattern, text string) string {
	t.Helper()
	match := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if match == nil {
		t.Fatalf("%s does not match", pattern)
	}
	return match[1]
}

func TestSupport_PageIsCurrent(t *testing.T) {
	versions, err := read(filepath.Join(repository, "docs", "reference"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(versions.page(), file(t, "docs/reference/supported-versions.md")); diff != "" {
		t.Errorf("docs/reference/supported-versions.md is out of date; run make generate (-want +got):\n%s", diff)
	}
	for _, c := range versions.Components {
		least := version.MustParseGeneric(c.Required)
		for _, tested := range c.Tested {
			if version.MustParseGeneric(tested).LessThan(least) {
				t.Errorf("%s %s is tested, but %s is required", c.Name, tested, c.Required)
			}
		}
		if len(c.Tested) == 0 {
			t.Errorf("no version of %s is tested", c.Name)
		}
	}
}

// TestSupport_ContainsVersionsOfSuites checks that the versions that the repository pins for the suites are those that the
// page calls tested.
func TestSupport_ContainsVersionsOfSuites(t *testing.T) {
	kubernetes := found(t, `(?m)^\tk8s\.io/kubernetes v(\S+)$`, file(t, "controlplane/go.mod"))
	for _, id := range []string{"control", "target"} {
		if diff := cmp.Diff([]string{kubernetes}, supported(t, id).Tested); diff != "" {
			t.Errorf("%s (-controlplane/go.mod +support.yaml):\n%s", id, diff)
		}
	}
	core := strings.Fields(strings.ReplaceAll(found(t, `(?m)^CAPI_VERSIONS := (.*)$`, file(t, "Makefile")), "v", ""))
	if diff := cmp.Diff(core, supported(t, "cluster-api").Tested); diff != "" {
		t.Errorf("Cluster API (-Makefile +support.yaml):\n%s", diff)
	}
	kernel := found(t, `(?m)^series=.linux-image-(\d+\.\d+)\.`, file(t, "hack/guest.sh"))
	if diff := cmp.Diff([]string{kernel}, supported(t, "guest").Tested); diff != "" {
		t.Errorf("the guest's kernel (-hack/guest.sh +support.yaml):\n%s", diff)
	}
}

// TestSupport_ThisHostIsSupported checks the software of the host with which the suites run.
func TestSupport_ThisHostIsSupported(t *testing.T) {
	for id, command := range map[string][]string{"linux": {"uname", "-r"}, "qemu": {"qemu-system-x86_64", "--version"}} {
		t.Run(id, func(t *testing.T) {
			if _, err := exec.LookPath(command[0]); err != nil {
				t.Skipf("%s is not installed: %v", command[0], err)
			}
			out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).Output()
			if err != nil {
				t.Fatal(err)
			}
			runs, row := found(t, `(\d+\.\d+)`, string(out)), supported(t, id)
			if version.MustParseGeneric(runs).LessThan(version.MustParseGeneric(row.Required)) {
				t.Errorf("the suites run with %s %s, but %s is required", row.Name, runs, row.Required)
			}
		})
	}
}
