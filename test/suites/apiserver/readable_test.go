package apiserver

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/test/support/env"
)

// TestCRD_StoredObjectsAreReadable checks that the API server rejects every object that our types cannot represent, and
// names the field. One such object would keep a manager from reading any object of its kind.
func TestCRD_StoredObjectsAreReadable(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	dry := client.NewDryRunClient(e.Client)
	accepted, refused := 0, 0
	for _, crd := range definitions(t) {
		t.Run(crd.Spec.Names.Kind, func(t *testing.T) {
			schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
			for _, h := range hostile(schema, nil) {
				object := &unstructured.Unstructured{Object: map[string]any{"spec": complete(schema, h.object)}}
				object.SetAPIVersion(v1alpha1.SchemeGroupVersion.String())
				object.SetKind(crd.Spec.Names.Kind)
				object.SetName("hostile")
				object.SetNamespace(e.Namespace)
				err := dry.Create(t.Context(), object)
				switch {
				case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
					refused++
					continue
				case err != nil:
					t.Errorf("spec%s = %v: %v", h.path, h.value, err)
					continue
				}
				accepted++
				if quirk(h) {
					continue
				}
				if err := readAs(e, object); err != nil {
					t.Errorf("spec%s = %v is stored, and cannot be read: %v", h.path, h.value, err)
				}
			}
		})
	}
	if accepted < 100 || refused < 500 {
		t.Errorf("%d values were accepted and %d refused: that is too few to have tried every field", accepted, refused)
	}
}

// quirk reports lists for a date and time, which the API server accepts in any CRD. No tool writes that by
// mistake.
func quirk(h hostileValue) bool {
	_, list := h.value.([]any)
	return list && strings.HasSuffix(h.path, "timeAdded]")
}

// readAs reads an object as our clients do.
func readAs(e *env.Env, object *unstructured.Unstructured) error {
	raw, err := json.Marshal(object)
	if err != nil {
		return err
	}
	typed, err := e.Client.Scheme().New(object.GroupVersionKind())
	if err != nil {
		return err
	}
	return utiljson.Unmarshal(raw, typed)
}

// definitions returns the CRDs of our group that have a spec.
func definitions(t *testing.T) []*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	var found []*apiextensionsv1.CustomResourceDefinition
	files, err := config.Files.ReadDir("crd")
	must(t, err)
	for _, file := range files {
		raw, err := config.Files.ReadFile("crd/" + file.Name())
		must(t, err)
		crd := &apiextensionsv1.CustomResourceDefinition{}
		must(t, yaml.Unmarshal(raw, crd))
		if _, ok := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]; ok && crd.Spec.Group == v1alpha1.SchemeGroupVersion.Group {
			found = append(found, crd)
		}
	}
	if len(found) != 3 {
		t.Fatalf("found %d CRDs", len(found))
	}
	return found
}

// hostileValue is a specification with one value that is likely to be invalid.
type hostileValue struct {
	path   string
	value  any
	object any
}

// wrong are values of every type, including some out of range for Go's types.
func wrong() []any {
	return []any{
		nil, true, int64(-1), int64(3000000000), 1e19, 1.5, "", "10", "-5m", "1h30m", "9999999h", "2020-13-45",
		[]any{"x"}, []any{map[string]any{}},
		map[string]any{"a": "b"}, map[string]any{"a": int64(1)}, map[string]any{"a": []any{}},
		map[string]any{"labels": map[string]any{"a": int64(1)}}, map[string]any{"annotations": map[string]any{"a": true}},
		map[string]any{"finalizers": "a"}, map[string]any{"name": int64(1)},
	}
}

// hostile returns invalid values for each field below a schema.
func hostile(schema apiextensionsv1.JSONSchemaProps, path []string) []hostileValue {
	var all []hostileValue
	if len(path) > 0 {
		for _, value := range wrong() {
			all = append(all, hostileValue{path: fmt.Sprint(path), value: value, object: within(path, value)})
		}
	}
	for name, property := range schema.Properties {
		all = append(all, hostile(property, append(path[:len(path):len(path)], name))...)
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		all = append(all, hostile(*schema.Items.Schema, append(path[:len(path):len(path)], "[]"))...)
	}
	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		all = append(all, hostile(*schema.AdditionalProperties.Schema, append(path[:len(path):len(path)], "key"))...)
	}
	return all
}

// within puts a value at the path, where "[]" is the only item of a list.
func within(path []string, value any) any {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == "[]" {
			value = []any{value}
		} else {
			value = map[string]any{path[i]: value}
		}
	}
	return value
}

// complete adds to a value what its schema requires.
func complete(schema apiextensionsv1.JSONSchemaProps, value any) any {
	switch value := value.(type) {
	case map[string]any:
		for _, name := range schema.Required {
			if _, given := value[name]; !given {
				value[name] = zero(schema.Properties[name])
			}
		}
		for name := range value {
			if property, known := schema.Properties[name]; known {
				value[name] = complete(property, value[name])
			}
		}
	case []any:
		for i := range value {
			if schema.Items != nil && schema.Items.Schema != nil {
				value[i] = complete(*schema.Items.Schema, value[i])
			}
		}
	}
	return value
}

// zero returns a value of the type that a schema requires.
func zero(schema apiextensionsv1.JSONSchemaProps) any {
	switch schema.Type {
	case "object":
		return complete(schema, map[string]any{})
	case "array":
		return []any{}
	case "integer":
		return int64(0)
	}
	return ""
}
