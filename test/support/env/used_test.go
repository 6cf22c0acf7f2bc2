package env

import (
	"net/http/httptest"
	"strings"
	"testing"
)

func TestPermissionFor(t *testing.T) {
	for request, want := range map[string]string{
		"GET /api/v1/namespaces/a/secrets/b":                "get secrets",
		"GET /api/v1/namespaces/a/secrets":                  "list secrets",
		"GET /api/v1/secrets?watch=true":                    "watch secrets",
		"GET /api/v1/namespaces/a":                          "get namespaces",
		"GET /api/v1/namespaces":                            "list namespaces",
		"POST /api/v1/namespaces/a/pods/b/eviction":         "create pods/eviction",
		"PATCH /apis/x.dev/v1/namespaces/a/things/b/status": "patch things/status.x.dev",
		"PUT /apis/x.dev/v1/things/b":                       "update things.x.dev",
		"DELETE /apis/x.dev/v1/namespaces/a/things/b":       "delete things.x.dev",
		"DELETE /apis/x.dev/v1/namespaces/a/things":         "deletecollection things.x.dev",
		"POST /apis/authentication.k8s.io/v1/tokenreviews":  "create tokenreviews.authentication.k8s.io",
		"GET /apis/x.dev/v1":                                "get /apis/x.dev/v1",
	} {
		method, path, _ := strings.Cut(request, " ")
		if got := permissionFor(httptest.NewRequest(method, path, nil)); got != want {
			t.Errorf("%s needs %q, want %q", request, got, want)
		}
	}
}

// failures is a test that only counts its failures.
type failures struct {
	testing.TB
	count int
}

func (f *failures) Helper()               {}
func (f *failures) Errorf(string, ...any) { f.count++ }

// TestPermissions_UnusedAreFound checks that unused permissions and unnecessary explanations are found.
func TestPermissions_UnusedAreFound(t *testing.T) {
	const role = "config/rbac/driver-vm-hosts-role.yaml" // permits listing nodes
	listed := func() *Used { u := &Used{}; u.add("list nodes"); return u }
	for name, try := range map[string]struct {
		used   *Used
		unseen map[string]string
		want   int
	}{
		"used":                {listed(), nil, 0},
		"unused":              {&Used{}, nil, 1},
		"unused for a reason": {&Used{}, map[string]string{"list nodes": "elsewhere"}, 0},
		"used, with a reason": {listed(), map[string]string{"list nodes": "elsewhere"}, 1},
		"no reason":           {&Used{}, map[string]string{"list nodes": ""}, 1},
		"reason for no grant": {listed(), map[string]string{"get nodes": "elsewhere"}, 1},
	} {
		f := &failures{TB: t}
		try.used.Check(f, try.unseen, role)
		if f.count != try.want {
			t.Errorf("%s: %d failures, want %d", name, f.count, try.want)
		}
	}
}
