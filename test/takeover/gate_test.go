package takeover

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// gate lets requests of our manager through, but for one that a test wants to stop at: a
// manager that dies before a write leaves behind what is there then.
type gate struct {
	mu   sync.Mutex
	stop *stop
}

// stop is a place at which a manager is stopped.
type stop struct {
	verb, before, after string
	names               []string
	// at gets the name of the object of each request that is held.
	at chan string
	// open is closed when they may go on.
	open chan struct{}
}

// before stops the manager before its next requests with that verb to an object with one of
// the names; a request's path ends in the name with what comes before and after it. What was
// stopped earlier goes on.
func (g *gate) before(verb, before, after string, names ...string) *stop {
	next := &stop{verb, before, after, names, make(chan string, 16), make(chan struct{})}
	g.replace(next)
	return next
}

// goOn lets everything through again.
func (g *gate) goOn() { g.replace(nil) }

func (g *gate) replace(next *stop) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stop != nil {
		close(g.stop.open)
	}
	g.stop = next
}

// reached waits until the manager is there, and tells with which object.
func (s *stop) reached(t *testing.T) string {
	t.Helper()
	select {
	case name := <-s.at:
		return name
	case <-time.After(patience):
		t.Fatalf("no %s of %s…%s for any of %q", s.verb, s.before, s.after, s.names)
		return ""
	}
}

// name is that of the object that the request is about; empty if it may pass.
func (s *stop) name(r *http.Request) string {
	for _, name := range s.names {
		if r.Method == s.verb && strings.HasSuffix(r.URL.Path, s.before+name+s.after) {
			return name
		}
	}
	return ""
}

// around is for the transport of a client.
func (g *gate) around(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		g.mu.Lock()
		stop := g.stop
		g.mu.Unlock()
		if stop == nil || stop.name(r) == "" {
			return next.RoundTrip(r)
		}
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
