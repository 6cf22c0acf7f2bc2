package rollout

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Link knows whether an API server sends the changes that a Follower waits for. Clients must be made
// from a configuration whose transport it wraps.
type Link struct {
	mu sync.Mutex
	// away are the resources whose last list or watch failed. Each is retried by itself.
	away    map[string]bool
	problem string
	changed func()
}

// Wrap is for rest.Config.Wrap.
func (l *Link) Wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		resource, is := followed(request.URL.Path)
		switch {
		case !is || request.Context().Err() != nil: // we ended it
		case err != nil:
			l.set(resource, fmt.Sprintf("%s: %v", request.URL.Host, inner(err)))
		case refusal(response.StatusCode):
			l.set(resource, fmt.Sprintf("%s: %s", request.URL.Host, response.Status))
		default:
			l.set(resource, "")
		}
		return response, err
	})
}

// followed returns the resource of /apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE, if the group is
// that of what is followed.
func followed(path string) (resource string, is bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	const namespaced = 6
	if len(parts) < namespaced {
		return "", false
	}
	parts = parts[len(parts)-namespaced:] // an API server may be below a path
	return parts[5], parts[0] == "apis" && parts[1] == v1alpha1.GroupName && parts[3] == "namespaces"
}

// refusal reports whether an answer means that no changes will come.
func refusal(code int) bool {
	return code >= http.StatusInternalServerError || code == http.StatusUnauthorized || code == http.StatusForbidden
}

// inner is an error without the connection that it is about.
func inner(err error) error {
	if of, ok := errors.AsType[*net.OpError](err); ok {
		return fmt.Errorf("%s: %w", of.Op, of.Err)
	}
	return err
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// set records the result of a request. The first of several problems is kept until no resource fails.
func (l *Link) set(resource, problem string) {
	l.mu.Lock()
	was := l.problem
	if problem == "" {
		delete(l.away, resource)
	} else {
		if l.away == nil {
			l.away = map[string]bool{}
		}
		l.away[resource] = true
		l.problem = cmp.Or(l.problem, problem)
	}
	if len(l.away) == 0 {
		l.problem = ""
	}
	call := l.changed
	if l.problem == was {
		call = nil
	}
	l.mu.Unlock()
	if call != nil {
		call()
	}
}

// Problem returns why changes do not come; empty if all come.
func (l *Link) Problem() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.problem
}

// onChange sets the function that is called when Problem changes; nil for none.
func (l *Link) onChange(call func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed = call
}
