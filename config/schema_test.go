package config_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// ownFields are fields that our CRDs have and MCM's do not. A cluster with MCM's CRDs prunes them.
var ownFields = []string{
	"MachineDeployment .spec.excessReplicas",
	"MachineDeployment .spec.fallbackClasses",
	"MachineDeployment .spec.fallbackClasses[]",
	"MachineDeployment .spec.replacement",
	"MachineDeployment .spec.replacement.budgets",
	"MachineDeployment .spec.replacement.budgets[]",
	"MachineDeployment .spec.replacement.budgets[].max",
	"MachineDeployment .spec.replacement.budgets[].per",
	"MachineDeployment .spec.replacement.budgets[].within",
	"MachineDeployment .spec.replacement.zoneOutage",
	"MachineDeployment .status.excessReplicas",
	"MachineDeployment .status.selector",
	"MachineSet .status.selector",
	// Fields of nodes that Kubernetes has had since 1.37. MCM's API was generated for an earlier version.
	"Machine .spec.nodeTemplate.spec.podPreemptionPolicy",
	"Machine .spec.nodeTemplate.spec.podPreemptionPolicy.disableResizePreemption",
	"Machine .spec.nodeTemplate.spec.podPreemptionPolicy.disableResizePreemption[]",
	"MachineDeployment .spec.template.spec.nodeTemplate.spec.podPreemptionPolicy",
	"MachineDeployment .spec.template.spec.nodeTemplate.spec.podPreemptionPolicy.disableResizePreemption",
	"MachineDeployment .spec.template.spec.nodeTemplate.spec.podPreemptionPolicy.disableResizePreemption[]",
	"MachineSet .spec.template.spec.nodeTemplate.spec.podPreemptionPolicy",
	"MachineSet .spec.template.spec.nodeTemplate.spec.podPreemptionPolicy.disableResizePreemption",
	"MachineSet .spec.template.spec.nodeTemplate.spec.podPreemptionPolicy.disableResizePreemption[]",
}

// Our CRDs have every field of MCM's CRDs with the same type, and only a few others.
func TestCRD_HasFieldsOfMCM(t *testing.T) {
	want := readFieldTable(t)
	got := map[string]string{}
	for kind, crd := range crdsLikeMCM(t) {
		walk(schemaOf(crd), "", func(path string, schema *apiextensionsv1.JSONSchemaProps) {
			got[kind+" "+path] = typeOf(schema)
		})
	}
	for field, wantType := range want {
		if gotType := got[field]; gotType != wantType {
			t.Errorf("%s has type %q, want %q", field, gotType, wantType)
		}
	}
	for field := range got {
		if _, known := want[field]; !known && !slices.Contains(ownFields, field) {
			t.Errorf("%s is not a field of MCM", field)
		}
	}
	for _, field := range ownFields {
		if _, exists := got[field]; !exists {
			t.Errorf("%s is listed but does not exist", field)
		}
	}
}

// MCM's schemas only define types. Stricter schemas would reject existing objects. The schemas may reject only
// values that Go types cannot hold, because one such object would prevent MCM and us from reading any object of its
// kind. Existing objects do not have fields that MCM lacks.
func TestCRD_OnlyDefinesTypes(t *testing.T) {
	for kind, crd := range crdsLikeMCM(t) {
		walk(schemaOf(crd), "", func(path string, schema *apiextensionsv1.JSONSchemaProps) {
			if slices.Contains(ownFields, kind+" "+path) {
				return
			}
			if diff := cmp.Diff(typesOnly(schema), schema); diff != "" {
				t.Errorf("%s %s defines more than its type (-allowed +got):\n%s", kind, path, diff)
			}
		})
	}
}

// typesOnly copies the parts of JSON schema that MCM's schemas use.
func typesOnly(schema *apiextensionsv1.JSONSchemaProps) *apiextensionsv1.JSONSchemaProps {
	kept := &apiextensionsv1.JSONSchemaProps{
		Description:            schema.Description,
		Type:                   schema.Type,
		Format:                 schema.Format,
		Required:               schema.Required,
		Properties:             schema.Properties,
		AdditionalProperties:   schema.AdditionalProperties,
		Items:                  schema.Items,
		XPreserveUnknownFields: schema.XPreserveUnknownFields,
		XListType:              schema.XListType,
		XMapType:               schema.XMapType,
	}
	if schema.XIntOrString { // the only type that needs more; it includes quantities
		kept.XIntOrString, kept.AnyOf, kept.Pattern = true, schema.AnyOf, schema.Pattern
		kept.XValidations = slices.DeleteFunc(slices.Clone(schema.XValidations), func(rule apiextensionsv1.ValidationRule) bool {
			return rule.Message != "must fit into 32 bits"
		})
	}
	if schema.Type == "string" && strings.HasSuffix(schema.Pattern, "ns)+)$") { // a duration
		kept.Pattern = schema.Pattern
	}
	return kept
}

// readFieldTable reads "kind path" -> type from MCM's table.
func readFieldTable(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile("testdata/mcm-crd-fields.tsv")
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") {
			continue
		}
		columns := strings.Split(line, "\t")
		if len(columns) != 4 {
			t.Fatalf("want four columns, got %q", line)
		}
		fields[columns[0]+" "+columns[2]] = columns[3]
	}
	if len(fields) < 200 {
		t.Fatalf("got only %d fields in the table", len(fields))
	}
	return fields
}

func schemaOf(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.JSONSchemaProps {
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema
}

// walk visits every field below a schema, but not the schema itself.
func walk(schema *apiextensionsv1.JSONSchemaProps, path string, visit func(string, *apiextensionsv1.JSONSchemaProps)) {
	step := func(path string, child *apiextensionsv1.JSONSchemaProps) {
		visit(path, child)
		if !embedded(child) {
			walk(child, path, visit)
		}
	}
	for name, child := range schema.Properties {
		step(path+"."+name, &child)
	}
	if schema.Items != nil {
		step(path+"[]", schema.Items.Schema)
	}
	if schema.AdditionalProperties != nil {
		step(path+"{}", schema.AdditionalProperties.Schema)
	}
}

// embedded recognizes the metadata of a template. MCM's schema accepts anything there; ours does too, except that
// labels and similar values have to be strings.
func embedded(schema *apiextensionsv1.JSONSchemaProps) bool {
	_, ok := schema.Properties["finalizers"]
	return ok && schema.XPreserveUnknownFields != nil && *schema.XPreserveUnknownFields
}

// typeOf formats a type as the table does.
func typeOf(schema *apiextensionsv1.JSONSchemaProps) string {
	if schema.XIntOrString {
		return "int-or-string"
	}
	text := schema.Type
	if schema.Format != "" {
		text += "/" + schema.Format
	}
	if schema.XPreserveUnknownFields != nil && *schema.XPreserveUnknownFields {
		text += "+unknown"
	}
	return text
}
