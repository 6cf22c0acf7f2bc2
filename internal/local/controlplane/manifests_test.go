package controlplane

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// TestAwaitServed_RetriesUntilAPIServerResponds checks that requests to an API server that does not respond at first are retried.
func TestAwaitServed_RetriesUntilAPIServerResponds(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch asked.Add(1) {
		case 1:
			w.WriteHeader(http.StatusInternalServerError)
		case 2:
			w.WriteHeader(http.StatusNotFound)
		default:
			_, _ = w.Write([]byte(`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"example.com/v1","resources":[{"name":"things","kind":"Thing"}]}`))
		}
	}))
	defer server.Close()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Spec.Group, crd.Spec.Names.Plural = "example.com", "things"
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true}}
	if err := awaitServed(t.Context(), discovery.NewDiscoveryClientForConfigOrDie(&rest.Config{Host: server.URL}), crd); err != nil || asked.Load() != 3 {
		t.Errorf("after %d questions: %v", asked.Load(), err)
	}
}
