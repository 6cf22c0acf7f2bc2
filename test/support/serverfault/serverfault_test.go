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
				fault.strikes(r, nil)
			}
			if struck, asked := fault.Struck(); asked == 0 || struck == 0 {
				t.Errorf("with seed %d, the API server that %s does so to %d requests of %d", seed, fault.Name, struck, asked)
			}
		}
	}
}
