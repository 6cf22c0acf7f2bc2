package crash

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/test/support/serverfault"
)

// apiserver is a proxy for the API server. Reads are forwarded, and writes pass the gate.
type apiserver struct {
	// name is the name in points.
	name string
	// fault is the fault of the API server, or nil.
	fault atomic.Pointer[serverfault.Fault]
	gate  *gate
	leaks *leaks
	// forces checks deletions of Pods. It may be nil.
	forces    *forces
	base      *url.URL
	transport http.RoundTripper
	reads     http.Handler
}

// newAPIServer forwards to the API server of config, as its user.
func newAPIServer(name string, config *rest.Config, fault *serverfault.Fault, g *gate, l *leaks) (*apiserver, error) {
	reads, err := serverfault.Proxy(config)
	if err != nil {
		return nil, err
	}
	base, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	a := &apiserver{name: name, gate: g, leaks: l, base: base, transport: reads.Transport, reads: reads}
	a.fault.Store(fault)
	return a, nil
}

// serve handles a request of a manager, or injects a fault.
func (a *apiserver) serve(manager *process, w http.ResponseWriter, r *http.Request) {
	a.forces.request(manager.pid(), r, time.Now())
	carryOut := func(w http.ResponseWriter, r *http.Request) { a.carryOut(manager, w, r) }
	a.fault.Load().Serve(w, r, carryOut)
}

// carryOut handles a request of a manager.
func (a *apiserver) carryOut(manager *process, w http.ResponseWriter, r *http.Request) {
	verb, writes := serverfault.Verbs[r.Method]
	if !writes {
		a.reads.ServeHTTP(w, r)
		return
	}
	body := serverfault.Received(r)
	resource, name := serverfault.ObjectOf(r.URL.Path, body)
	a.watch(resource, body)
	result, responded := &writeResult{}, true
	if resource == "events" {
		// Events are never read back, so a crash there does not differ from one a moment later, and they need not
		// be stored.
		result = unstored(verb, body)
	} else {
		op := operation{a.name, verb, a.gate.names.of(resource, name)}
		responded = a.gate.pass(manager, op, func() (idle bool) {
			result = a.forward(r, body)
			idle = result.err == nil && result.code >= http.StatusBadRequest && result.code < http.StatusInternalServerError
			a.gate.did(op, body, idle)
			return idle
		})
	}
	if !responded || result.err != nil {
		panic(http.ErrAbortHandler) // no response at all
	}
	result.write(w)
}

func (a *apiserver) watch(resource string, body []byte) {
	if resource == "secrets" {
		a.leaks.token(body)
		return
	}
	a.leaks.search("a write to "+resource, body)
}

// forward executes a write, even if the client has disconnected.
func (a *apiserver) forward(r *http.Request, body []byte) *writeResult {
	out := r.Clone(context.WithoutCancel(r.Context()))
	out.RequestURI, out.Host = "", ""
	out.URL.Scheme, out.URL.Host = a.base.Scheme, a.base.Host
	out.Body = io.NopCloser(bytes.NewReader(body))
	response, err := a.transport.RoundTrip(out)
	if err != nil {
		return &writeResult{err: err}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return &writeResult{code: response.StatusCode, header: response.Header, body: text, err: err}
}

// unstored responds to a write of an event that is not stored. A created event is returned as sent, and no event
// is ever found, so it is created again.
func unstored(verb string, body []byte) *writeResult {
	header := http.Header{"Content-Type": []string{"application/json"}}
	if verb == "create" {
		return &writeResult{code: http.StatusCreated, header: header, body: body}
	}
	return &writeResult{code: http.StatusNotFound, header: header, body: []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)}
}

// writeResult is the result of a write.
type writeResult struct {
	code   int
	header http.Header
	body   []byte
	err    error
}

func (a *writeResult) write(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.code)
	_, _ = w.Write(a.body) // the manager handles a lost response
}
