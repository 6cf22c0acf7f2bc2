// Package serverfault injects faults of API servers, and of the network between client and server.
package serverfault

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Fault is a fault of an API server, or of the network, that affects some requests.
type Fault struct {
	// Name completes the sentence "An API server ...".
	Name string
	// Every is the frequency. The first request that the fault concerns is affected, and then a random one in so
	// many. A fixed order could always affect the same request of a sequence that is retried.
	Every int
	// Concerns reports whether the fault can affect a request.
	Concerns func(*http.Request) bool
	// Respond responds instead of the API server. carryOut forwards the request to the API server.
	Respond func(w http.ResponseWriter, r *http.Request, carryOut http.HandlerFunc)
	// Killed kills the manager once, so that a new manager starts while the fault lasts.
	Killed bool

	mu     sync.Mutex
	random *rand.Rand
	// consecutive is how often in succession the same request was affected.
	consecutive map[string]int

	// eligible counts the requests that the fault concerns, and affected those that it has affected.
	eligible, affected atomic.Int64
}

// maxConsecutive limits how often the same request is affected consecutively. Managers double their back-off after
// each failure, and tests have a time limit.
const maxConsecutive = 2

// All returns new instances of all faults, since they count requests. With the same seed, the same sequence of
// requests encounters the same faults.
func All(seed uint64) []*Fault {
	all := []*Fault{
		{Name: "delays responses by half a second", Every: 3, Concerns: notWatched, Respond: respondLate},
		{Name: "carries out each write twice and returns the second response", Every: 1, Concerns: written, Respond: respondTwice},
		{Name: "returns 409 Conflict for updates and patches", Every: 3, Concerns: changed409, Respond: refuseWith(conflict)},
		{Name: "returns 429 Too Many Requests", Every: 4, Concerns: notWatched, Respond: refuseWith(tooMany)},
		{Name: "returns 500 without processing the request", Every: 3, Concerns: notWatched, Respond: refuseWith(internal)},
		{Name: "returns 500 after processing the request", Every: 3, Concerns: written, Respond: respondFailed},
		{Name: "truncates response bodies", Every: 3, Concerns: notWatched, Respond: respondTruncated},
		{Name: "closes watches in the middle of an event", Every: 1, Concerns: Watched, Respond: newWatchCutter().response},
		{Name: "terminates watches with 410 Gone, as after a compaction", Every: 2, Concerns: Watched, Respond: respondGone},
		{Name: "serves lists from an old revision if the client permits it", Every: 1, Concerns: AnyRequest, Respond: newOldLists().response, Killed: true},
	}
	for i, fault := range all {
		fault.random, fault.consecutive = rand.New(rand.NewPCG(seed, uint64(i))), map[string]int{}
	}
	return all
}

// affects reports whether the fault affects a request with the given body, and counts the request.
func (f *Fault) affects(r *http.Request, body []byte) bool {
	if f == nil || !f.Concerns(r) {
		return false
	}
	first := f.eligible.Add(1) == 1
	if f.Every == 1 {
		f.affected.Add(1)
		return true
	}
	_, name := ObjectOf(r.URL.Path, body)
	request := r.Method + r.URL.Path + " " + name
	f.mu.Lock()
	defer f.mu.Unlock()
	if !first && (f.random.IntN(f.Every) != 0 || f.consecutive[request] == maxConsecutive) {
		f.consecutive[request] = 0
		return false
	}
	f.consecutive[request]++
	f.affected.Add(1)
	return true
}

// Serve responds to a request as the API server does, by calling carryOut, or injects the fault. A nil Fault
// injects nothing.
func (f *Fault) Serve(w http.ResponseWriter, r *http.Request, carryOut http.HandlerFunc) {
	if f.affects(r, Received(r)) {
		f.Respond(w, r, carryOut)
		return
	}
	carryOut(w, r)
}

// Counts returns the number of requests that were affected, and the number that the fault concerned.
func (f *Fault) Counts() (affected, eligible int64) { return f.affected.Load(), f.eligible.Load() }

// Before starts a server that injects the fault before the API server, and returns the configuration to connect
// to it. The server stops at the end of the test.
func (f *Fault) Before(t *testing.T, config *rest.Config) *rest.Config {
	t.Helper()
	proxy, err := Proxy(config)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.Serve(w, r, proxy.ServeHTTP) }))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // about aborted responses
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections() // watches do not terminate by themselves
		server.Close()
	})
	return &rest.Config{Host: server.URL, QPS: config.QPS, Burst: config.Burst, UserAgent: config.UserAgent}
}

// Proxy forwards to the API server of config, as its user.
func Proxy(config *rest.Config) (*httputil.ReverseProxy, error) {
	base, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	return &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(base) },
		Transport:     transport,
		FlushInterval: -1, // forward the events of a watch immediately
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}, nil
}

// AnyRequest is the Concerns function of a fault that can affect all requests.
func AnyRequest(*http.Request) bool { return true }

// Watched reports whether a request is a watch.
func Watched(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }

func notWatched(r *http.Request) bool { return !Watched(r) }

func written(r *http.Request) bool { return Verbs[r.Method] != "" }

func changed409(r *http.Request) bool {
	return r.Method == http.MethodPut || r.Method == http.MethodPatch
}

// late is much longer than a response takes, and shorter than a client waits.
const late = 500 * time.Millisecond

