package sharedcache

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/support/env"
)

func TestMain(m *testing.M) { env.Main(m) }

func object(namespace, name, version string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), ResourceVersion: version}}
}

func TestView_IsFresh(t *testing.T) {
	stored := func(version string, items ...*corev1.Secret) *metav1.PartialObjectMetadataList {
		list := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: version}}
		for _, item := range items {
			list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: item.ObjectMeta})
		}
		return list
	}
	tests := map[string]struct {
		cached []any
		stored *metav1.PartialObjectMetadataList
		want   bool
	}{
		"nothing":                     {stored: stored("9"), want: true},
		"the same":                    {[]any{object("n", "a", "5")}, stored("9", object("n", "a", "5")), true},
		"an older version":            {[]any{object("n", "a", "5")}, stored("9", object("n", "a", "7")), false},
		"a newer version":             {[]any{object("n", "a", "10")}, stored("10", object("n", "a", "9")), true},
		"not seen yet":                {nil, stored("9", object("n", "a", "5")), false},
		"its deletion is not seen":    {[]any{object("n", "a", "5")}, stored("9"), false},
		"created after the list":      {[]any{object("n", "a", "10")}, stored("9"), true},
		"another object of that name": {[]any{&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "other", ResourceVersion: "5"}}}, stored("9", object("n", "a", "7")), false},
	}
	for name, test := range tests {
		if got := newerThan(test.cached, test.stored); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// events records the names of the objects of events.
type events struct{ added, changed, deleted []string }

func (e *events) OnAdd(o any, _ bool) { e.added = append(e.added, o.(*corev1.Secret).Name) }
func (e *events) OnUpdate(_, o any)   { e.changed = append(e.changed, o.(*corev1.Secret).Name) }
func (e *events) OnDelete(o any)      { e.deleted = append(e.deleted, o.(*corev1.Secret).Name) }
func (e *events) is(a, c, d int) bool {
	return len(e.added) == a && len(e.changed) == c && len(e.deleted) == d
}
func neverFails(t *testing.T) func(any) { return func(value any) { t.Errorf("panic: %v", value) } }

// TestFeed_PassesEventsByNamespace checks that a handler receives the known objects of its namespace, then the events of its
// namespace, and none after it was removed.
func TestFeed_PassesEventsByNamespace(t *testing.T) {
	f := newFeed()
	f.OnAdd(object("a", "1", "1"), true)
	f.OnAdd(object("b", "2", "2"), true)
	f.OnAdd(object("a", "3", "3"), false)
	f.OnDelete(object("a", "3", "4"))
	ofA, ofB := &events{}, &events{}
	a := f.handler("a", ofA, neverFails(t))
	if a.HasSynced() || len(ofA.added) != 0 {
		t.Error("synced before it begins")
	}
	a.begin()
	f.handler("b", ofB, neverFails(t)).begin()
	if !a.HasSynced() {
		t.Error("not synced although it received the known objects")
	}
	if !slices.Equal(ofA.added, []string{"1"}) || !slices.Equal(ofB.added, []string{"2"}) {
		t.Errorf("known objects: %v and %v", ofA.added, ofB.added)
	}
	f.OnUpdate(object("a", "1", "1"), object("a", "1", "5"))
	f.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "c/9", Obj: object("c", "9", "5")})
	if !ofA.is(1, 1, 0) || !ofB.is(1, 0, 0) {
		t.Errorf("events %+v and %+v", ofA, ofB)
	}
	a.remove()
	a.remove()
	f.OnDelete(object("a", "1", "6"))
	f.OnDelete(object("b", "2", "7"))
	if !ofA.is(1, 1, 0) || !ofB.is(1, 0, 1) {
		t.Errorf("events after the removal: %+v and %+v", ofA, ofB)
	}
	if len(f.known) != 0 || len(f.handlers) != 1 {
		t.Errorf("%d namespaces and %d lists of handlers are left", len(f.known), len(f.handlers))
	}
	late := f.handler("b", &events{}, neverFails(t))
	late.remove()
	late.begin()
	if len(f.handlers["b"]) != 1 {
		t.Error("a removed handler begins")
	}
}

// TestFeed_ContainsPanics checks that a panic of one handler is reported and does not stop the events of others.
func TestFeed_ContainsPanics(t *testing.T) {
	f, failed := newFeed(), 0
	f.handler("a", toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { panic("bug") }}, func(any) { failed++ }).begin()
	other := &events{}
	f.handler("a", other, neverFails(t)).begin()
	f.OnAdd(object("a", "1", "1"), false)
	if failed != 1 || !other.is(1, 0, 0) {
		t.Errorf("%d failures, events of the other handler: %+v", failed, other)
	}
}

// fixed is a cache with one informer. Its lists are empty.
type fixed struct {
	cache.Cache
	informer toolscache.SharedIndexInformer
}

func (f fixed) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return f.informer, nil
}

