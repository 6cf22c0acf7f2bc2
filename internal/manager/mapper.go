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

// mapper remembers what it has found. A cache of one namespace asks at each read whether
// the kind has namespaces at all, and the original goes through all API groups to answer
// that: a seventh of all memory that a rollout allocates. A kind's answer never changes.
type mapper struct {
	meta.RESTMapper
	known sync.Map // *meta.RESTMapping by schema.GroupVersionKind
}

func newMapper(config *rest.Config, client *http.Client) (meta.RESTMapper, error) {
	asking, err := apiutil.NewDynamicRESTMapper(config, client)
	if err != nil {
		return nil, fmt.Errorf("discovering the API: %w", err)
	}
	return &mapper{RESTMapper: asking}, nil
}

// RESTMapping implements meta.RESTMapper. What was not found is asked for again.
func (m *mapper) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if len(versions) != 1 {
		return m.RESTMapper.RESTMapping(kind, versions...)
	}
	key := kind.WithVersion(versions[0])
	if known, ok := m.known.Load(key); ok {
		return known.(*meta.RESTMapping), nil
	}
	found, err := m.RESTMapper.RESTMapping(kind, versions...)
	if err == nil {
		m.known.Store(key, found)
	}
	return found, err
}
