package chart

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"
)

// TestSchemas_AcceptExamples validates each example with the schemas for editors, which config/schemas has by group,
// kind and version.
func TestSchemas_AcceptExamples(t *testing.T) {
	t.Parallel()
	found := 0
	err := filepath.WalkDir(place(t, "examples"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			known, err := validate(t, document)
			if err != nil {
				t.Errorf("%s: %v", path, err)
			}
			if known {
				found++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 20 {
		t.Errorf("found only %d objects", found)
	}
}

// TestSchemas_RejectMistakes checks that an editor reports mistakes at their place.
func TestSchemas_RejectMistakes(t *testing.T) {
	t.Parallel()
	const class = "apiVersion: machine.sapcloud.io/v1alpha1\nkind: MachineClass\n"
	for name, tc := range map[string]struct{ document, want string }{
		"misspelled field":           {"apiVersion: machine.sapcloud.io/v1alpha1\nkind: MachineDeployment\nspec: {template: {}, replica: 1}", "at '/spec': additional properties 'replica' not allowed"},
		"text as number":             {"apiVersion: machine.sapcloud.io/v1alpha1\nkind: MachineDeployment\nspec: {template: {}, replicas: one}", "at '/spec/replicas': got string, want integer"},
		"unknown choice":             {"apiVersion: vm.metropolis.monogon.dev/v1alpha1\nkind: VirtualMachine\nspec: {cpus: 1, memory: 1Gi, mode: Stop}", "at '/spec/mode': value must be one of"},
		"field of the driver sim":    {class + "provider: sim\nproviderSpec: {joinDelya: 1s}", "at '/providerSpec': additional properties 'joinDelya' not allowed"},
		"duration of the driver sim": {class + "provider: sim\nproviderSpec: {joinDelay: 1 second}", "at '/providerSpec/joinDelay'"},
		"size of the driver vm":      {class + "provider: vm\nproviderSpec: {vmPool: vms, tags: {}, size: huge}", "at '/providerSpec/size': value must be one of"},
		"no pool of the driver vm":   {class + "provider: vm\nproviderSpec: {tags: {}}", "at '/providerSpec': missing property 'vmPool'"},
		"specification of MillwrightMachine": {
			"apiVersion: infrastructure.millwright.dev/v1alpha1\nkind: MillwrightMachine\nspec: {driver: sim, providerSpec: {join: maybe}}", "at '/spec/providerSpec/join': value must be one of",
		},
		"specification of MillwrightMachineTemplate": {
			"apiVersion: infrastructure.millwright.dev/v1alpha1\nkind: MillwrightMachineTemplate\nspec: {template: {spec: {driver: sim, providerSpec: {join: maybe}}}}",
			"at '/spec/template/spec/providerSpec/join': value must be one of",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if known, err := validate(t, tc.document); !known || err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	if _, err := validate(t, class+"provider: other\nproviderSpec: {anything: 1}"); err != nil {
		t.Errorf("the specification of another driver is rejected: %v", err)
	}
}

// validate validates a document if there is a schema of its kind, and reports whether there is.
func validate(t *testing.T, document string) (known bool, err error) {
	t.Helper()
	var named struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal([]byte(document), &named); err != nil {
		return false, err
	}
	group, version, _ := strings.Cut(named.APIVersion, "/")
	file := place(t, fmt.Sprintf("config/schemas/%s/%s_%s.json", group, strings.ToLower(named.Kind), version))
	if _, err := os.Stat(file); err != nil {
		return false, nil
	}
	schema, err := jsonschema.NewCompiler().Compile(file)
	if err != nil {
		return true, err
	}
	asJSON, err := yaml.YAMLToJSON([]byte(document))
	if err != nil {
		return true, err
	}
	var value any
	if err := json.Unmarshal(asJSON, &value); err != nil {
		return true, err
	}
	return true, schema.Validate(value)
}
