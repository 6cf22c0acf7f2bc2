package vm_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/test/support/env"
)

// The driver accepts the classes in its documentation and in the examples.
func TestExamples_AreAccepted(t *testing.T) {
	found := map[string]int{}
	cluster := newAccepting(t)
	for path, manifest := range manifests(t) {
		for raw := range strings.SplitSeq(manifest, "\n---\n") {
			class := &v1alpha1.MachineClass{}
			if err := yaml.Unmarshal([]byte(raw), class); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if class.Kind != v1alpha1.MachineClassKind || class.Provider != "vm" {
				continue
			}
			found[path]++
			if err := cluster.create(t, class.ProviderSpec.Raw); !status.Is(err, codes.DataLoss) {
				t.Errorf("%s, class %s: %v", path, class.Name, err)
			}
		}
	}
	if found[document] != 1 || len(found) < 2 {
		t.Errorf("found classes only in %v", found)
	}
}

const document = "docs/drivers/vm.md"

// manifests returns the manifests in the documentation and in the examples, by path.
func manifests(t *testing.T) map[string]string {
	t.Helper()
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, document))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		all[document] += "\n---\n" + block[1]
	}
	err = filepath.WalkDir(filepath.Join(root, "examples"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		content, err := os.ReadFile(path)
		all[path] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
