package vm

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// TestProviderSpec_MatchesSchema checks that the schema, from which the reference and the schemas for editors are
// generated, has the fields, the choices and the limits that the driver accepts.
func TestProviderSpec_MatchesSchema(t *testing.T) {
	text, err := os.ReadFile("providerspec.yaml")
	if err != nil {
		t.Fatal(err)
	}
	schema := apiextensionsv1.JSONSchemaProps{}
	if err := yaml.UnmarshalStrict(text, &schema); err != nil {
		t.Fatal(err)
	}
	want, got := map[string]string{}, map[string]string{}
	fieldsOf(reflect.TypeFor[providerSpec](), "", want)
	propertiesOf(schema, "", got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields (-driver +schema):\n%s", diff)
	}
	checkChoices(t, schema)
	checkLimits(t, schema)
}

func checkChoices(t *testing.T, schema apiextensionsv1.JSONSchemaProps) {
	t.Helper()
	var names []string
	for _, size := range sizes {
		names = append(names, size.name)
	}
	for name, values := range map[string][]string{
		"size": names, "firmware": {"BIOS", "UEFI"}, "display": {"None", "VNC"}, "migrateStrategy": {"Live", "Cold"},
		leaseModeField: texts(leaseModes), diskAccessField: texts(diskAccesses), volumeModeField: texts(volumeModes),
		accessModesField + "[]": texts(accessModes), antiAffinityField + ".mode": texts(antiAffinityModes),
	} {
		var choices []string
		for _, choice := range propertyAt(t, schema, name).Enum {
			var value string
			if err := json.Unmarshal(choice.Raw, &value); err != nil {
				t.Fatal(err)
			}
			choices = append(choices, value)
		}
		if !slices.Equal(choices, values) {
			t.Errorf("%s has the choices %v, want %v", name, choices, values)
		}
	}
}

func texts[T ~string](values []T) []string {
	var texts []string
	for _, value := range values {
		texts = append(texts, string(value))
	}
	return texts
}

// propertyAt returns the schema of a field, such as "a.b" or, for the elements of a list, "a[]".
func propertyAt(t *testing.T, schema apiextensionsv1.JSONSchemaProps, path string) apiextensionsv1.JSONSchemaProps {
	t.Helper()
	for name := range strings.SplitSeq(path, ".") {
		name, list := strings.CutSuffix(name, "[]")
		found, ok := schema.Properties[name]
		if !ok {
			t.Fatalf("the schema has no field %s", path)
		}
		if schema = found; list {
			schema = *found.Items.Schema
		}
	}
	return schema
}

func checkLimits(t *testing.T, schema apiextensionsv1.JSONSchemaProps) {
	t.Helper()
	for name, most := range map[string]float64{"cpus": maxCPUs, "rootFsSize": maxRootFsSize, graceField: maxGraceSeconds} {
		if field := schema.Properties[name]; *field.Minimum != 1 || *field.Maximum != most {
			t.Errorf("%s: %v to %v, want 1 to %v", name, *field.Minimum, *field.Maximum, most)
		}
	}
	if field := schema.Properties[leaseDurationField]; *field.Minimum != minLeaseSeconds || *field.Maximum != maxLeaseSeconds {
		t.Errorf("%s: %v to %v", leaseDurationField, *field.Minimum, *field.Maximum)
	}
	if labels := schema.Properties[hostSelectorField].MaxProperties; *labels != maxHostLabels {
		t.Errorf("%s: at most %d", hostSelectorField, *labels)
	}
	for _, list := range []string{"requests", "limits"} {
		if pattern := propertyAt(t, schema, resourcesField+"."+list).AdditionalProperties.Schema.Pattern; pattern != quantityPattern.String() {
			t.Errorf("%s: %s", list, pattern)
		}
	}
	disks := schema.Properties["dataDisks"]
	if *disks.MaxItems != maxDataDisks || disks.Items.Schema.Properties["name"].Pattern != dataDiskName.String() {
		t.Errorf("dataDisks: at most %d with names like %s", *disks.MaxItems, disks.Items.Schema.Properties["name"].Pattern)
	}
	if pattern := schema.Properties["memory"].Pattern; pattern != memoryPattern.String() {
		t.Errorf("memory: %s", pattern)
	}
	if length := schema.Properties["kernelBoot"].Properties["commandLine"].MaxLength; *length != maxCommandLine {
		t.Errorf("commandLine: at most %d", *length)
	}
}

// fieldsOf adds the JSON paths of a struct's fields, with their types in OpenAPI.
func fieldsOf(of reflect.Type, path string, into map[string]string) {
	if of == reflect.TypeFor[quantity]() {
		into[path] = "" // a string or a number
		return
	}
	switch of.Kind() {
	case reflect.Pointer:
		fieldsOf(of.Elem(), path, into)
	case reflect.Slice:
		into[path] = "array"
		fieldsOf(of.Elem(), path+"[]", into)
	case reflect.Map:
		into[path] = "object"
		fieldsOf(of.Elem(), path+"{}", into)
	case reflect.Struct:
		if path != "" {
			into[path] = "object"
		}
		for field := range of.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name == "" {
				fieldsOf(field.Type, path, into)
				continue
			}
			fieldsOf(field.Type, path+"."+name, into)
		}
	case reflect.Int32, reflect.Int64:
		into[path] = "integer"
	default:
		into[path] = of.Kind().String()
	}
}

// propertiesOf adds the paths of a schema's fields, with their types.
func propertiesOf(schema apiextensionsv1.JSONSchemaProps, path string, into map[string]string) {
	if path != "" {
		into[path] = schema.Type
	}
	for name, property := range schema.Properties {
		propertiesOf(property, path+"."+name, into)
	}
	if schema.Items != nil {
		propertiesOf(*schema.Items.Schema, path+"[]", into)
	}
	if schema.AdditionalProperties != nil {
		propertiesOf(*schema.AdditionalProperties.Schema, path+"{}", into)
	}
}
