package docs

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/test/support/env"
)

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// object is an object in YAML, or a part of one.
type object map[string]any

// kind returns the group and kind. Both are empty for YAML that is not an object of an API server.
func (o object) kind() schema.GroupKind {
	version, _ := o["apiVersion"].(string)
	kind, _ := o["kind"].(string)
	return schema.FromAPIVersionAndKind(version, kind).GroupKind()
}

// name returns the name. It is empty for a part of an object.
func (o object) name() string {
	metadata, _ := o["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	return name
}

// objectsOf returns the objects in the YAML of a page.
func objectsOf(t *testing.T, text string) (objects []object) {
	t.Helper()
	for _, block := range yamlBlock.FindAllStringSubmatch(text, -1) {
		for part := range strings.SplitSeq(block[1], "\n---\n") {
			var o object
			if err := yaml.Unmarshal([]byte(part), &o); err != nil {
				t.Errorf("%v in\n%s", err, part)
			}
			objects = append(objects, o)
		}
	}
	return objects
}

// TestDocs_PartsOfObjectsHaveKind checks that the YAML on pages can be validated: it has a kind, or is not an object.
func TestDocs_PartsOfObjectsHaveKind(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range userPages(t, root) {
		for _, o := range objectsOf(t, read(t, page)) {
			found++
			if _, isPart := o["spec"]; isPart && o.kind().Kind == "" {
				t.Errorf("%s has a part of an object without apiVersion and kind: %v", page, o)
			}
		}
	}
	if found < 15 {
		t.Errorf("%d objects were found", found)
	}
}

// absent are the groups of kinds that local mode does not have.
var absent = []string{"cluster.x-k8s.io", "ipam.cluster.x-k8s.io", "k8s.cni.cncf.io"}

// yaml validates the objects on pages with the API server. A part of an object, which has no name, is merged into an
// example of its kind.
func (p *place) yaml(t *testing.T) {
	all, validated := documents(t), 0
	for _, page := range userPages(t, p.root) {
		for _, o := range objectsOf(t, read(t, page)) {
			if kind := o.kind(); kind.Kind == "" || slices.Contains(absent, kind.Group) {
				continue
			}
			if o.name() == "" {
				o = merge(exampleOf(t, all, o.kind()), o)
			}
			delete(o["metadata"].(map[string]any), "namespace")
			text, err := yaml.Marshal(o)
			must(t, err)
			p.validate(t, document{filepath.Base(page), o.kind(), text})
			validated++
		}
	}
	if validated < 10 {
		t.Errorf("%d objects were validated", validated)
	}
}

// exampleOf returns the first example of a kind.
func exampleOf(t *testing.T, all []document, kind schema.GroupKind) (o object) {
	t.Helper()
	for _, d := range all {
		if d.kind == kind {
			must(t, yaml.Unmarshal(d.text, &o))
			return o
		}
	}
	t.Fatalf("there is no example of %s", kind)
	return nil
}

// merge merges a patch into an object, as a JSON merge patch.
func merge(into, patch map[string]any) map[string]any {
	for key, value := range patch {
		below, isMap := value.(map[string]any)
		old, wasMap := into[key].(map[string]any)
		switch {
		case value == nil:
			delete(into, key)
		case isMap && wasMap:
			into[key] = merge(old, below)
		default:
			into[key] = value
		}
	}
	return into
}
