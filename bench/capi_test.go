package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

func TestClusterAPI_ReadsMachines(t *testing.T) {
	machine := func(deleted, available string) *unstructured.Unstructured {
		object := objectOf("Machine")
		object.SetNamespace("bench")
		object.SetLabels(map[string]string{"cluster.x-k8s.io/deployment-name": "pool"})
		object.Object["status"] = map[string]any{
			"nodeRef":    map[string]any{"name": "node"},
			"conditions": []any{map[string]any{"type": "Ready", "status": "True"}, map[string]any{"type": "Available", "status": available}},
		}
		if deleted != "" {
			_ = unstructured.SetNestedField(object.Object, deleted, "metadata", "deletionTimestamp") // metadata is a map
		}
		return object
	}
	is := machineState{pool: client.ObjectKey{Namespace: "bench", Name: "pool"}, node: "node"}
	available, leaving := is, is
	available.available, leaving.leaving = true, true
	for name, tc := range map[string]struct {
		given *unstructured.Unstructured
		want  machineState
	}{
		"new":       {machine("", "False"), is},
		"available": {machine("", "True"), available},
		"leaving":   {machine("2026-01-01T00:00:00Z", "True"), leaving},
	} {
		got, ok := clusterAPI.stateOf(tc.given)
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(machineState{})); diff != "" || !ok {
			t.Errorf("%s: (-want +got):\n%s", name, diff)
		}
	}
	if _, ok := clusterAPI.stateOf(&v1alpha1.Machine{}); ok {
		t.Error("a Machine of the other API is accepted")
	}
}

func TestClusterAPI_DeploymentIsDone(t *testing.T) {
	for name, tc := range map[string]struct {
		observed, replicas, upToDate, available int64
		want                                    bool
	}{
		"done":         {2, 3, 3, 3, true},
		"not observed": {1, 3, 3, 3, false},
		"surge":        {2, 4, 3, 3, false},
		"outdated":     {2, 3, 2, 3, false},
		"unavailable":  {2, 3, 3, 2, false},
	} {
		d := objectOf("MachineDeployment")
		d.SetGeneration(2)
		d.Object["status"] = map[string]any{
			"observedGeneration": tc.observed, "replicas": tc.replicas, "upToDateReplicas": tc.upToDate, "availableReplicas": tc.available,
		}
		if got := clusterAPI.isDone(d, 3); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
