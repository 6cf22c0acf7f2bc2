package manager

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/relist"
	"github.com/millwright-dev/millwright/test/support/env"
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

// listing is a newInformer whose informers request lists, as from API servers that do not support streaming lists.
func listing(from toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	from = toolscache.ToListWatcherWithWatchListSemantics(from.(*toolscache.ListWatch), noStreams{})
	return toolscache.NewSharedIndexInformer(from, object, resync, indexers)
}

type noStreams struct{}

func (noStreams) IsWatchListSemanticsUnSupported() bool { return true }

// restoredCaches are caches of the ConfigMaps of a cluster that is restored.
type restoredCaches struct {
	*testing.T
	*env.Env
	all map[string]cache.Cache
}

// add starts a cache.
func (c *restoredCaches) add(name string, made newInformer) {
	c.Helper()
	added, err := cache.New(relist.Config(c.Admin), cache.Options{NewInformer: made})
	if err != nil {
		c.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- added.Start(ctx) }()
	c.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			c.Error(err)
		}
	})
	c.all[name] = added
}

func (c *restoredCaches) create(name string) {
	c.Helper()
	if err := c.Client.Create(c.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: name}}); err != nil {
		c.Fatal(err)
	}
}

// await waits until caches contain the given ConfigMaps and no others.
func (c *restoredCaches) await(caches []string, want ...string) {
	c.Helper()
	gomega.NewWithT(c.T).Eventually(func(g gomega.Gomega) {
		for _, name := range caches {
			list, found := &corev1.ConfigMapList{}, []string{}
			g.Expect(c.all[name].List(c.Context(), list, client.InNamespace(c.Namespace))).To(gomega.Succeed())
			for i := range list.Items {
				found = append(found, list.Items[i].Name)
			}
			g.Expect(found).To(gomega.ConsistOf(want), name)
		}
	}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
}

// TestCache_ListsAgainAfterOutage restores an API server from a backup while caches watch it. Caches of a target must then
// contain the objects of the API server, although they had newer versions, and must continue to watch it. Caches of the control
// cluster must keep their objects, and stop the manager.
func TestCache_ListsAgainAfterOutage(t *testing.T) {
	t.Parallel()
	c := &restoredCaches{T: t, Env: env.New(t, env.WithOwn()), all: map[string]cache.Cache{}}
	stopped := map[string]chan struct{}{}
	for name, made := range map[string]newInformer{"streams": toolscache.NewSharedIndexInformer, "lists": listing} {
		c.add(name, withLists(made, consistent))
		done := make(chan struct{})
		stopped[name+" of the control cluster"] = done
		c.add(name+" of the control cluster", withLists(unlessRestored(made, sync.OnceFunc(func() { close(done) })), consistent))
	}
	targets, all := []string{"streams", "lists"}, slices.Collect(maps.Keys(c.all))

	c.create("kept")
	c.await(all, "kept")
	restore := c.Backup(t)
	c.Advance(t)
	c.create("lost")
	c.await(all, "kept", "lost")
	restore(false)
	c.await(targets, "kept")
	c.create("new")
	c.await(targets, "kept", "new")
	for name, done := range stopped {
		select {
		case <-done:
		case <-time.After(env.WaitTimeout):
			t.Errorf("the cache of %s does not stop the manager", name)
		}
		c.await([]string{name}, "kept", "lost")
	}
}

// TestCache_RestoredWithHigherVersions checks that caches of the control cluster also stop the manager if resource versions are
// higher after a restore than before. In this case, only the versions of objects show the restore.
func TestCache_RestoredWithHigherVersions(t *testing.T) {
	t.Parallel()
	c := &restoredCaches{T: t, Env: env.New(t, env.WithOwn()), all: map[string]cache.Cache{}}
	stopped := map[string]chan struct{}{"streams": make(chan struct{}), "lists": make(chan struct{})}
	for name, made := range map[string]newInformer{"streams": toolscache.NewSharedIndexInformer, "lists": listing} {
		c.add(name, withLists(unlessRestored(made, sync.OnceFunc(func() { close(stopped[name]) })), consistent))
	}
	all := slices.Collect(maps.Keys(c.all))
	awaitKept := func(data map[string]string) {
		c.Helper()
		gomega.NewWithT(t).Eventually(func(g gomega.Gomega) {
			for _, name := range all {
				kept := &corev1.ConfigMap{}
				g.Expect(c.all[name].Get(t.Context(), client.ObjectKey{Namespace: c.Namespace, Name: "kept"}, kept)).To(gomega.Succeed())
				g.Expect(kept.Data).To(gomega.Equal(data), name)
			}
		}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
	}

	c.create("kept")
	c.await(all, "kept")
	restore := c.Backup(t)
	changed := map[string]string{"changed": "after the backup"}
	if err := c.Client.Update(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "kept"}, Data: changed}); err != nil {
		t.Fatal(err)
	}
	awaitKept(changed)
	restore(true)
	for name, done := range stopped {
		select {
		case <-done:
		case <-time.After(env.WaitTimeout):
			t.Errorf("the cache of %s does not stop the manager", name)
		}
	}
	awaitKept(changed)
}

// TestCache_OutageWithoutRestore checks that caches of the control cluster do not stop the manager when the API server is only
// restarted.
func TestCache_OutageWithoutRestore(t *testing.T) {
	t.Parallel()
	c := &restoredCaches{T: t, Env: env.New(t, env.WithOwn()), all: map[string]cache.Cache{}}
	for name, made := range map[string]newInformer{"streams": toolscache.NewSharedIndexInformer, "lists": listing} {
		c.add(name, withLists(unlessRestored(made, func() { t.Errorf("%s: restored", name) }), consistent))
	}
	all := slices.Collect(maps.Keys(c.all))
	c.create("before")
	c.await(all, "before")
	c.RestartAPIServer(t)
	c.create("after")
	c.await(all, "before", "after")
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
