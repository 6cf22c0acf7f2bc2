package crash

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// serverFault is what an API server, or the network before it, does to some requests of a
// manager.
type serverFault struct {
	// name is what the API server does.
	name string
	// every is how often: to one in so many of the requests that it concerns, drawn by lot. In turn,
	// it might always be the same one of a sequence that is tried again.
	every int
	// concerns reports whether it can happen to a request.
	concerns func(*http.Request) bool
	// answer answers instead of the API server. carryOut answers as the API server does.
	answer func(w http.ResponseWriter, r *http.Request, carryOut http.HandlerFunc)
	// killed has the manager killed once, so that another one begins under the fault.
	killed bool

	mu     sync.Mutex
	random *rand.Rand
	// inARow is how often the same request was struck since it last was not.
	inARow map[string]int

	asked, struck atomic.Int64
}

// mostInARow is how often the same request is struck in a row. Managers wait twice as long after each
// failure, and tests do not wait for ever.
const mostInARow = 2

// serverFaults are all of them, made anew since they count. The same requests, in the same order, meet
// the same faults for the same seed.
func serverFaults(seed uint64) []*serverFault {
	all := []*serverFault{
		{name: "answers half a second late", every: 3, concerns: notWatched, answer: answerLate},
		{name: "carries each write out twice, and answers to the second", every: 1, concerns: written, answer: answerSecond},
		{name: "answers 409 Conflict to updates and patches", every: 3, concerns: changed409, answer: refuseWith(conflict)},
		{name: "answers 429 Too Many Requests", every: 4, concerns: notWatched, answer: refuseWith(tooMany)},
		{name: "answers 500, and does nothing", every: 3, concerns: notWatched, answer: refuseWith(internal)},
		{name: "answers 500 to what it does", every: 3, concerns: written, answer: answerFailed},
		{name: "answers with half a body", every: 3, concerns: notWatched, answer: answerHalf},
		{name: "ends watches in the middle of an event", every: 1, concerns: watched, answer: newWatchCutter().answer},
		{name: "ends watches with 410 Gone, as after a compaction", every: 2, concerns: watched, answer: answerGone},
		{name: "lists from an old revision where it may", every: 1, concerns: anyRequest, answer: newOldLists().answer, killed: true},
	}
	for i, fault := range all {
		fault.random, fault.inARow = rand.New(rand.NewPCG(seed, uint64(i))), map[string]int{}
	}
	return all
}

// strikes reports whether the fault happens to a request with that body, and counts it.
func (f *serverFault) strikes(r *http.Request, body []byte) bool {
	if f == nil || !f.concerns(r) {
		return false
	}
	f.asked.Add(1)
	if f.every == 1 {
		f.struck.Add(1)
		return true
	}
	_, name := objectOf(r.URL.Path, body)
	request := r.Method + r.URL.Path + " " + name
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.random.IntN(f.every) != 0 || f.inARow[request] == mostInARow {
		f.inARow[request] = 0
		return false
	}
	f.inARow[request]++
	f.struck.Add(1)
	return true
}

func anyRequest(*http.Request) bool { return true }

func watched(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }

func notWatched(r *http.Request) bool { return !watched(r) }

func written(r *http.Request) bool { return verbs[r.Method] != "" }

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
	body := received(r)
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
	_ = json.NewEncoder(w).Encode(status) // the manager's loss
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
	case r.Method == http.MethodGet && query.Get("resourceVersion") == "0" && !watched(r):
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
