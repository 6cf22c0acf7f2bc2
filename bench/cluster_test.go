package main

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/millwright-dev/millwright/test/support/env"
)

func TestWorkloads_OfAppAreOnDifferentNodes(t *testing.T) {
	nodes := make([]string, nodesPerApp+1)
	for i := range nodes {
		nodes[i] = otherNode(i)
	}
	perApp, seen, volumes := map[string]int{}, map[string]bool{}, 0
	for _, p := range (load{podsPerMachine: 3, volumesPerMachine: 1}).workloads(nodes) {
		perApp[p.app]++
		if seen[p.app+" "+p.node] {
			t.Errorf("two pods of %s are on %s", p.app, p.node)
		}
		seen[p.app+" "+p.node] = true
		if p.volume != "" {
			volumes++
		}
		if claims := len(p.pod().Spec.Volumes); (p.volume != "") != (claims == 1) {
			t.Errorf("pod %s has %d claims and the volume %q", p.name, claims, p.volume)
		}
	}
	want := map[string]int{"app-0-0": nodesPerApp, "app-0-1": nodesPerApp, "app-0-2": nodesPerApp, "app-1-0": 1, "app-1-1": 1, "app-1-2": 1}
	if diff := cmp.Diff(want, perApp); diff != "" || volumes != len(nodes) {
		t.Errorf("got %d volumes; pods of each app (-want +got):\n%s", volumes, diff)
	}
}

// TestBudget_NeverAllowsMoreThanMaxUnavailable: terminated pods are replaced, and others still count.
func TestBudget_NeverAllowsMoreThanMaxUnavailable(t *testing.T) {
	budget := budgetFor("app", 10)
	if got := budget.Status.DisruptionsAllowed; got != 5 {
		t.Fatalf("got %d disruptions of 10 pods", got)
	}
	now := metav1.Now()
	budget.Status.DisruptedPods = map[string]metav1.Time{"a": now, "b": now, "c": now}
	budget.Status.DisruptionsAllowed = 2
	replaced(budget, []string{"a", "b"})
	if got := budget.Status; got.DisruptionsAllowed != 4 || len(got.DisruptedPods) != 1 {
		t.Errorf("after two of three evicted pods were replaced: %+v", got)
	}
	replaced(budget, []string{"a", "b"})
	if got := budget.Status.DisruptionsAllowed; got != 4 {
		t.Errorf("a pod was counted twice: %d disruptions are allowed", got)
	}
	if got := budgetFor("small", 1).Status.DisruptionsAllowed; got != 1 {
		t.Errorf("got %d disruptions of one pod, which could never be evicted", got)
	}
}

// TestBudget_UpdateIsRetriedUntilItSucceeds: evictions may change a budget more often than the benchmark expects.
func TestBudget_UpdateIsRetriedUntilItSucceeds(t *testing.T) {
	backoff := conflictBackoff
	for i := range 1000 {
		if delay := backoff.Step(); backoff.Steps < 1 || delay > 100*time.Millisecond {
			t.Fatalf("conflict %d: %d retries are left, the next one after %s", i, backoff.Steps, delay)
		}
	}
}

// TestDrain_ExcludesRequestsOfEvictions: the API server makes requests for budgets while it processes an eviction.
func TestDrain_ExcludesRequestsOfEvictions(t *testing.T) {
	eviction := env.RequestKey{Method: "POST", Resource: "pods/eviction", Code: 201}
	list := env.RequestKey{Method: "LIST", Group: "policy", Resource: "poddisruptionbudgets", Code: 200}
	update := env.RequestKey{Method: "PUT", Group: "policy", Resource: "poddisruptionbudgets/status", Code: 200}
	p := &phaseResult{requests: env.Totals{eviction: 2, list: 2, update: 3}, own: env.Totals{update: 1}}
	p.excludeBudgets()
	if diff := cmp.Diff(env.Totals{eviction: 2}, p.requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(env.Totals{list: 2, update: 4}, p.own); diff != "" {
		t.Errorf("own requests (-want +got):\n%s", diff)
	}
}

func TestDrain_RejectsDeletedPods(t *testing.T) {
	if err := evictedOnly(env.Totals{{Method: "DELETE", Resource: "pods", Code: 404}: 1, {Method: "DELETE", Resource: "nodes", Code: 200}: 1}); err != nil {
		t.Errorf("got error %v", err)
	}
	if err := evictedOnly(env.Totals{{Method: "DELETE", Resource: "pods", Code: 200}: 2}); err == nil {
		t.Error("deleted pods are accepted")
	}
}

// targetClients returns clients with the kubeconfig of a cluster.
func targetClients(t *testing.T, of *targets, cluster string) (*rest.Config, *kubernetes.Clientset) {
	t.Helper()
	content, err := of.kubeconfig(cluster)
	if err != nil {
		t.Fatal(err)
	}
	access, err := clientcmd.RESTConfigFromKubeConfig(content)
	if err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	return access, clients
}

// TestTargets_SeparateClusters: a cluster has its own identity and sees only its nodes, and the kubeconfig is required.
func TestTargets_SeparateClusters(t *testing.T) {
	var got []*url.URL
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the API server gets the token of the target")
		}
		got = append(got, r.URL)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"NodeList","apiVersion":"v1"}`))
	}))
	defer server.Close()
	targets, err := serveTargets(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := targets.stop(); err != nil {
			t.Error(err)
		}
	}()
	access, clients := targetClients(t, targets, "bench-7")
	system, err := clients.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil || system.UID != "bench-7" {
		t.Errorf("got identity %q, error %v", system.UID, err)
	}
	if _, err := clients.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: "a=b"}); err != nil {
		t.Error(err)
	}
	_, _ = clients.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{}) // the response is a list of nodes
	if len(got) != 2 || got[0].Path != "/api/v1/nodes" || got[0].Query().Get("labelSelector") != clusterLabel+"=bench-7,a=b" || got[1].Path != "/api/v1/namespaces/ns/pods" {
		t.Errorf("got requests %v", got)
	}
	access.BearerToken = "other"
	if clients, err = kubernetes.NewForConfig(access); err != nil {
		t.Fatal(err)
	}
	if _, err := clients.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err == nil || len(got) != 2 {
		t.Errorf("a wrong token: got error %v, and %d requests", err, len(got))
	}
}
