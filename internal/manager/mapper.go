package manager

import (
	"fmt"
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// mapper remembers what it has found. At each read, a cache of one namespace asks whether the
// kind is namespaced, and the original goes through all API groups to answer that: a seventh of
// all memory that a rollout allocates. The answer for a kind never changes.
type mapper struct {
	meta.RESTMapper
	mu    sync.RWMutex
	known map[schema.GroupVersionKind]*meta.RESTMapping
}

func newMapper(config *rest.Config, client *http.Client) (meta.RESTMapper, error) {
	original, err := apiutil.NewDynamicRESTMapper(config, client)
	if err != nil {
		return nil, fmt.Errorf("discovering the API: %w", err)
	}
	return &mapper{RESTMapper: original, known: map[schema.GroupVersionKind]*meta.RESTMapping{}}, nil
}

// RESTMapping implements meta.RESTMapper. A kind that was not found is looked up again.
func (m *mapper) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if len(versions) != 1 {
		return m.RESTMapper.RESTMapping(kind, versions...)
	}
	key := kind.WithVersion(versions[0])
	m.mu.RLock()
	found, ok := m.known[key]
	m.mu.RUnlock()
	if ok {
		return found, nil
	}
	found, err := m.RESTMapper.RESTMapping(kind, versions...)
	if err == nil {
		m.mu.Lock()
		m.known[key] = found
		m.mu.Unlock()
	}
	return found, err
}
