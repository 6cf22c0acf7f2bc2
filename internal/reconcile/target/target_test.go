package target_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/target"
)

// waitTimeout is how long a test waits for something that normally takes one or two seconds.
const waitTimeout = 2 * time.Minute

// server implements as much of an API server as a cache of nodes needs, with one node. It is unavailable until
// it is opened.
type server struct {
	*httptest.Server
	open     atomic.Bool
	requests atomic.Int32
	secrets  atomic.Int32
	// hidden rejects requests for Pods, podLists counts their lists, and podWatches the watches that are open.
	hidden               atomic.Bool
	podLists, podWatches atomic.Int32
}

func newServer(t *testing.T) *server {
	s := &server{}
	mux := http.NewServeMux()
	mux.HandleFunc("/api", reply(metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}))
	mux.HandleFunc("/apis", reply(metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}))
	mux.HandleFunc("/api/v1", reply(metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1",
		APIResources: []metav1.APIResource{
			{Name: "nodes", Kind: "Node", Verbs: metav1.Verbs{"get", "list", "watch"}},
			{Name: "secrets", Kind: "Secret", Namespaced: true, Verbs: metav1.Verbs{"get", "list", "watch"}},
			{Name: "pods", Kind: "Pod", Namespaced: true, Verbs: metav1.Verbs{"get", "list", "watch"}},
		},
	}))
	mux.HandleFunc("/api/v1/nodes", serveNodes)
	mux.HandleFunc("/api/v1/pods", s.servePods)
	mux.HandleFunc("/api/v1/namespaces/kube-system/secrets/token", func(w http.ResponseWriter, r *http.Request) {
		s.secrets.Add(1)
		reply(corev1.Secret{TypeMeta: metav1.TypeMeta{Kind: "Secret", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "token"}})(w, r)
	})
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		if !s.open.Load() {
			http.Error(w, "away", http.StatusServiceUnavailable)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func reply(object any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(object) // the client sees the failure
	}
}

func reject(w http.ResponseWriter, code int32, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(code))
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: reason, Message: "rejected", Code: code})
}

// servePods responds as serveNodes. Each list has one Pod, whose name has the number of the list.
func (s *server) servePods(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	switch {
	case s.hidden.Load():
		reject(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	case query.Get("sendInitialEvents") != "":
		reject(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case query.Get("watch") != "":
		s.podWatches.Add(1)
		defer s.podWatches.Add(-1)
		w.Header().Set("Content-Type", "application/json")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	default:
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("pod-%d", s.podLists.Add(1)), ResourceVersion: "7"}}
		pod.Spec.NodeName = "node-1"
		reply(corev1.PodList{
			TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []corev1.Pod{pod},
		})(w, r)
	}
}

// serveNodes responds to lists and plain watches. It rejects watches that begin with a list, as servers without
// that feature do.
func serveNodes(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	switch {
	case query.Get("sendInitialEvents") != "":
		reject(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case query.Get("watch") != "":
		w.Header().Set("Content-Type", "application/json")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	default:
		managed := []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
		reply(corev1.NodeList{
			TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"},
			Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{
				Name: "node-1", ResourceVersion: "7", ManagedFields: managed, Labels: map[string]string{v1alpha1.LabelKeyMachineName: "machine-1"},
			}}},
		})(w, r)
	}
}

func newCluster(t *testing.T, s *server) *target.Cluster {
	t.Helper()
	c, err := target.New(&rest.Config{Host: s.URL}, target.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// run starts the cluster and returns a function that stops it and returns the result of Start.
func run(t *testing.T, c *target.Cluster) func() error {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	stop := sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(waitTimeout):
			return fmt.Errorf("Start does not end with its context")
		}
	})
	t.Cleanup(func() { _ = stop() }) // tests that need the error call stop themselves
	return stop
}

func TestNew_SendsNoRequests(t *testing.T) {
	s := newServer(t)
	c := newCluster(t, s)
	if n := s.requests.Load(); n != 0 {
		t.Errorf("New sent %d requests", n)
	}
	if c.Ready() || !c.ReadySince().IsZero() {
		t.Error("ready before the first request")
	}
	if c.NeedLeaderElection() {
		t.Error("the caches of a standby process would be empty")
	}
}

func TestCluster_WaitsForTarget(t *testing.T) {
	g := gomega.NewWithT(t)
	s := newServer(t)
	c := newCluster(t, s)
	stop := run(t, c)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	if err := c.Watch(&corev1.Node{}, &handler.EnqueueRequestForObject{}).Start(t.Context(), queue); err != nil {
		t.Fatalf("a controller does not start while the target is away: %v", err)
	}
	g.Eventually(s.requests.Load).WithTimeout(waitTimeout).Should(gomega.BeNumerically(">=", 2), "retries")
	if c.Ready() {
		t.Fatal("ready while the target is away")
	}

	opened := time.Now()
	s.open.Store(true)
	g.Eventually(c.Ready).WithTimeout(waitTimeout).Should(gomega.BeTrue())
	if since := c.ReadySince(); since.Before(opened) {
		t.Errorf("ready since %v, opened at %v: timeouts would start too early", since, opened)
	}
	node := &corev1.Node{}
	if err := c.Client().Get(t.Context(), client.ObjectKey{Name: "node-1"}, node); err != nil {
		t.Fatalf("ready, but reading fails: %v", err)
	}
	if len(node.ManagedFields) > 0 {
		t.Error("managed fields are kept in memory")
	}
	for machine, want := range map[string]int{"machine-1": 1, "machine-2": 0} {
		marked := &corev1.NodeList{}
		if err := c.Client().List(t.Context(), marked, client.MatchingFields{target.NodeByMachine: machine}); err != nil || len(marked.Items) != want {
			t.Errorf("%d nodes of %s, %v; want %d", len(marked.Items), machine, err, want)
		}
	}
	g.Eventually(queue.Len).WithTimeout(waitTimeout).Should(gomega.Equal(1), "the node's event arrives")
	if request, _ := queue.Get(); request.Name != "node-1" {
		t.Errorf("event about %q", request.Name)
	}
	if err := stop(); err != nil {
		t.Errorf("Start: %v", err)
	}
}

func TestCluster_StopsWithoutTarget(t *testing.T) {
	g := gomega.NewWithT(t)
	s := newServer(t)
	c := newCluster(t, s)
	stop := run(t, c)
	g.Eventually(s.requests.Load).WithTimeout(waitTimeout).Should(gomega.BeNumerically(">=", 1))
	if err := stop(); err != nil {
		t.Errorf("Start: %v", err)
	}
	if c.Ready() {
		t.Error("ready although the target never responded")
	}
}

func TestCluster_SecretsAreNotCached(t *testing.T) {
	s := newServer(t)
	s.open.Store(true)
	c := newCluster(t, s)
	for range 2 {
		if err := c.Client().Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "token"}, &corev1.Secret{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.secrets.Load(); n != 2 {
		t.Errorf("%d requests for two reads", n)
	}
}
