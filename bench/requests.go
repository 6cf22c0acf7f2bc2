package main

import (
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/millwright-dev/millwright/test/support/env"
)

// clientRequests counts the requests of a client as the API server counts them. It is safe for concurrent use.
type clientRequests struct {
	mu     sync.Mutex
	totals env.Totals
}

// reset starts a new count.
func (o *clientRequests) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.totals = env.Totals{}
}

// counts returns the requests since the last reset.
func (o *clientRequests) counts() env.Totals {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.totals.Since(nil)
}

// wrap returns a transport that counts the requests to which the API server responded.
func (o *clientRequests) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err == nil {
			o.add(r, response.StatusCode)
		}
		return response, err
	})
}

// roundTripper is a function that implements http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

var resolver = request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

// methods are the API server's names of the verbs in its metrics. Watches are not counted.
var methods = map[string]string{
	"get": "GET", "list": "LIST", "create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETECOLLECTION",
}

func (o *clientRequests) add(r *http.Request, code int) {
	info, err := resolver.NewRequestInfo(r)
	if err != nil || !info.IsResourceRequest || methods[info.Verb] == "" {
		return
	}
	resource := info.Resource
	if info.Subresource != "" {
		resource += "/" + info.Subresource
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.totals[env.RequestKey{Method: methods[info.Verb], Group: info.APIGroup, Resource: resource, Code: code}]++
}