func respondLate(w http.ResponseWriter, r *http.Request, carryOut http.HandlerFunc) {
	carryOut(w, r)
	select {
	case <-time.After(late):
	case <-r.Context().Done():
	}
}

// respondTwice is a proxy that sends a request twice, as if it had missed the first response.
func respondTwice(w http.ResponseWriter, r *http.Request, carryOut http.HandlerFunc) {
	body := Received(r)
	again := r.Clone(r.Context())
	again.Body = io.NopCloser(bytes.NewReader(body))
	carryOut(httptest.NewRecorder(), r)
	carryOut(w, again)
}

func respondFailed(w http.ResponseWriter, r *http.Request, carryOut http.HandlerFunc) {
	carryOut(httptest.NewRecorder(), r)
	refuse(w, internal())
}

func respondTruncated(w http.ResponseWriter, r *http.Request, carryOut http.HandlerFunc) {
	whole := httptest.NewRecorder()
	carryOut(whole, r)
	maps.Copy(w.Header(), whole.Header())
	w.Header().Set("Content-Length", strconv.Itoa(whole.Body.Len()))
	w.WriteHeader(whole.Code)
	_, _ = w.Write(whole.Body.Bytes()[:whole.Body.Len()/2])
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

func conflict() *apierrors.StatusError {
	return apierrors.NewConflict(schema.GroupResource{Resource: "objects"}, "it", errors.New("the object has been modified"))
}

func tooMany() *apierrors.StatusError { return apierrors.NewTooManyRequests("try again", 1) }

func internal() *apierrors.StatusError {
	return apierrors.NewInternalError(errors.New("etcdserver: request timed out"))
}

func refuseWith(failure func() *apierrors.StatusError) func(http.ResponseWriter, *http.Request, http.HandlerFunc) {
	return func(w http.ResponseWriter, _ *http.Request, _ http.HandlerFunc) { refuse(w, failure()) }
}

func refuse(w http.ResponseWriter, failure *apierrors.StatusError) {
	status := failure.Status()
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status) // the client handles a lost response
}

func respondGone(w http.ResponseWriter, _ *http.Request, _ http.HandlerFunc) {
	w.Header().Set("Content-Type", "application/json")
	gone := apierrors.NewResourceExpired("the requested history has been compacted").Status()
	_ = json.NewEncoder(w).Encode(map[string]any{"type": "ERROR", "object": gone})
}

// watchCutter terminates watches after a number of bytes. The number grows each time, so that a watch eventually
// delivers everything.
type watchCutter struct{ bytes atomic.Int64 }

func newWatchCutter() *watchCutter { return &watchCutter{} }

// moreBytes is how many more bytes each watch delivers than the last one. It is not a multiple of the length of
// an event.
const moreBytes = 1021

func (c *watchCutter) response(w http.ResponseWriter, r *http.Request, carryOut http.HandlerFunc) {
	carryOut(&limited{ResponseWriter: w, left: c.bytes.Add(moreBytes)}, r)
}

// limited is a response that breaks off after a number of bytes.
type limited struct {
	http.ResponseWriter
	left int64
}

// Unwrap makes Flush available, so that events are forwarded immediately.
func (l *limited) Unwrap() http.ResponseWriter { return l.ResponseWriter }

func (l *limited) Write(text []byte) (int, error) {
	n, err := l.ResponseWriter.Write(text[:min(int64(len(text)), l.left)])
	l.left -= int64(n)
	if l.left <= 0 {
		_ = http.NewResponseController(l.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// oldLists imitates an API server without streaming lists, as before Kubernetes 1.32, that responds to a list at
// any revision (resourceVersion=0) with the first list that it has seen.
type oldLists struct {
	mu    sync.Mutex
	first map[string]*httptest.ResponseRecorder
}

func newOldLists() *oldLists { return &oldLists{first: map[string]*httptest.ResponseRecorder{}} }

func (o *oldLists) response(w http.ResponseWriter, r *http.Request, carryOut http.HandlerFunc) {
	query := r.URL.Query()
	switch {
	case query.Get("sendInitialEvents") != "":
		refuse(w, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", nil))
	case r.Method == http.MethodGet && query.Get("resourceVersion") == "0" && !Watched(r):
		o.list(r, carryOut, w)
	default:
		carryOut(w, r)
	}
}

func (o *oldLists) list(r *http.Request, carryOut http.HandlerFunc, w http.ResponseWriter) {
	o.mu.Lock()
	defer o.mu.Unlock()
	first, known := o.first[r.URL.Path]
	if !known {
		first = httptest.NewRecorder()
		carryOut(first, r)
		o.first[r.URL.Path] = first
	}
	maps.Copy(w.Header(), first.Header())
	w.WriteHeader(first.Code)
	_, _ = w.Write(first.Body.Bytes())
}

// Verbs returns the verb of each write method.
var Verbs = map[string]string{
	http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
}

// Received reads the body of a request, and restores it.
func Received(r *http.Request) []byte {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body
}

// ObjectOf returns the object that a write is about, as the resource with its subresource, and the name. It
// parses the path, or the body of a create request.
func ObjectOf(path string, body []byte) (resource, name string) {
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
	_ = json.Unmarshal(body, &object) // an invalid body has no name
	return resource, object.Metadata.Name
}
