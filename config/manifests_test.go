package config_test

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/config"
)

// readCRDs returns all CustomResourceDefinitions, by kind.
func readCRDs(t *testing.T) map[string]*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crds := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, name := range glob(t, "crd/*.yaml") {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		parse(t, read(t, name), crd)
		crds[crd.Spec.Names.Kind] = crd
	}
	return crds
}

// crdsLikeMCM returns the CRDs of kinds that MCM also has, by kind.
func crdsLikeMCM(t *testing.T) map[string]*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crds := readCRDs(t)
	maps.DeleteFunc(crds, func(_ string, crd *apiextensionsv1.CustomResourceDefinition) bool {
		return crd.Spec.Group != "machine.sapcloud.io"
	})
	return crds
}

// readRules returns the rules of a role in a file.
func readRules(t *testing.T, file, kind, name string) []rbacv1.PolicyRule {
	t.Helper()
	for _, document := range bytes.Split(read(t, file), []byte("\n---\n")) {
		// A Role and a ClusterRole have the same form, except for a field that is not used here.
		role := &rbacv1.Role{}
		parse(t, document, role)
		if role.Kind == kind && role.Name == name {
			return role.Rules
		}
	}
	t.Fatalf("%s contains no %s %s", file, kind, name)
	return nil
}

func TestKustomization_ListsManifestsOfControlCluster(t *testing.T) {
	var kustomization struct {
		Resources []string `json:"resources"`
	}
	data, err := os.ReadFile("kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &kustomization); err != nil {
		t.Fatal(err)
	}
	want := append(glob(t, "crd/*.yaml"), "rbac/control-role.yaml")
	want = slices.DeleteFunc(want, func(name string) bool { // the CRDs of Cluster API are in capi/
		return strings.HasPrefix(name, "crd/"+infrastructureGroup)
	})
	slices.Sort(kustomization.Resources)
	if diff := cmp.Diff(want, kustomization.Resources); diff != "" {
		t.Errorf("resources (-files +listed):\n%s", diff)
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := fs.Glob(config.Files, pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("found no files %s: %v", path.Clean(pattern), err)
	}
	return names
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := config.Files.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func parse(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		t.Fatal(err)
	}
}
