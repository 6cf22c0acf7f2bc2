// Command openapi prints the schemas of CustomResourceDefinitions as an OpenAPI version 2 document, with the
// properties that determine how server-side apply merges fields. With this document, the fake clients merge as an
// API server does.
//
//	openapi FILE...
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	document, err := openAPI(os.Args[1:])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(document)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "openapi:", err)
		os.Exit(1)
	}
}

// schema is a JSON schema.
type schema = map[string]any

// metadata contains the lists in an object's metadata that are not atomic.
var metadata = schema{
	"type":                                 "object",
	"x-kubernetes-preserve-unknown-fields": true,
	"properties": schema{
		"finalizers": schema{"type": "array", "items": schema{"type": "string"}, "x-kubernetes-list-type": "set"},
		"ownerReferences": schema{
			"type": "array", "items": schema{"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": schema{"uid": schema{"type": "string"}}},
			"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []string{"uid"},
		},
	},
}

func openAPI(files []string) (schema, error) {
	definitions := schema{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, crd); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, version := range crd.Spec.Versions {
			root, err := merging(version.Schema.OpenAPIV3Schema)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			root["properties"].(schema)["metadata"] = metadata
			// The directory of a group's types is the first part of its name.
			dir, _, _ := strings.Cut(crd.Spec.Group, ".")
			definitions[fmt.Sprintf("com.github.millwright-dev.millwright.api.%s.%s.%s", dir, version.Name, crd.Spec.Names.Kind)] = root
		}
	}
	return schema{
		"swagger": "2.0", "info": schema{"title": "Millwright", "version": "v1"},
		"paths": schema{}, "definitions": definitions,
	}, nil
}

// merging reduces a schema to the properties that determine how values are merged.
func merging(of *apiextensionsv1.JSONSchemaProps) (schema, error) {
	text, err := json.Marshal(of)
	if err != nil {
		return nil, err
	}
	full := schema{}
	if err := json.Unmarshal(text, &full); err != nil {
		return nil, err
	}
	return reduced(full), nil
}

func reduced(full schema) schema {
	kept := schema{}
	for key, value := range full {
		switch {
		case key == "type", strings.HasPrefix(key, "x-kubernetes-") && key != "x-kubernetes-validations":
			kept[key] = value
		case key == "items" || key == "additionalProperties":
			if below, ok := value.(schema); ok {
				kept[key] = reduced(below)
			}
		case key == "properties":
			properties := schema{}
			for name, property := range value.(schema) {
				properties[name] = reduced(property.(schema))
			}
			kept[key] = properties
		}
	}
	return kept
}
