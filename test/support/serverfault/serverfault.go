// Package serverfault has API servers, and the network before them, do something wrong with requests.
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

// Fault is what an API server, or the network before it, does to some requests.
type Fault struct {
	// Name is what the API server does.
	Name string
	// Every is how often: to the first of the requests that it concerns, and to one in so many of the others,
	// drawn by lot. In turn, it might always be the same one of a sequence that is tried again.
	Every int
	// Concerns reports whether it can happen to a request.
	Concerns func(*http.Request) bool
	// Answer answers instead of the API server. carryOut answers as the API server does.
	Answer func(w http.ResponseWriter, r *http.Request, carryOut http.HandlerFunc)
	// Killed has the manager killed once, so that another one begins under the fault.
	Killed bool

	mu     sync.Mutex
	random *rand.Rand
	// inARow is how often the same request was struck since it last was not.
	inARow map[string]int

	asked, struck atomic.Int64
}

// mostInARow is how often the same request is struck in a row. Managers wait twice as long after each
// failure, and tests do not wait for ever.
const mostInARow = 2

// All returns all faults, made anew since they count. The same requests, in the same order, meet
// the same faults for the same seed.
func All(seed uint64) []*Fault {
	all := []*Fault{
		{Name: "answers half a second late", Every: 3, Concerns: notWatched, Answer: answerLate},
		{Name: "carries each write out twice, and answers to the second", Every: 1, Concerns: written, Answer: answerSecond},
		{Name: "answers 409 Conflict to updates and patches", Every: 3, Concerns: changed409, Answer: refuseWith(conflict)},
		{Name: "answers 429 Too Many Requests", Every: 4, Concerns: notWatched, Answer: refuseWith(tooMany)},
		{Name: "answers 500, and does nothing", Every: 3, Concerns: notWatched, Answer: refuseWith(internal)},
		{Name: "answers 500 to what it does", Every: 3, Concerns: written, Answer: answerFailed},
		{Name: "answers with half a body", Every: 3, Concerns: notWatched, Answer: answerHalf},
		{Name: "ends watches in the middle of an event", Every: 1, Concerns: Watched, Answer: newWatchCutter().answer},
		{Name: "ends watches with 410 Gone, as after a compaction", Every: 2, Concerns: Watched, Answer: answerGone},
		{Name: "lists from an old revision where it may", Every: 1, Concerns: AnyRequest, Answer: newOldLists().answer, Killed: true},
	}
	for i, fault := range all {
		fault.random, fault.inARow = rand.New(rand.NewPCG(seed, uint64(i))), map[string]int{}
	}
	return all
}

// strikes reports whether the fault happens to a request with that body, and counts it.
func (f *Fault) strikes(r *http.Request, body []byte) bool {
	if f == nil || !f.Concerns(r) {
		return false
	}
	first := f.asked.Add(1) == 1
	if f.Every == 1 {
		f.struck.Add(1)
		return true
	}
	_, name := ObjectOf(r.URL.Path, body)
	request := r.Method + r.URL.Path + " " + name
	f.mu.Lock()
	defer f.mu.Unlock()
	if !first && (f.random.IntN(f.Every) != 0 || f.inARow[request] == mostInARow) {
		f.inARow[request] = 0
		return false
	}
	f.inARow[request]++
	f.struck.Add(1)
	return true
}

// Serve answers a request as the API server does, by carryOut, or does something wrong with it. A nil Fault does
// nothing wrong.
func (f *Fault) Serve(w http.ResponseWriter, r *http.Request, carryOut http.HandlerFunc) {
	if f.strikes(r, Received(r)) {
		f.Answer(w, r, carryOut)
		return
	}
	carryOut(w, r)
}

// Struck returns to how many requests the fault happened, and how many it concerned.
func (f *Fault) Struck() (struck, asked int64) { return f.struck.Load(), f.asked.Load() }

