package env

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Used is a set of permissions that requests needed, each as "verb resource.group". The zero value is empty.
type Used struct {
	mu          sync.Mutex
	permissions map[string]bool
}

// Record records the requests of clients that are created from the configuration from now on, whatever the
// response is.
func (u *Used) Record(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			u.add(permissionFor(request))
			return next.RoundTrip(request)
		})
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

func (u *Used) add(permission string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.permissions == nil {
		u.permissions = map[string]bool{}
	}
	u.permissions[permission] = true
	// An informer needs both permissions: it lists if the API server does not support streaming lists.
	if resource, watched := strings.CutPrefix(permission, "watch "); watched {
		u.permissions["list "+resource] = true
	}
}

// Check fails the test for each permission of the roles in the given manifests (paths relative to Root) that was
// not used and is not in unseen. It also fails for each permission in unseen that was used, is not granted or has
// no reason. unseen contains the reasons for permissions whose use the test cannot observe.
func (u *Used) Check(t testing.TB, unseen map[string]string, paths ...string) {
	t.Helper()
	granted := map[string]bool{}
	for _, path := range paths {
		roles, err := readRoles(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, role := range roles {
			addPermissions(granted, rulesOf(role))
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, permission := range slices.Sorted(maps.Keys(granted)) {
		if !u.permissions[permission] && unseen[permission] == "" {
			t.Errorf("%v grant %q, which nothing uses", paths, permission)
		}
	}
	for _, permission := range slices.Sorted(maps.Keys(unseen)) {
		if u.permissions[permission] || !granted[permission] {
			t.Errorf("%q is listed as unseen; used: %t, granted by %v: %t", permission, u.permissions[permission], paths, granted[permission])
		}
	}
}

func rulesOf(role client.Object) []rbacv1.PolicyRule {
	if of, is := role.(*rbacv1.ClusterRole); is {
		return of.Rules
	}
	return role.(*rbacv1.Role).Rules
}

func addPermissions(to map[string]bool, rules []rbacv1.PolicyRule) {
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					to[permissionOf(verb, resource, group)] = true
				}
			}
		}
	}
}

func permissionOf(verb, resource, group string) string {
	return strings.TrimSuffix(fmt.Sprintf("%s %s.%s", verb, resource, group), ".")
}

// permissionFor returns the permission that a request needs. Like the API server, it derives the permission from
// the method and the path: /api/VERSION or /apis/GROUP/VERSION, then namespaces/NAMESPACE for a namespaced
// resource, then resource, name and subresource.
func permissionFor(request *http.Request) string {
	parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	group := ""
	switch {
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		group, parts = parts[1], parts[3:]
	default:
		return "get " + request.URL.Path // discovery, which roles do not grant
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	resource, named := parts[0], len(parts) > 1
	if len(parts) > 2 {
		resource += "/" + parts[2]
	}
	return permissionOf(verbFor(request, named), resource, group)
}

var verbsOfMethods = map[string]string{
	http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
}

func verbFor(request *http.Request, named bool) string {
	switch watch := request.URL.Query().Get("watch"); {
	case request.Method == http.MethodDelete && !named:
		return "deletecollection"
	case request.Method != http.MethodGet:
		return cmp.Or(verbsOfMethods[request.Method], request.Method)
	case watch == "true" || watch == "1":
		return "watch"
	case named:
		return "get"
	}
	return "list"
}
