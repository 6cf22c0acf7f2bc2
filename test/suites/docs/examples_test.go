package docs

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	infrastructurev1alpha1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/test/support/env"
)

// document is one object of an example file.
type document struct {
	file string
	kind schema.GroupKind
	text []byte
}

// documents returns all objects of all examples.
func documents(t *testing.T) []document {
	t.Helper()
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	var found []document
	err = filepath.WalkDir(filepath.Join(root, "examples"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
		for {
			text, err := reader.Read()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			var object metav1.TypeMeta
			if err := yaml.Unmarshal(text, &object); err != nil {
				return err
			}
			found = append(found, document{path, object.GroupVersionKind().GroupKind(), text})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// ownKinds are the kinds that we define.
func ownKinds(t *testing.T) map[schema.GroupKind]bool {
	t.Helper()
	files, err := fs.Glob(config.Files, "crd/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d CRDs, %v", len(files), err)
	}
	kinds := map[schema.GroupKind]bool{}
	for _, file := range files {
		text, err := config.Files.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(text, crd); err != nil {
			t.Fatal(err)
		}
		kinds[schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}] = true
	}
	return kinds
}

// TestExamples_CoverEveryStrategy also checks that each directory of examples is in their list.
func TestExamples_CoverEveryStrategy(t *testing.T) {
	missing := map[v1alpha1.MachineDeploymentStrategyType]bool{
		v1alpha1.RollingUpdateMachineDeploymentStrategyType: true,
		v1alpha1.RecreateMachineDeploymentStrategyType:      true,
		v1alpha1.InPlaceUpdateMachineDeploymentStrategyType: true,
	}
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile(filepath.Join(root, "examples", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range documents(t) {
		var deployment v1alpha1.MachineDeployment
		if document.kind.Kind == "MachineDeployment" && document.kind.Group == v1alpha1.SchemeGroupVersion.Group {
			if err := yaml.Unmarshal(document.text, &deployment); err != nil {
				t.Errorf("%s: %v", document.file, err)
			}
			delete(missing, deployment.Spec.Strategy.Type)
		}
		directory, err := filepath.Rel(filepath.Join(root, "examples"), filepath.Dir(document.file))
		if err != nil || !bytes.Contains(list, []byte("]("+directory+"/")) && directory != "." && !strings.Contains(directory, "/") {
			t.Errorf("the list of the examples has nothing in %s: %v", directory, err)
		}
		if !bytes.HasPrefix(fileOf(t, document), []byte("# ")) {
			t.Errorf("%s does not describe its purpose", document.file)
		}
	}
	for strategy := range missing {
		t.Errorf("no example of %s", strategy)
	}
}

func fileOf(t *testing.T, d document) []byte {
	t.Helper()
	text, err := os.ReadFile(d.file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestExamples_CoverEveryKind(t *testing.T) {
	missing := ownKinds(t)
	for _, document := range documents(t) {
		delete(missing, document.kind)
	}
	for kind := range missing {
		t.Errorf("no example of %s", kind)
	}
}

// TestExamples_CoverEveryLegacyKind also checks that the classes have no unknown fields, because their CRDs keep them.
func TestExamples_CoverEveryLegacyKind(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := legacy.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	missing := map[string]bool{
		"AWSMachineClass": true, "AzureMachineClass": true, "GCPMachineClass": true, "OpenStackMachineClass": true,
		"AlicloudMachineClass": true, "PacketMachineClass": true,
	}
	for _, d := range documents(t) {
		if !missing[d.kind.Kind] {
			continue
		}
		object, err := scheme.New(legacy.SchemeGroupVersion.WithKind(d.kind.Kind))
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict(d.text, object); err != nil {
			t.Errorf("%s: %v", d.file, err)
		}
		delete(missing, d.kind.Kind)
	}
	for kind := range missing {
		t.Errorf("no example of %s", kind)
	}
}

// TestExamples_CanBeScaledFromZero checks that the class or template specifies the resources of a node, and
// that the label by which Gardener's autoscaler finds Machines is set.
func TestExamples_CanBeScaledFromZero(t *testing.T) {
	all, deployments := documents(t), 0
	for _, d := range all {
		if d.kind.Kind != "MachineDeployment" {
			continue
		}
		deployments++
		if d.kind.Group != v1alpha1.SchemeGroupVersion.Group {
			checkTemplate(t, all, d)
			continue
		}
		var deployment v1alpha1.MachineDeployment
		if err := yaml.Unmarshal(d.text, &deployment); err != nil {
			t.Fatal(err)
		}
		if label := deployment.Spec.Template.Labels["name"]; label != deployment.Name {
			t.Errorf("%s: the label name of its Machines is %q, want %q", d.file, label, deployment.Name)
		}
		checkClass(t, all, d, deployment.Spec.Template.Spec.Class.Name)
	}
	if deployments < 8 {
		t.Errorf("%d deployments were found", deployments)
	}
}

// checkClass checks the class of a MachineDeployment, which is in the same directory.
func checkClass(t *testing.T, all []document, of document, name string) {
	t.Helper()
	var class v1alpha1.MachineClass
	if err := yaml.Unmarshal(sibling(t, all, of, v1alpha1.MachineClassKind, name), &class); err != nil || class.NodeTemplate == nil {
		t.Errorf("%s: its class has no nodeTemplate: %v", of.file, err)
		return
	}
	node := class.NodeTemplate
	for _, resource := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, "gpu"} {
		if _, given := node.Capacity[resource]; !given {
			t.Errorf("%s: nodeTemplate.capacity of its class has no %s", of.file, resource)
		}
	}
	if node.InstanceType == "" || node.Region == "" || node.Zone == "" {
		t.Errorf("%s: nodeTemplate of its class lacks instanceType, region or zone: %+v", of.file, node)
	}
}

// checkTemplate checks the template of a MachineDeployment of Cluster API.
func checkTemplate(t *testing.T, all []document, of document) {
	t.Helper()
	var deployment struct {
		Spec struct {
			Template struct {
				Spec struct {
					InfrastructureRef struct{ Kind, Name string }
				}
			}
		}
	}
	if err := yaml.Unmarshal(of.text, &deployment); err != nil {
		t.Fatal(err)
	}
	ref := deployment.Spec.Template.Spec.InfrastructureRef
	var template infrastructurev1alpha1.MillwrightMachineTemplate
	if err := yaml.Unmarshal(sibling(t, all, of, ref.Kind, ref.Name), &template); err != nil {
		t.Fatal(err)
	}
	node := template.Spec.Template.Spec.NodeTemplate
	if node == nil || node.Capacity.Cpu().IsZero() || node.Capacity.Memory().IsZero() {
		t.Errorf("%s: its template has no nodeTemplate with cpu and memory", of.file)
	}
}

// sibling returns the object with a kind and name in the directory of another object.
func sibling(t *testing.T, all []document, of document, kind, name string) []byte {
	t.Helper()
	for _, d := range all {
		var object metav1.PartialObjectMetadata
		if d.kind.Kind == kind && filepath.Dir(d.file) == filepath.Dir(of.file) && yaml.Unmarshal(d.text, &object) == nil && object.Name == name {
			return d.text
		}
	}
	t.Fatalf("%s: %s %q is not in the same directory", of.file, kind, name)
	return nil
}
