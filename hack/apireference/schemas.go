package main

import (
	"encoding/json"
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// object is a JSON schema, or a part of one.
type object = map[string]any

// draft is the version of JSON schema that all editors support.
const draft = "http://json-schema.org/draft-07/schema#"

// holders are the fields that name the driver of a provider specification, by kind. The specification is next to them.
var holders = map[string][]string{
	"MachineClass":              {"provider"},
	"MillwrightMachine":         {"spec", "driver"},
	"MillwrightMachineTemplate": {"spec", "template", "spec", "driver"},
}

// schemasOf returns the schemas for editors by file.
func schemasOf(kinds []kind, specs []providerSpec) (map[string][]byte, error) {
	files := map[string][]byte{}
	add := func(name, title string, schema object) error {
		schema["$schema"], schema["title"] = draft, title
		text, err := json.MarshalIndent(schema, "", " ")
		files[name] = append(text, '\n')
		return err
	}
	for _, k := range kinds {
		schema, err := schemaOf(k, specs)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k.names.Kind, err)
		}
		name := fmt.Sprintf("%s/%s_%s.json", k.group, strings.ToLower(k.names.Kind), k.version)
		if err := add(name, k.names.Kind, schema); err != nil {
			return nil, err
		}
	}
	for _, spec := range specs {
		schema, err := converted(spec.schema)
		if err != nil {
			return nil, fmt.Errorf("driver %s: %w", spec.driver, err)
		}
		if err := add("providerspec/"+spec.driver+".json", "providerSpec of the driver "+spec.driver, schema); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// metadata contains what users write there.
var metadata = object{
	"type":        "object",
	"description": "Standard metadata of an object.",
	"properties": object{
		"name":         object{"type": "string", "description": "Name of the object."},
		"generateName": object{"type": "string", "description": "Prefix of a name that the API server completes."},
		"namespace":    object{"type": "string", "description": "Namespace of the object."},
		"labels":       object{"type": "object", "additionalProperties": object{"type": "string"}, "description": "Labels of the object."},
		"annotations":  object{"type": "object", "additionalProperties": object{"type": "string"}, "description": "Annotations of the object."},
	},
}

func schemaOf(k kind, specs []providerSpec) (object, error) {
	schema, err := converted(k.schema)
	if err != nil {
		return nil, err
	}
	properties := schema["properties"].(object)
	properties["apiVersion"] = object{"const": k.group + "/" + k.version}
	properties["kind"] = object{"const": k.names.Kind}
	properties["metadata"] = metadata
	required, _ := schema["required"].([]any)
	schema["required"] = append([]any{"apiVersion", "kind"}, required...)
	path, ok := holders[k.names.Kind]
	if !ok {
		return schema, nil
	}
	owner, field := schema, path[len(path)-1]
	for _, name := range path[:len(path)-1] {
		owner = owner["properties"].(object)[name].(object)
	}
	var rules []any
	for _, spec := range specs {
		of, err := converted(spec.schema)
		if err != nil {
			return nil, err
		}
		rules = append(rules, object{
			"if":   object{"properties": object{field: object{"const": spec.driver}}, "required": []any{field}},
			"then": object{"properties": object{"providerSpec": of}},
		})
	}
	owner["allOf"] = rules
	return schema, nil
}

// converted converts an OpenAPI schema. Unknown fields are errors, as with kubectl.
func converted(of *apiextensionsv1.JSONSchemaProps) (object, error) {
	text, err := json.Marshal(of)
	if err != nil {
		return nil, err
	}
	schema := object{}
	if err := json.Unmarshal(text, &schema); err != nil {
		return nil, err
	}
	return schema, convert(schema)
}

func convert(schema object) error {
	kept := schema["x-kubernetes-preserve-unknown-fields"] == true
	for key := range schema {
		if strings.HasPrefix(key, "x-kubernetes-") {
			delete(schema, key)
		}
		if key == "exclusiveMinimum" || key == "exclusiveMaximum" {
			return fmt.Errorf("cannot convert %s", key)
		}
	}
	if schema["nullable"] == true {
		schema["type"] = []any{schema["type"], "null"}
		delete(schema, "nullable")
	}
	properties, _ := schema["properties"].(object)
	if _, isMap := schema["additionalProperties"]; properties != nil && !isMap && !kept {
		schema["additionalProperties"] = false
	}
	for _, property := range properties {
		if err := convert(property.(object)); err != nil {
			return err
		}
	}
	for _, key := range []string{"items", "additionalProperties"} {
		if below, ok := schema[key].(object); ok {
			if err := convert(below); err != nil {
				return err
			}
		}
	}
	return nil
}
