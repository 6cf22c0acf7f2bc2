package manager

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// countingMapper counts how often it is called.
type countingMapper struct {
	meta.DefaultRESTMapper
	asked int
}

func (m *countingMapper) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	m.asked++
	return m.DefaultRESTMapper.RESTMapping(kind, versions...)
}

// TestMapper_CachesExistingKinds checks that only existing kinds are cached, because the CRD of a missing kind
// may be installed later.
func TestMapper_CachesExistingKinds(t *testing.T) {
	nodes, later := schema.GroupVersionKind{Version: "v1", Kind: "Node"}, schema.GroupVersionKind{Group: "g", Version: "v1", Kind: "Later"}
	original := &countingMapper{DefaultRESTMapper: *meta.NewDefaultRESTMapper(nil)}
	original.Add(nodes, meta.RESTScopeRoot)
	once := func(question func() error) error { return question() }
	m := &mapper{RESTMapper: original, ask: once, known: map[schema.GroupVersionKind]*meta.RESTMapping{}}
	ask := func(kind schema.GroupVersionKind, scope meta.RESTScopeName, asked int) {
		t.Helper()
		found, err := m.RESTMapping(kind.GroupKind(), kind.Version)
		switch {
		case scope == "" && !meta.IsNoMatchError(err):
			t.Errorf("%s: want no match, got %v, %v", kind.Kind, found, err)
		case scope != "" && (err != nil || found.Scope.Name() != scope || found.GroupVersionKind != kind):
			t.Errorf("%s: got %v, %v", kind.Kind, found, err)
		}
		if original.asked != asked {
			t.Errorf("%s: %d requests to the API, want %d", kind.Kind, original.asked, asked)
		}
	}
	ask(nodes, meta.RESTScopeNameRoot, 1)
	ask(nodes, meta.RESTScopeNameRoot, 1)
	ask(later, "", 2)
	ask(later, "", 3)
	original.Add(later, meta.RESTScopeNamespace)
	ask(later, meta.RESTScopeNameNamespace, 4)
	ask(later, meta.RESTScopeNameNamespace, 4)
}
