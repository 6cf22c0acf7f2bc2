package takeover

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// gate lets requests of our manager through, but for those that a test wants to stop at: a
// manager that dies before a write leaves behind what is there then.
type gate struct {
	mu    sync.Mutex
	stops []*stop
}

// stop is a place at which a manager is stopped.
type stop struct {
	verb, before, after string
	names               []string
	// says is a word that the body contains; empty for any body.
	says string
	// at gets the name of the object of each request that is held.
	at chan string
	// open is closed when they may go on.
	open chan struct{}
}

// before stops the manager before its next requests with that verb to an object with one of
// the names; a request's path ends in the name with what comes before and after it. What was
// stopped earlier goes on.
func (g *gate) before(verb, before, after string, names ...string) *stop {
	next := newStop(verb, before, after, names...)
	g.replace(next)
	return next
}

func newStop(verb, before, after string, names ...string) *stop {
	return &stop{verb: verb, before: before, after: after, names: names, at: make(chan string, 16), open: make(chan struct{})}
}

// beforeWords stops the manager before patches of objects whose paths end in one of these ways, with a body
// that has the word.
func (g *gate) beforeWords(word map[string]string) {
	var stops []*stop
	for _, path := range slices.Sorted(maps.Keys(word)) {
		next := newStop("PATCH", "/", "", path)
		next.says = word[path]
		stops = append(stops, next)
	}
	g.replace(stops...)
}

// goOn lets everything through again.
func (g *gate) goOn() { g.replace() }

func (g *gate) replace(next ...*stop) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, stop := range g.stops {
		close(stop.open)
	}
	g.stops = next
}

// reached waits until the manager is there, and tells with which object.
func (s *stop) reached(t *testing.T) string {
	t.Helper()
	select {
	case name := <-s.at:
		return name
	case <-time.After(waitTimeout):
		t.Fatalf("no %s of %s…%s for any of %q", s.verb, s.before, s.after, s.names)
		return ""
	}
}

// name is that of the object that the request is about; empty if it may pass.
func (s *stop) name(r *http.Request) string {
	for _, name := range s.names {
		if r.Method == s.verb && strings.HasSuffix(r.URL.Path, s.before+name+s.after) && s.said(r) {
			return name
		}
	}
	return ""
}

// said reports whether the body of a request has the word.
func (s *stop) said(r *http.Request) bool {
	if s.says == "" || r.GetBody == nil {
		return s.says == ""
	}
	body, err := r.GetBody()
	if err != nil {
		return false
	}
	content, err := io.ReadAll(body)
	return err == nil && strings.Contains(string(content), s.says)
}

// around is for the transport of a client.
func (g *gate) around(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		g.mu.Lock()
		at := slices.IndexFunc(g.stops, func(stop *stop) bool { return stop.name(r) != "" })
		if at < 0 {
			g.mu.Unlock()
			return next.RoundTrip(r)
		}
		stop := g.stops[at]
		g.mu.Unlock()
		stop.at <- stop.name(r)
		select {
		case <-stop.open:
			return next.RoundTrip(r)
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
