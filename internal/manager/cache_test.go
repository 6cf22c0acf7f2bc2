package manager

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestCache_FirstListIsConsistent checks that the first list does not accept any version that the API server
// happens to have cached. Later lists continue from the known version.
func TestCache_FirstListIsConsistent(t *testing.T) {
	t.Parallel()
	for asked, want := range map[string]string{"0": "", "": "", "17": "17"} {
		var got []string
		from := &toolscache.ListWatch{ListWithContextFunc: func(_ context.Context, options metav1.ListOptions) (runtime.Object, error) {
			got = append(got, options.ResourceVersion)
			return &v1alpha1.MachineList{}, nil
		}}
		var made toolscache.ListerWatcher
		withLists(func(from toolscache.ListerWatcher, _ runtime.Object, _ time.Duration, _ toolscache.Indexers) toolscache.SharedIndexInformer {
			made = from
			return nil
		}, consistent)(from, &v1alpha1.Machine{}, 0, nil)
		if _, err := made.(toolscache.ListerWithContext).ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: asked}); err != nil {
			t.Fatal(err)
		}
		if len(got) != 1 || got[0] != want {
			t.Errorf("a list from version %q asks the API server for %q", asked, got)
		}
	}
}

// startingCache is a cache that records when it is started and contains one object.
type startingCache struct {
	cache.Cache
	started chan struct{}
}

func (c *startingCache) Start(ctx context.Context) error {
	close(c.started)
	<-ctx.Done()
	return nil
}

func (c *startingCache) WaitForCacheSync(ctx context.Context) bool {
	select {
	case <-c.started:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *startingCache) read() error {
	select {
	case <-c.started:
		return nil
	default:
		return &cache.ErrCacheNotStarted{}
	}
}

func (c *startingCache) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return c.read()
}

func (c *startingCache) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return c.read()
}

// TestCache_StartsWithLeadership checks that a standby manager does not wait for its cache, and that early
// reads block until the cache has started.
func TestCache_StartsWithLeadership(t *testing.T) {
	t.Parallel()
	leads, inner := make(chan struct{}), &startingCache{started: make(chan struct{})}
	c := &leaderCache{run: t.Context(), Cache: inner, leads: leads}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	if !c.WaitForCacheSync(ctx) {
		t.Error("a standby manager never takes part in the election")
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	var early *cache.ErrCacheNotStarted
	if err := c.Get(gone, client.ObjectKey{}, &v1alpha1.Machine{}); !errors.As(err, &early) {
		t.Errorf("a standby manager reads: %v", err)
	}
	reads := make(chan error, 2)
	go func() { reads <- c.Get(ctx, client.ObjectKey{}, &v1alpha1.Machine{}) }()
	go func() { reads <- c.List(ctx, &v1alpha1.MachineList{}) }()
	if err := inner.read(); err == nil {
		t.Error("the cache starts before the process leads")
	}
	close(leads)
	for range 2 {
		if err := <-reads; err != nil {
			t.Errorf("an early read fails: %v", err)
		}
	}
	if !c.WaitForCacheSync(ctx) {
		t.Error("the cache does not sync")
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Start returned %v", err)
	}
}

// TestCache_DoesNotStartWithoutLeadership checks that such a process terminates without having started its cache.
func TestCache_DoesNotStartWithoutLeadership(t *testing.T) {
	t.Parallel()
	inner := &startingCache{started: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := (&leaderCache{run: t.Context(), Cache: inner, leads: make(chan struct{})}).Start(ctx); err != nil || inner.read() == nil {
		t.Errorf("Start returned %v", err)
	}
}

// watchLog records how a manager begins to read the objects of a resource.
type watchLog struct {
	mu     sync.Mutex
	seen   []string
	plural string
}

// on returns a configuration whose requests are recorded.
func (l *watchLog) on(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &loggingTransport{log: l, next: next} })
	return config
}

type loggingTransport struct {
	log  *watchLog
	next http.RoundTripper
}

func (t *loggingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	t.log.note(r)
	return t.next.RoundTrip(r)
}

func (l *watchLog) note(r *http.Request) {
	path, query := r.URL.Path, r.URL.Query()
	if r.Method != http.MethodGet || len(path) < len(l.plural) || path[len(path)-len(l.plural):] != l.plural {
		return
	}
	how := "list from " + query.Get("resourceVersion")
	if query.Get("watch") == "true" {
		how = "watch from " + query.Get("resourceVersion")
	}
	if query.Get("sendInitialEvents") == "true" {
		how = "stream from " + query.Get("resourceVersion")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = append(l.seen, how)
}

// all returns what was recorded so far.
func (l *watchLog) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.seen...)
}

// wantNone checks that nothing was read.
func (l *watchLog) wantNone(t *testing.T) {
	t.Helper()
	if seen := l.all(); len(seen) > 0 {
		t.Errorf("a standby manager reads: %q", seen)
	}
}

// wantConsistent checks that the first list asked for the stored state, not for any version.
func (l *watchLog) wantConsistent(t *testing.T) {
	t.Helper()
	if seen := l.all(); len(seen) == 0 || seen[0] != "stream from " && seen[0] != "list from " {
		t.Errorf("the cache may be older than the leadership: %q", seen)
	}
}
