package drain_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
)

// gate holds back events in watches of Pods, and counts the lists of Pods of a single node.
type gate struct {
	mu    sync.Mutex
	open  chan struct{} // closed while no events are held back
	lists int
}

func newGate() *gate {
	s := &gate{open: make(chan struct{})}
	close(s.open)
	return s
}

func (s *gate) wrap(next http.RoundTripper) http.RoundTripper { return gated{s, next} }

// hold holds back all events until release is called.
func (s *gate) hold() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := make(chan struct{})
	s.open = open
	return sync.OnceFunc(func() { close(open) })
}

func (s *gate) listed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists
}

// gated is a round tripper with a gate.
type gated struct {
	*gate
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (s gated) RoundTrip(r *http.Request) (*http.Response, error) {
	pods := strings.HasSuffix(r.URL.Path, "/pods")
	watch := r.URL.Query().Get("watch") != ""
	if pods && !watch && r.Method == http.MethodGet {
		s.mu.Lock()
		s.lists++
		s.mu.Unlock()
	}
	response, err := s.next.RoundTrip(r)
	if err == nil && pods && watch {
		response.Body = &held{response.Body, s.gate}
	}
	return response, err
}

// held is the body of a watch.
type held struct {
	io.ReadCloser
	gate *gate
}

func (h *held) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	h.gate.mu.Lock()
	open := h.gate.open
	h.gate.mu.Unlock()
	<-open
	return n, err
}

func (h *harness) cordon() {
	h.t.Helper()
	node := &corev1.Node{}
	must(h.t, h.Client.Get(h.t.Context(), client.ObjectKey{Name: h.node}, node))
	must(h.t, h.Client.Patch(h.t.Context(), node, client.RawPatch(types.StrategicMergePatchType, []byte(`{"spec":{"unschedulable":true}}`))))
}

// TestDrain_WaitsForCacheToShowCordon checks that a Pod that was bound before the node was cordoned is evicted
// even if the cache shows it late. The API server is queried once, when the cache shows no Pods.
func TestDrain_WaitsForCacheToShowCordon(t *testing.T) {
	h := newHarness(t)
	h.kubelet(false)
	release := h.gate.hold()
	t.Cleanup(release)
	h.create(h.pod("late", 0))
	h.cordon()
	d, req := drain.New(h.opts), h.request()
	for range 2 {
		report, err := d.Drain(t.Context(), req)
		must(t, err)
		if report.Done {
			t.Fatal("the drain is done although a pod runs on the node")
		}
		if !waitsFor(drain.ForCache)(report) || report.Wait <= 0 {
			t.Fatalf("the drain does not wait for the cache: %+v", report)
		}
	}
	if got := h.gate.listed(); got != 1 {
		t.Errorf("%d requests by two passes, want 1", got)
	}
	release()
	report := h.drive(d, &req, done)
	if report.Force != drain.NotForced {
		t.Errorf("forced: %s", report.Force)
	}
	for range 2 {
		if _, err := d.Drain(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	if got := h.gate.listed(); got > 2 {
		t.Errorf("%d requests in total", got)
	}
}

// TestDrain_EmptyNodeNeedsOneRequest checks that each drain sends one request, and a forced drain none.
func TestDrain_EmptyNodeNeedsOneRequest(t *testing.T) {
	h := newHarness(t)
	h.cordon()
	for force, want := range map[drain.Force]int{drain.NotForced: 1, drain.ForceRequested: 0} {
		d, req, before := drain.New(h.opts), h.request(), h.gate.listed()
		req.Force = force
		for range 3 {
			report, err := d.Drain(t.Context(), req)
			must(t, err)
			if !report.Done {
				t.Fatalf("the drain of an empty node is not done: %+v", report)
			}
		}
		if got := h.gate.listed() - before; got != want {
			t.Errorf("forced: %q: %d requests, want %d", force, got, want)
		}
	}
}
