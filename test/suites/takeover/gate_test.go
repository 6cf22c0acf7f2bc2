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

// gate forwards the requests of our manager, except those at which a test stops it. A manager that crashes before
// a write leaves the state at that time.
type gate struct {
	mu    sync.Mutex
	stops []*stop
}

// stop is a request at which the manager is stopped.
type stop struct {
	verb, before, after string
	names               []string
	// wantText is a text that the body contains. If empty, any body matches.
	wantText string
	// at receives the name of the object of each blocked request.
	at chan string
	// open is closed when the requests may continue.
	open chan struct{}
}

// before stops the manager before its next requests with the verb for one of the objects. The path of a request
// ends with the name, including the given prefix and suffix. Earlier stops are removed.
func (g *gate) before(verb, before, after string, names ...string) *stop {
	next := newStop(verb, before, after, names...)
	g.replace(next)
	return next
}

func newStop(verb, before, after string, names ...string) *stop {
	return &stop{verb: verb, before: before, after: after, names: names, at: make(chan string, 16), open: make(chan struct{})}
}

// beforePatches stops the manager before patches of objects whose paths have one of these suffixes, and whose body
// contains the text.
func (g *gate) beforePatches(item map[string]string) {
	var stops []*stop
	for _, path := range slices.Sorted(maps.Keys(item)) {
		next := newStop("PATCH", "/", "", path)
		next.wantText = item[path]
		stops = append(stops, next)
	}
	g.replace(stops...)
}

// goOn removes all stops.
func (g *gate) goOn() { g.replace() }

func (g *gate) replace(next ...*stop) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, stop := range g.stops {
		close(stop.open)
	}
	g.stops = next
}

// reached waits until the manager is stopped, and returns the name of the object.
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

// name returns the name of the object of a request, or an empty string if the request may pass.
func (s *stop) name(r *http.Request) string {
	for _, name := range s.names {
		if r.Method == s.verb && strings.HasSuffix(r.URL.Path, s.before+name+s.after) && s.output(r) {
			return name
		}
	}
	return ""
}

// output reports whether the body of a request contains the text.
func (s *stop) output(r *http.Request) bool {
	if s.wantText == "" || r.GetBody == nil {
		return s.wantText == ""
	}
	body, err := r.GetBody()
	if err != nil {
		return false
	}
	content, err := io.ReadAll(body)
	return err == nil && strings.Contains(string(content), s.wantText)
}

// around wraps the transport of a client.
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
