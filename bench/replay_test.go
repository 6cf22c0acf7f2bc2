package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/test/support/env"
)

func TestReplay_CountsWrites(t *testing.T) {
	const machines, core = "machine.sapcloud.io", ""
	got := writesOf(env.Totals{
		{Method: "PATCH", Group: machines, Resource: "machines/status", Code: 200}:            4,
		{Method: "PATCH", Group: machines, Resource: "machines/status", Code: 409}:            1,
		{Method: "PUT", Group: machines, Resource: "machinesets/status", Code: 200}:           2,
		{Method: "POST", Group: machines, Resource: "machines", Code: 201}:                    3,
		{Method: "DELETE", Group: core, Resource: "nodes", Code: 200}:                         5,
		{Method: "GET", Group: core, Resource: "nodes", Code: 200}:                            6,
		{Method: "POST", Group: core, Resource: "events", Code: 201}:                          7,
		{Method: "PUT", Group: "coordination.k8s.io", Resource: "leases", Code: 200}:          8,
		{Method: "POST", Group: core, Resource: "pods/eviction", Code: 429}:                   9,
		{Method: "PATCH", Group: core, Resource: "persistentvolumes/status", Code: 200}:       10,
		{Method: "DELETE", Group: "storage.k8s.io", Resource: "volumeattachments", Code: 200}: 11,
	}, env.Totals{{Method: "PATCH", Group: core, Resource: "nodes/status", Code: 200}: 12})
	want := map[write]int{
		{"PATCH", "machines/status"}: 15, {"PATCH", "machinesets/status"}: 2, {"POST", "machines"}: 3, {"DELETE", "nodes"}: 5,
		{"POST", "pods/eviction"}: 9, {"DELETE", "machines"}: 11, {"PATCH", "nodes/status"}: 12,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestReplay_StepsCanBeExecuted: each write has an object, no object is created or deleted twice, and patches are valid.
func TestReplay_StepsCanBeExecuted(t *testing.T) {
	counts := map[write]int{
		{"POST", "machines"}: 3, {"PATCH", "machines"}: 5, {"PATCH", "machines/status"}: 4, {"DELETE", "machines"}: 2, {"POST", "pods/eviction"}: 2, {"DELETE", "pods"}: 1,
	}
	steps := replaySteps(counts, "drain", 2)
	if diff := cmp.Diff(steps, replaySteps(counts, "drain", 2), cmp.AllowUnexported(step{}, write{})); diff != "" {
		t.Errorf("two runs differ:\n%s", diff)
	}
	got, created := map[write]int{}, map[string]int{}
	for _, s := range steps {
		got[s.write]++
		if s.method != "PATCH" {
			created[s.resource+" "+s.object]++
		}
	}
	if diff := cmp.Diff(counts, got); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	for object, times := range created {
		if times > 1 {
			t.Errorf("%s is used %d times", object, times)
		}
	}
	names := map[string]bool{}
	for _, object := range existing(steps) {
		names[object.GetName()] = true
	}
	want := map[string]bool{
		"drain-machines-patch-0": true, "drain-machines-patch-1": true, "drain-machines-delete-0": true, "drain-machines-delete-1": true,
		"drain-pods-evict-0": true, "drain-pods-evict-1": true, "drain-pods-delete-0": true,
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	for resource, patch := range replayStatus {
		if text := fmt.Sprintf(patch, "1"); !json.Valid([]byte(text)) || strings.Contains(text, "%!") || replayObjects[resource] == nil {
			t.Errorf("patch of %s: %s", resource, text)
		}
	}
}