// Before starts a server that ends with the test, and returns how to reach the API server by way of it, under the
// fault.
func (f *Fault) Before(t *testing.T, config *rest.Config) *rest.Config {
	t.Helper()
	proxy, err := Proxy(config)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.Serve(w, r, proxy.ServeHTTP) }))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of answers that are aborted
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections() // watches do not end by themselves
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
		FlushInterval: -1, // the events of a watch at once
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}, nil
}

// AnyRequest is the one that a fault concerns that happens to all.
func AnyRequest(*http.Request) bool { return true }

// Watched reports whether a request is a watch.
func Watched(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }

func notWatched(r *http.Request) bool { return !Watched(r) }

func written(r *http.Request) bool { return Verbs[r.Method] != "" }

func changed409(r *http.Request) bool {
	return r.Method == http.MethodPut || r.Method == http.MethodPatch
}

// late is far more than an answer takes, and less than a client waits.
const late = 500 * time.Millisecond

func answerLate(w http.ResponseWriter, r *http.Request, carryOut http.HandlerFunc) {
	carryOut(w, r)
	select {
	case <-time.After(late):
	case <-r.Context().Done():
	}
}

// answerSecond is a proxy that sends a request again, since it missed the first answer.
func answerSecond(w http.ResponseWriter, r *http.Request, carryOut http.HandlerFunc) {
	body := Received(r)
	again := r.Clone(r.Context())
	again.Body = io.NopCloser(bytes.NewReader(body))
	carryOut(httptest.NewRecorder(), r)
	carryOut(w, again)
}

func answerFailed(w http.ResponseWriter, r *http.Request, carryOut http.HandlerFunc) {
	carryOut(httptest.NewRecorder(), r)
	refuse(w, internal())
}

func answerHalf(w http.ResponseWriter, r *http.Request, carryOut http.HandlerFunc) {
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
	_ = json.NewEncoder(w).Encode(status) // the client's loss
}

func answerGone(w http.ResponseWriter, _ *http.Request, _ http.HandlerFunc) {
	w.Header().Set("Content-Type", "application/json")
	gone := apierrors.NewResourceExpired("the requested history has been compacted").Status()
	_ = json.NewEncoder(w).Encode(map[string]any{"type": "ERROR", "object": gone})
}

// watchCutter ends watches after some bytes: after more each time, so that what is watched is
// known in the end.
type watchCutter struct{ bytes atomic.Int64 }

func newWatchCutter() *watchCutter { return &watchCutter{} }

// moreBytes is how much more than the last one a watch lets through. It is no multiple of the
// length of an event.
const moreBytes = 1021

func (c *watchCutter) answer(w http.ResponseWriter, r *http.Request, carryOut http.HandlerFunc) {
	carryOut(&limited{ResponseWriter: w, left: c.bytes.Add(moreBytes)}, r)
}

// limited is an answer that ends after some bytes.
type limited struct {
	http.ResponseWriter
	left int64
}

// Unwrap lets the events through at once.
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

// oldLists is an API server that does not know lists by watch, as before Kubernetes 1.32, and
// that answers a list of any revision, which resourceVersion=0 asks for, with the first one
// that it knows.
type oldLists struct {
	mu    sync.Mutex
	first map[string]*httptest.ResponseRecorder
}

func newOldLists() *oldLists { return &oldLists{first: map[string]*httptest.ResponseRecorder{}} }

func (o *oldLists) answer(w http.ResponseWriter, r *http.Request, carryOut http.HandlerFunc) {
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

// Verbs are those of what is written.
var Verbs = map[string]string{
	http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
}

// Received reads the body of a request, and leaves it there.
func Received(r *http.Request) []byte {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client's end
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body
}

// ObjectOf reads which object a write is about from its path, or its body if it is being
// created: resource with subresource, and name.
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
	_ = json.Unmarshal(body, &object) // what cannot be read has no name
	return resource, object.Metadata.Name
}
