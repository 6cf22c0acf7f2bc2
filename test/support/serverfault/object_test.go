package serverfault

import "testing"

func TestRequest_Object(t *testing.T) {
	const body = `{"metadata":{"name":"new"}}`
	for path, want := range map[string][2]string{
		"/api/v1/nodes/n":                             {"nodes", "n"},
		"/api/v1/nodes/n/status":                      {"nodes/status", "n"},
		"/api/v1/nodes":                               {"nodes", "new"},
		"/api/v1/namespaces/ns/secrets":               {"secrets", "new"},
		"/api/v1/namespaces/ns/pods/p/eviction":       {"pods/eviction", "p"},
		"/api/v1/namespaces/ns":                       {"namespaces", "ns"},
		"/apis/g/v1/namespaces/ns/machines/m":         {"machines", "m"},
		"/apis/g/v1/namespaces/ns/machines/m/status":  {"machines/status", "m"},
		"/apis/storage.k8s.io/v1/volumeattachments/a": {"volumeattachments", "a"},
		"/version": {"/version", ""},
	} {
		resource, name := ObjectOf(path, []byte(body))
		if got := [2]string{resource, name}; got != want {
			t.Errorf("%s is about %v, want %v", path, got, want)
		}
	}
}
