package rollout

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
)

// Link knows whether an API server answers. The clients that use it must be made from a
// configuration whose transport it wraps.
type Link struct {
	mu      sync.Mutex
	problem string
	changed func()
}

// Wrap is for rest.Config.Wrap.
func (l *Link) Wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		switch {
		case request.Context().Err() != nil: // we ended it
		case err != nil:
			l.set(fmt.Sprintf("%s: %v", request.URL.Host, inner(err)))
		case refusal(response.StatusCode):
			l.set(fmt.Sprintf("%s: %s", request.URL.Host, response.Status))
		default:
			l.set("")
		}
		return response, err
	})
}

// refusal tells whether an answer means that changes are not heard of.
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

// set notes how a request went. Of several problems in a row, the first is kept.
func (l *Link) set(problem string) {
	l.mu.Lock()
	call := l.changed
	if (problem == "") == (l.problem == "") {
		call = nil
	} else {
		l.problem = problem
	}
	l.mu.Unlock()
	if call != nil {
		call()
	}
}

// Problem is why the API server does not answer; empty if it does.
func (l *Link) Problem() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.problem
}

// onChange has a function called whenever that changes; nil ends it.
func (l *Link) onChange(call func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed = call
}
