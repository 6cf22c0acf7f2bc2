package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// legacyCRDs returns the CRDs of the kinds of classes from before MachineClass, by kind. The program does not
// contain them, because only clusters with such objects need them.
func legacyCRDs(t *testing.T) map[string]*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	names, err := filepath.Glob("crd/legacy/*.yaml")
	if err != nil || len(names) != 6 {
		t.Fatalf("got CRDs %q, error %v", names, err)
	}
	crds := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		parse(t, data, crd)
		crds[crd.Spec.Names.Kind] = crd
	}
	return crds
}

// TestLegacyCRD_HasFieldsOfMCM: the schemas have exactly the fields in MCM's documentation, and preserve unknown fields.
func TestLegacyCRD_HasFieldsOfMCM(t *testing.T) {
	data, err := os.ReadFile("testdata/legacy-class-fields.tsv")
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string]string{}, map[string]string{}
	for line := range strings.Lines(string(data)) {
		if columns := strings.Split(strings.TrimSpace(line), "\t"); !strings.HasPrefix(line, "#") {
			want[columns[0]+" "+columns[1]] = columns[2]
		}
	}
	for kind, crd := range legacyCRDs(t) {
		walk(schemaOf(crd), "", func(path string, schema *apiextensionsv1.JSONSchemaProps) {
			if !strings.HasPrefix(path, ".spec") {
				return
			}
			kept := schema.XPreserveUnknownFields != nil && *schema.XPreserveUnknownFields
			if kept != (schema.Type == "object" && schema.AdditionalProperties == nil) {
				t.Errorf("%s %s: unknown fields kept: %t", kind, path, kept)
			}
			if len(schema.Required) > 0 {
				t.Errorf("%s %s requires %v", kind, path, schema.Required)
			}
			got[kind+" "+path] = strings.TrimSuffix(typeOf(schema), "+unknown")
		})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields (-documented +ours):\n%s", diff)
	}
}

// TestLegacyCRD_HasColumnsOfMCM: kubectl shows the same columns as with MCM's CRDs.
func TestLegacyCRD_HasColumnsOfMCM(t *testing.T) {
	const age = "Age date .metadata.creationTimestamp"
	want := map[string][]string{
		"AWSMachineClass":       {"Machine Type string .spec.machineType", "AMI string .spec.ami", "Region string .spec.region 1", age},
		"AlicloudMachineClass":  {"Instance Type string .spec.instanceType", "Region string .spec.region 1", age},
		"AzureMachineClass":     {"VM Size string .spec.properties.hardwareProfile.vmSize", "Location string .spec.location 1", age},
		"GCPMachineClass":       {"Machine Type string .spec.machineType", "Region string .spec.region 1", age},
		"OpenStackMachineClass": {"Flavor string .spec.flavorName", "Image string .spec.imageName", "Region string .spec.region 1", age},
		"PacketMachineClass":    {age},
	}
	got := map[string][]string{}
	for kind, crd := range legacyCRDs(t) {
		shape := shapeOf(crd)
		got[kind] = shape.Columns
		if names := []string{strings.ToLower(kind) + "es", strings.ToLower(kind)}; !slices.Equal(shape.Names, names) || shape.Status || len(crd.Spec.Versions) != 1 {
			t.Errorf("%s: got %+v", kind, shape)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
}
