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

// sluice holds back what the API server says in watches of pods, and counts the lists of pods of one
// node.
type sluice struct {
	mu    sync.Mutex
	open  chan struct{} // closed while nothing is held back
	lists int
}

func newSluice() *sluice {
	s := &sluice{open: make(chan struct{})}
	close(s.open)
	return s
}

func (s *sluice) wrap(next http.RoundTripper) http.RoundTripper { return sluiced{s, next} }

// hold holds back all events from now on, until release is called.
func (s *sluice) hold() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := make(chan struct{})
	s.open = open
	return sync.OnceFunc(func() { close(open) })
}

func (s *sluice) listed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists
}

// sluiced is a way to the API server through a sluice.
type sluiced struct {
	*sluice
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (s sluiced) RoundTrip(r *http.Request) (*http.Response, error) {
	pods := strings.HasSuffix(r.URL.Path, "/pods")
	watch := r.URL.Query().Get("watch") != ""
	if pods && !watch && r.Method == http.MethodGet {
		s.mu.Lock()
		s.lists++
		s.mu.Unlock()
	}
	response, err := s.next.RoundTrip(r)
	if err == nil && pods && watch {
		response.Body = &held{response.Body, s.sluice}
	}
	return response, err
}

// held is the body of a watch.
type held struct {
	io.ReadCloser
	sluice *sluice
}

func (h *held) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	h.sluice.mu.Lock()
	open := h.sluice.open
	h.sluice.mu.Unlock()
	<-open
	return n, err
}

func (h *harness) cordon() {
	h.t.Helper()
	node := &corev1.Node{}
	must(h.t, h.Client.Get(h.t.Context(), client.ObjectKey{Name: h.node}, node))
	must(h.t, h.Client.Patch(h.t.Context(), node, client.RawPatch(types.StrategicMergePatchType, []byte(`{"spec":{"unschedulable":true}}`))))
}

// TestCacheThatIsOlderThanTheCordon: a pod that was bound before the node was cordoned is evicted
// also if the cache of pods is late to show it. The API server is asked once, when the cache shows no
// pods.
func TestCacheThatIsOlderThanTheCordon(t *testing.T) {
	h := newHarness(t)
	h.kubelet(false)
	release := h.sluice.hold()
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
			t.Fatalf("it does not wait for the cache: %+v", report)
		}
	}
	if got := h.sluice.listed(); got != 1 {
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
	if got := h.sluice.listed(); got > 2 {
		t.Errorf("%d requests in all", got)
	}
}

// TestEmptyNodeCostsOneRequest: one question for each drain, and none for one that is forced.
func TestEmptyNodeCostsOneRequest(t *testing.T) {
	h := newHarness(t)
	h.cordon()
	for force, want := range map[drain.Force]int{drain.NotForced: 1, drain.ForceRequested: 0} {
		d, req, before := drain.New(h.opts), h.request(), h.sluice.listed()
		req.Force = force
		for range 3 {
			report, err := d.Drain(t.Context(), req)
			must(t, err)
			if !report.Done {
				t.Fatalf("an empty node is not: %+v", report)
			}
		}
		if got := h.sluice.listed() - before; got != want {
			t.Errorf("forced: %q: %d requests, want %d", force, got, want)
		}
	}
}
