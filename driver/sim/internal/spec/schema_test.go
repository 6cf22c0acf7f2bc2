package spec

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestProviderSpec_MatchesSchema checks that the schema, from which the reference and the schemas for editors are
// generated, has the fields and the choices that the driver accepts.
func TestProviderSpec_MatchesSchema(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "providerspec.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	schema := apiextensionsv1.JSONSchemaProps{}
	if err := yaml.UnmarshalStrict(text, &schema); err != nil {
		t.Fatal(err)
	}
	want := slices.Sorted(slices.Values(append(fieldNames(), "apiVersion", "kind")))
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(schema.Properties))); diff != "" {
		t.Errorf("fields (-driver +schema):\n%s", diff)
	}
	for name, field := range schema.Properties {
		for _, choice := range field.Enum {
			if err := parsed(name, string(choice.Raw)); err != nil {
				t.Errorf("a value of the schema is invalid: %v", err)
			}
		}
		if choices := len(field.Enum); choices > 0 && parsed(name, `"other"`) == nil {
			t.Errorf("%s has %d choices in the schema, but accepts others", name, choices)
		}
	}
}

// parsed returns the error of a provider specification with one field.
func parsed(name, value string) error {
	_, err := Parse(&v1alpha1.MachineClass{ProviderSpec: runtime.RawExtension{Raw: []byte(`{"` + name + `":` + value + `}`)}})
	return err
}
