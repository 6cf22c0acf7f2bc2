// Command apireference writes, from the CRDs and the schemas of provider specifications, the reference of the API as
// Markdown and schemas for editors.
//
//	apireference PAGES SCHEMAS
//
// It runs in the root directory of the repository. PAGES gets one page for each API group and driver, and an index.
// SCHEMAS gets GROUP/KIND_VERSION.json for each kind, the layout of kubeconform, and providerspec/DRIVER.json for each
// driver. The content of both directories is replaced.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "apireference: %v\n", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) != 2 {
		return errors.New("expected two arguments, the directories of the pages and of the schemas")
	}
	kinds, err := readCRDs("config/crd/*.yaml")
	if err != nil {
		return err
	}
	specs, err := readProviderSpecs()
	if err != nil {
		return err
	}
	files, err := schemasOf(kinds, specs)
	if err != nil {
		return err
	}
	if err := replace(arguments[1], files); err != nil {
		return err
	}
	return replace(arguments[0], pagesOf(kinds, specs))
}

// replace writes files, by their paths below a directory, and removes all others from it.
func replace(dir string, files map[string][]byte) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// kind is a kind of objects.
type kind struct {
	group, version string
	names          apiextensionsv1.CustomResourceDefinitionNames
	schema         *apiextensionsv1.JSONSchemaProps
}

func readCRDs(pattern string) ([]kind, error) {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	var kinds []kind
	for _, path := range paths {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := read(path, crd); err != nil {
			return nil, err
		}
		for _, version := range crd.Spec.Versions {
			kinds = append(kinds, kind{crd.Spec.Group, version.Name, crd.Spec.Names, version.Schema.OpenAPIV3Schema})
		}
	}
	slices.SortFunc(kinds, func(a, b kind) int {
		return strings.Compare(a.group+" "+a.names.Kind, b.group+" "+b.names.Kind)
	})
	return kinds, nil
}

// providerSpec is the provider specification of a driver.
type providerSpec struct {
	driver string
	schema *apiextensionsv1.JSONSchemaProps
}

func readProviderSpecs() ([]providerSpec, error) {
	var specs []providerSpec
	for _, path := range []string{"drivers/vm/providerspec.yaml", "driver/sim/providerspec.yaml"} {
		schema := &apiextensionsv1.JSONSchemaProps{}
		if err := read(path, schema); err != nil {
			return nil, err
		}
		specs = append(specs, providerSpec{filepath.Base(filepath.Dir(path)), schema})
	}
	return specs, nil
}

func read(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := yaml.UnmarshalStrict(text, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
