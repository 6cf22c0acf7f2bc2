package follow

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
)

// link records for which paths the API server sends no changes because the last list or watch
// failed. Each path is retried independently.
type link struct {
	mu       sync.Mutex
	problems map[string]string
	changed  func()
}

func newLink(changed func()) *link { return &link{problems: map[string]string{}, changed: changed} }

// wrap is passed to rest.Config.Wrap.
func (l *link) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		switch host := request.URL.Host; {
		case request.Context().Err() != nil: // canceled by us
		case err != nil:
			l.set(request.URL.Path, fmt.Sprintf("%s: %v", host, inner(err)))
		case refusal(response.StatusCode):
			l.set(request.URL.Path, fmt.Sprintf("%s: %s", host, response.Status))
		default:
			l.set(request.URL.Path, "")
		}
		return response, err
	})
}

// refusal reports whether a response code means that no changes will arrive.
func refusal(code int) bool {
	return code >= http.StatusInternalServerError || code == http.StatusUnauthorized || code == http.StatusForbidden
}

// inner removes the connection details from a network error.
func inner(err error) error {
	if of, ok := errors.AsType[*net.OpError](err); ok {
		return fmt.Errorf("%s: %w", of.Op, of.Err)
	}
	return err
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// set records the result of a request. The first problem of a path is kept until a request
// succeeds.
func (l *link) set(path, problem string) {
	was := l.problem()
	l.mu.Lock()
	if problem == "" {
		delete(l.problems, path)
	} else if l.problems[path] == "" {
		l.problems[path] = problem
	}
	l.mu.Unlock()
	if l.problem() != was {
		l.changed()
	}
}

// problem returns why changes do not arrive, or "" if all do.
func (l *link) problem() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.problems) == 0 {
		return ""
	}
	return l.problems[slices.Min(slices.Collect(maps.Keys(l.problems)))]
}
