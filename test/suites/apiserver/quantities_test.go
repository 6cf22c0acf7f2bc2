package apiserver

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/test/support/env"
)

// Quantities that match the pattern of controller-gen. Go clients cannot decode some of them, and then can read
// no object of the kind; others take hours of computation.
var absurd = []string{
	"1e1.5", "1e.5", "1e99999999999999999999", "1e2147483648", "1e2147483647", "1e-2147483647", "1e-100000", "1E+1000",
	strings.Repeat("9", 100_000), "1." + strings.Repeat("0", 100_000) + "1", "." + strings.Repeat("1", 31) + "Gi",
}

var sensible = []string{"0", "1", "4Gi", "1.5Gi", "100m", "-1", "+1", ".5", "1.", "1e3", "1E-3", "12E", "9223372036854775807", "1n", "1Ei"}

// TestCRD_ValidatesQuantities checks each quantity field of each CRD.
func TestCRD_ValidatesQuantities(t *testing.T) {
	fields := 0
	policy, err := config.Files.ReadFile("policy/machines.yaml")
	must(t, err)
	err = fs.WalkDir(config.Files, "crd", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		raw, err := config.Files.ReadFile(path)
		if err != nil {
			return err
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(raw, crd); err != nil {
			return err
		}
		for _, version := range crd.Spec.Versions {
			fields += quantities(t, string(policy), crd.Name, *version.Schema.OpenAPIV3Schema)
		}
		return nil
	})
	if err != nil || fields < 10 {
		t.Errorf("%d fields with quantities, %v", fields, err)
	}
	for _, text := range sensible {
		if _, err := resource.ParseQuantity(text); err != nil {
			t.Errorf("%s is not a quantity: %v", text, err)
		}
	}
	for _, text := range append(absurd, sensible...) {
		template, raw := v1alpha1.NodeTemplate{}, fmt.Sprintf(`{"capacity":{"cpu":%q}}`, text)
		must(t, json.Unmarshal([]byte(raw), &template))
		if _, read := template.Capacity["cpu"]; read != slices.Contains(sensible, text) {
			t.Errorf("clients read %.40s: %t", text, read)
		}
	}
}

// quantities checks all quantities below a schema, and returns the number of fields with one.
func quantities(t *testing.T, policy, path string, schema apiextensionsv1.JSONSchemaProps) int {
	t.Helper()
	fields := 0
	if schema.XIntOrString && strings.Contains(schema.Pattern, "KMGTPE") {
		fields++
		if !strings.Contains(policy, "r'"+schema.Pattern+"'") {
			t.Errorf("the policy for MCM's CRDs has another pattern than %s", path)
		}
		pattern, err := regexp.Compile(schema.Pattern)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, text := range absurd {
			if pattern.MatchString(text) {
				t.Errorf("%s lets %.40s pass", path, text)
			}
		}
		for _, text := range sensible {
			if !pattern.MatchString(text) {
				t.Errorf("%s refuses %s", path, text)
			}
		}
	}
	for name, child := range schema.Properties {
		fields += quantities(t, policy, path+"."+name, child)
	}
	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		fields += quantities(t, policy, path+"[*]", *schema.AdditionalProperties.Schema)
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		fields += quantities(t, policy, path+"[]", *schema.Items.Schema)
	}
	return fields
}

// TestCRD_RejectsExtremeQuantities checks that the API server stores no such quantity, regardless of the client.
func TestCRD_RejectsExtremeQuantities(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	for _, text := range absurd {
		for kind, object := range map[string]map[string]any{
			"VirtualMachine": {
				"apiVersion": "vm.metropolis.monogon.dev/v1alpha1",
				"spec":       map[string]any{"resources": map[string]any{"limits": map[string]any{"memory": text}}},
			},
			"MachineClass": {
				"apiVersion": "machine.sapcloud.io/v1alpha1", "provider": "sim", "providerSpec": map[string]any{},
				"nodeTemplate": map[string]any{"capacity": map[string]any{"cpu": text}, "instanceType": "a", "region": "b", "zone": "c"},
			},
		} {
			object["kind"], object["metadata"] = kind, map[string]any{"name": "absurd", "namespace": e.Namespace}
			err := e.Client.Create(t.Context(), &unstructured.Unstructured{Object: object})
			if !apierrors.IsInvalid(err) || !strings.Contains(fmt.Sprint(err), "should match") {
				t.Errorf("%s with %.40s: %.300v", kind, text, err)
			}
		}
	}
}