func (fixed) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// TestView_HandlersDoNotBlockOtherViews checks that a handler that reads its view does not hold up the events of other views
// while its own view is not ready.
func TestView_HandlersDoNotBlockOtherViews(t *testing.T) {
	leads, f, ctx := make(chan struct{}), newFeed(), t.Context()
	close(leads)
	view := New(Options{All: fixed{}}).View("a", leads, neverFails(t))
	f.OnAdd(object("a", "1", "1"), true)
	reads, other := make(chan error, 1), &events{}
	f.handler("b", other, neverFails(t)).begin()
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		_, err := (&informer{view: view, events: f}).AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) {
			reads <- view.List(ctx, &corev1.SecretList{})
		}})
		if err != nil {
			t.Error(err)
		}
		f.OnAdd(object("b", "2", "2"), false)
	}()
	await(t, passed, "the event of another view is passed")
	if !other.is(1, 0, 0) {
		t.Errorf("events of the other view: %+v", other)
	}
	go func() { _ = view.Start(ctx) }()
	if err := <-reads; err != nil {
		t.Errorf("the handler reads: %v", err)
	}
}

// churning lists an object that is deleted before anyone sees it, each time another one.
type churning struct {
	client.Reader
	count int
}

func (c *churning) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	c.count++
	stored := list.(*metav1.PartialObjectMetadataList)
	stored.ResourceVersion = strconv.Itoa(10 * c.count)
	stored.Items = []metav1.PartialObjectMetadata{{ObjectMeta: object("a", "lasts", "5").ObjectMeta}, {ObjectMeta: object("a", stored.ResourceVersion, "9").ObjectMeta}}
	return nil
}

// TestView_IsFreshAlthoughObjectsChange checks that a view becomes fresh although objects are created and deleted all the
// time, and not before it contains those that exist.
func TestView_IsFreshAlthoughObjectsChange(t *testing.T) {
	secrets := toolscache.NewSharedIndexInformer(nil, &corev1.Secret{}, 0, toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc})
	view := New(Options{All: fixed{informer: secrets}, Live: &churning{}, Scheme: env.NewScheme()}).View("a", nil, neverFails(t))
	var needed *metav1.PartialObjectMetadataList
	for range 3 {
		if view.isFresh(t.Context(), &corev1.Secret{}, &needed) {
			t.Fatal("fresh without an object that exists")
		}
	}
	if err := secrets.GetIndexer().Add(object("a", "lasts", "5")); err != nil {
		t.Fatal(err)
	}
	if !view.isFresh(t.Context(), &corev1.Secret{}, &needed) {
		t.Error("never fresh because other objects change")
	}
}

func await(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(env.WaitTimeout):
		t.Fatalf("waited too long: %s", what)
	}
}

// createSecrets creates a number of Secrets in each namespace.
func createSecrets(t *testing.T, c client.Client, count int, namespaces ...string) {
	t.Helper()
	for range count {
		for _, namespace := range namespaces {
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "s-"}}
			if err := c.Create(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// wantSecrets checks how many Secrets a view contains, and that another namespace cannot be read.
func wantSecrets(t *testing.T, view *View, count int, other string) {
	t.Helper()
	list := &corev1.SecretList{}
	if err := view.List(t.Context(), list); err != nil || len(list.Items) != count {
		t.Errorf("%d Secrets, %v", len(list.Items), err)
	}
	if err := view.List(t.Context(), list, client.InNamespace(other)); err == nil {
		t.Error("lists another namespace")
	}
	if err := view.Get(t.Context(), client.ObjectKey{Namespace: other, Name: "x"}, &corev1.Secret{}); err == nil || client.IgnoreNotFound(err) == nil {
		t.Errorf("reading another namespace: %v", err)
	}
}

// TestView_ContainsWhatEarlierLeadersWrote checks that a view cannot be read before its manager leads, then contains everything
// that was written before that, and is limited to its namespace.
func TestView_ContainsWhatEarlierLeadersWrote(t *testing.T) {
	e, other := env.New(t), env.New(t)
	all, err := cache.New(e.Admin, cache.Options{Scheme: env.NewScheme()})
	if err != nil {
		t.Fatal(err)
	}
	shared := New(Options{All: all, Live: e.Client, Scheme: env.NewScheme(), Kinds: []client.Object{&corev1.Secret{}}})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { _ = all.Start(ctx) }()
	leads := make(chan struct{})
	view := shared.View(e.Namespace, leads, neverFails(t))
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = view.Start(ctx) }()
	var early *cache.ErrCacheNotStarted
	if err := view.List(ctx, &corev1.SecretList{}); !errors.As(err, &early) || !view.WaitForCacheSync(ctx) {
		t.Errorf("before it leads: %v", err)
	}
	if _, err := all.GetInformer(ctx, &corev1.Secret{}); err != nil { // the cache is filled long before
		t.Fatal(err)
	}
	const count = 20
	createSecrets(t, e.Client, count, e.Namespace, other.Namespace)
	close(leads)
	wantSecrets(t, view, count, other.Namespace)
	informer, err := view.GetInformer(ctx, &corev1.Secret{})
	if err != nil {
		t.Fatal(err)
	}
	handler, err := informer.AddEventHandler(&events{})
	if err != nil {
		t.Fatal(err)
	}
	await(t, handler.HasSyncedChecker().Done(), "the handler receives the known objects")
	stop()
	await(t, stopped, "the view stops")
	for _, f := range shared.feeds {
		if len(f.handlers) != 0 {
			t.Error("a handler of the stopped view is left")
		}
	}
}
