package release

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

const infrastructureGroup = "infrastructure.millwright.dev"

// TestComponents_AreAcceptedByClusterctl (K3, L1) checks the components as published, and as clusterctl renders
// them for a namespace of the user's choice.
func TestComponents_AreAcceptedByClusterctl(t *testing.T) {
	tier.All(t)
	p := newPlace(t)
	for _, contract := range contracts {
		t.Run(contract, func(t *testing.T) {
			t.Run("published", func(t *testing.T) {
				look(t, fixture.Objects(t, p.read(contract, "infrastructure-components.yaml")), "millwright-system", contract)
			})
			t.Run("elsewhere", func(t *testing.T) {
				text := p.clusterctl(contract, nil, "generate", "provider", "--infrastructure", "millwright:"+release, "--target-namespace", "elsewhere")
				look(t, fixture.Objects(t, text), "elsewhere", contract)
				if strings.Contains(string(text), "${") || strings.Contains(string(text), "millwright-system") {
					t.Errorf("a variable or the first namespace is left:\n%s", text)
				}
			})
		})
	}
}

// look checks the components in a namespace.
func look(t *testing.T, components []*unstructured.Unstructured, namespace, contract string) {
	if name := only(t, components, "Namespace").GetName(); name != namespace {
		t.Errorf("the Namespace is %s", name)
	}
	crds := 0
	for _, object := range components {
		name := object.GetKind() + " " + object.GetName()
		if label := object.GetLabels()["cluster.x-k8s.io/provider"]; label != provider {
			t.Errorf("%s has the provider %q", name, label)
		}
		if at := object.GetNamespace(); at != "" && at != namespace {
			t.Errorf("%s is in namespace %s", name, at)
		}
		if object.GetKind() == "CustomResourceDefinition" {
			crds++
			lookAtCRD(t, decode[apiextensionsv1.CustomResourceDefinition](t, object), contract)
		}
	}
	if crds != 5 {
		t.Errorf("there are %d CRDs; want those of %s, and that of classes", crds, infrastructureGroup)
	}
	lookAtManager(t, decode[appsv1.Deployment](t, only(t, components, "Deployment")))
}

func lookAtManager(t *testing.T, deployment *appsv1.Deployment) {
	containers := deployment.Spec.Template.Spec.Containers
	if len(containers) != 1 || containers[0].Name != "manager" || containers[0].Image != image+":"+release {
		t.Errorf("the containers are %+v", containers)
	}
	if account := deployment.Spec.Template.Spec.ServiceAccountName; account == "" {
		t.Error("the manager has no service account of its own")
	}
}

// lookAtCRD checks that the CRD is the generated one, except for labels, and for what the contract requires in
// another form.
func lookAtCRD(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition, contract string) {
	text, err := fs.ReadFile(config.Files, "crd/"+crd.Spec.Group+"_"+crd.Spec.Names.Plural+".yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(text, want); err != nil {
		t.Fatal(err)
	}
	if contract == "v1beta1" && crd.Spec.Names.Kind == "MillwrightCluster" {
		generated, released := failureDomainsOf(want), failureDomainsOf(crd)
		if generated.Type != "array" || released.Type != "object" || released.AdditionalProperties == nil {
			t.Errorf("status.failureDomains is generated as %q, and released as %q", generated.Type, released.Type)
		}
		want.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"].Properties["failureDomains"] = released
	}
	if diff := cmp.Diff(want.Spec, crd.Spec); diff != "" {
		t.Errorf("%s (-generated +released):\n%s", crd.Name, diff)
	}
	if crd.Spec.Group == infrastructureGroup {
		lookAtContracts(t, crd)
	}
}

// failureDomainsOf returns the schema of status.failureDomains in the CRD of a MillwrightCluster: a list in contract
// v1beta2, and a map in v1beta1.
func failureDomainsOf(crd *apiextensionsv1.CustomResourceDefinition) apiextensionsv1.JSONSchemaProps {
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"].Properties["failureDomains"]
}

// lookAtContracts checks that each contract's label names served versions only.
func lookAtContracts(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) {
	served := map[string]bool{}
	for _, version := range crd.Spec.Versions {
		served[version.Name] = version.Served
	}
	for _, contract := range []string{"v1beta1", "v1beta2"} {
		for _, version := range strings.Split(crd.Labels["cluster.x-k8s.io/"+contract], "_") {
			if !served[version] {
				t.Errorf("%s serves no version %q, which its label for %s names", crd.Name, version, contract)
			}
		}
	}
}

// TestComponents_ImageCanBeOverridden overrides the image like an operator with a private registry.
func TestComponents_ImageCanBeOverridden(t *testing.T) {
	tier.All(t)
	p := newPlace(t)
	written, err := os.ReadFile(filepath.Join(p.dir, contract(), "clusterctl.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(p.dir, "own.yaml")
	text := string(written) + "images:\n  " + provider + ":\n    repository: mirror.example.com/mirrored\n"
	if err := os.WriteFile(own, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, stderr, err := p.tryClusterctl(own, nil, "generate", "provider", "--infrastructure", "millwright:"+release)
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	deployment := decode[appsv1.Deployment](t, only(t, fixture.Objects(t, out), "Deployment"))
	if got, want := deployment.Spec.Template.Spec.Containers[0].Image, "mirror.example.com/mirrored/millwright:"+release; got != want {
		t.Errorf("the image is %s, want %s", got, want)
	}
}

// TestRelease_VersionsAreValidated checks that a version must be a semantic version of a series with a contract, and
// that existing releases are kept.
func TestRelease_VersionsAreValidated(t *testing.T) {
	tier.All(t)
	p := newPlace(t)
	for name, tc := range map[string]struct {
		version, image string
		directory      string // "" if it is refused
	}{
		"next patch":          {"v0.1.1", "millwright", "v0.1.1"},
		"candidate":           {"v0.1.2-rc.1", "registry.example.com:5000/millwright", "v0.1.2-rc.1"},
		"from a commit":       {"22a86ef-dirty", "millwright", "v0.1.0-dev-22a86ef-dirty"},
		"zeros first":         {"0022860", "millwright", "v0.1.0-dev-0022860"},
		"series not known":    {"v0.2.0", "millwright", ""},
		"tag in the image":    {"v0.1.1", "millwright:v0.1.1", ""},
		"digest in the image": {"v0.1.1", "millwright@sha256:0", ""},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := p.release(tc.version, tc.image)
			if tc.directory == "" {
				if err == nil {
					t.Errorf("not refused:\n%s", out)
				}
				return
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, version := range []string{tc.directory, release} {
				for _, contract := range []string{"v1beta1", "v1beta2"} {
					if _, err := os.Stat(filepath.Join(p.dir, contract, provider, version, "metadata.yaml")); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	left, err := filepath.Glob(filepath.Join(p.dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
