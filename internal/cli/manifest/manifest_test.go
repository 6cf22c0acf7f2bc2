package manifest

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestManifest_NodeTemplateIsStrict checks that nothing in the MachineClass of a file is silently ignored.
func TestManifest_NodeTemplateIsStrict(t *testing.T) {
	if want, got := reflect.TypeFor[v1alpha1.NodeTemplate]().NumField(), reflect.TypeFor[nodeTemplate]().NumField(); want != got {
		t.Errorf("%d fields of a node template are known here, of %d", got, want)
	}
	for template, wantText := range map[string]string{
		"null": "", "{}": "",
		"{capacity: {cpu: 2, gpu: 0, memory: 1.5Gi}, virtualCapacity: {x: 1}, instanceType: i, region: r, zone: z, architecture: a}": "",
		"{capacities: {}}":                          `"capacities"`,
		"{capacity: {cpu: 1e1.5}}":                  "nodeTemplate.capacity[cpu]",
		"{virtualCapacity: {x: \"1e-2147483648\"}}": "nodeTemplate.virtualCapacity[x]",
		"{zone: [1]}":                               "zone",
	} {
		path := filepath.Join(t.TempDir(), "class.yaml")
		text := "apiVersion: machine.sapcloud.io/v1alpha1\nkind: MachineClass\nmetadata: {name: c}\nproviderSpec: {}\nnodeTemplate: " + template
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadClass(path, "")
		if (err == nil) != (wantText == "") || err != nil && !strings.Contains(err.Error(), wantText) {
			t.Errorf("%s: %v, want %q", template, err, wantText)
		}
	}
}

// TestManifest_ReadsList checks that the items of a List, which "kubectl get -o yaml" writes, are read as documents are.
func TestManifest_ReadsList(t *testing.T) {
	const list = `
apiVersion: v1
kind: List
metadata: {resourceVersion: ""}
items:
- apiVersion: v1
  kind: Secret
  metadata: {name: s}
  stringData: {userData: words}
- apiVersion: machine.sapcloud.io/v1alpha1
  kind: MachineClass
  metadata: {name: c}
  providerSpec: {size: small}
---
kind: ConfigMap
`
	path := filepath.Join(t.TempDir(), "list.yaml")
	if err := os.WriteFile(path, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	class, err := ReadClass(path, "")
	if err != nil || class.current == nil || class.current.Name != "c" || string(class.current.ProviderSpec.Raw) != `{"size":"small"}` {
		t.Errorf("got class %+v, %v", class.current, err)
	}
	secret, err := ReadSecrets(path)
	if err != nil || string(secret.Data["userData"]) != "words" {
		t.Errorf("got Secret %v, %v", secret, err)
	}
	if err := os.WriteFile(path, []byte("kind: List\nitems: secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSecrets(path); err == nil || strings.Contains(err.Error(), "secret ") || !strings.Contains(err.Error(), "not valid YAML") {
		t.Errorf("got %v for items that are not a list", err)
	}
}
