package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

func TestDrain_RejectsDeletedPods(t *testing.T) {
	if err := evictedOnly(env.Totals{{Method: "DELETE", Resource: "pods", Code: 404}: 1, {Method: "DELETE", Resource: "nodes", Code: 200}: 1}); err != nil {
		t.Errorf("got error %v", err)
	}
	if err := evictedOnly(env.Totals{{Method: "DELETE", Resource: "pods", Code: 200}: 2}); err == nil {
		t.Error("deleted pods are accepted")
	}
}
