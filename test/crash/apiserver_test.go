package crash

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
)

// apiserver stands before the API server: what is read goes through, what is written
// passes the gate.
type apiserver struct {
	// name in points.
	name string
	// fault is what it does wrong; nil is nothing.
	fault atomic.Pointer[serverFault]
	gate  *gate
	leaks *leaks
	// forces judges deletions of pods; nil if nobody does.
	forces    *forces
	base      *url.URL
	transport http.RoundTripper
	reads     http.Handler
}

// newAPIServer forwards to the API server of config, as its user.
func newAPIServer(name string, config *rest.Config, fault *serverFault, g *gate, l *leaks) (*apiserver, error) {
	base, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	reads := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(base) },
		Transport:     transport,
		FlushInterval: -1, // the events of a watch at once
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	a := &apiserver{name: name, gate: g, leaks: l, base: base, transport: transport, reads: reads}
	a.fault.Store(fault)
	return a, nil
}

// verbs of what is written.
var verbs = map[string]string{
	http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
}

// serve answers a request of a manager, or does something wrong with it.
func (a *apiserver) serve(manager *process, w http.ResponseWriter, r *http.Request) {
	a.forces.request(manager.pid(), r, time.Now())
	carryOut := func(w http.ResponseWriter, r *http.Request) { a.carryOut(manager, w, r) }
	if fault := a.fault.Load(); fault.strikes(r, received(r)) {
		fault.answer(w, r, carryOut)
		return
	}
	carryOut(w, r)
}

// carryOut answers a request of a manager.
func (a *apiserver) carryOut(manager *process, w http.ResponseWriter, r *http.Request) {
	verb, writes := verbs[r.Method]
	if !writes {
		a.reads.ServeHTTP(w, r)
		return
	}
	body := received(r)
	resource, name := objectOf(r.URL.Path, body)
	a.watch(resource, body)
	answer := &answer{}
	happen := func() { answer = a.forward(r, body) }
	answered := true
	if resource == "events" {
		// Nobody reads them back: a death there is no other than one a moment later.
		happen()
	} else {
		answered = a.gate.pass(manager, operation{a.name, verb, a.gate.names.of(resource, name)}, happen)
	}
	if !answered || answer.err != nil {
		panic(http.ErrAbortHandler) // no answer at all
	}
	answer.write(w)
}

// received reads the body of a request of a manager, and leaves it there.
func received(r *http.Request) []byte {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the manager's end
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body
}

func (a *apiserver) watch(resource string, body []byte) {
	if resource == "secrets" {
		a.leaks.token(body)
		return
	}
	a.leaks.search("a write to "+resource, body)
}

// forward carries a write out, whatever becomes of who asked for it.
func (a *apiserver) forward(r *http.Request, body []byte) *answer {
	out := r.Clone(context.WithoutCancel(r.Context()))
	out.RequestURI, out.Host = "", ""
	out.URL.Scheme, out.URL.Host = a.base.Scheme, a.base.Host
	out.Body = io.NopCloser(bytes.NewReader(body))
	response, err := a.transport.RoundTrip(out)
	if err != nil {
		return &answer{err: err}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return &answer{code: response.StatusCode, header: response.Header, body: text, err: err}
}

// answer is what came of a write.
type answer struct {
	code   int
	header http.Header
	body   []byte
	err    error
}

func (a *answer) write(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.code)
	_, _ = w.Write(a.body) // the manager's loss
}

// objectOf reads which object a write is about from its path, or its body if it is being
// created: resource with subresource, and name.
func objectOf(path string, body []byte) (resource, name string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		parts = parts[3:]
	default:
		return path, ""
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	resource = parts[0]
	if len(parts) > 2 {
		resource += "/" + parts[2]
	}
	if len(parts) > 1 {
		return resource, parts[1]
	}
	var object struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	_ = json.Unmarshal(body, &object) // what cannot be read has no name
	return resource, object.Metadata.Name
}
