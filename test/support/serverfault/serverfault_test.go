package serverfault

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestFault_ConcernsSomeRequest checks that a fault affects at least one of the requests that it concerns, for any random
// seed.
func TestFault_ConcernsSomeRequest(t *testing.T) {
	for seed := range uint64(20) {
		for _, fault := range All(seed) {
			for _, r := range []*http.Request{
				httptest.NewRequest(http.MethodPatch, "/api/v1/namespaces/ns/pods/p", nil),
				httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/ns/pods?watch=true", nil),
			} {
				fault.affects(r, nil)
			}
			if affected, eligible := fault.Counts(); affected == 0 {
				t.Errorf("with seed %d, an API server that %s affected %d of %d requests", seed, fault.Name, affected, eligible)
			}
		}
	}
}
