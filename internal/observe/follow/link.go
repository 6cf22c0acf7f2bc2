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

// link knows for which paths an API server sends no changes: their last list or watch failed. Each is
// retried by itself.
type link struct {
	mu       sync.Mutex
	problems map[string]string
	changed  func()
}

func newLink(changed func()) *link { return &link{problems: map[string]string{}, changed: changed} }

// wrap is for rest.Config.Wrap.
func (l *link) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		switch host := request.URL.Host; {
		case request.Context().Err() != nil: // we ended it
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

// set records the result of a request. The first problem of a path is kept until it is over.
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

// problem returns why changes do not come; empty if all come.
func (l *link) problem() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.problems) == 0 {
		return ""
	}
	return l.problems[slices.Min(slices.Collect(maps.Keys(l.problems)))]
}
