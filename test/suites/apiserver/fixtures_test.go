package apiserver

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
)

// strict returns a client for which the API server rejects unknown fields instead of pruning them.
func strict(e *env.Env) client.Client {
	return client.WithFieldValidation(e.Client, metav1.FieldValidationStrict)
}

// Objects that MCM wrote are stored unchanged, and stay unchanged when a program that uses our types reads and
// writes them.
func TestMCMObjects_AreStoredWithoutLoss(t *testing.T) {
	t.Parallel()
	fleets := readFleets(t)
	for name, objects := range fleets {
		t.Run(name, func(t *testing.T) {
			e := env.New(t)
			for _, want := range objects {
				want.SetNamespace(e.Namespace)
				create(t, e, want)
				if diff := cmp.Diff(want.Object, read(t, e, want).Object); diff != "" {
					t.Errorf("%s %s as stored (-recorded +stored):\n%s", want.GetKind(), want.GetName(), diff)
				}
				rewrite(t, e, want)
				if diff := cmp.Diff(output(want.Object), output(read(t, e, want).Object)); diff != "" {
					t.Errorf("%s %s rewritten with our types (-recorded +stored):\n%s", want.GetKind(), want.GetName(), diff)
				}
			}
		})
	}
}

// readFleets reads the recorded objects of our group by file name. Duplicates, of which there are many, are
// skipped.
func readFleets(t *testing.T) map[string][]*unstructured.Unstructured {
	t.Helper()
	files, err := filepath.Glob("../../../api/machine/v1alpha1/testdata/mcm/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	fleets := map[string][]*unstructured.Unstructured{}
	seen := map[string]bool{}
	for _, file := range files {
		fleets[strings.TrimSuffix(filepath.Base(file), ".json")] = readObjects(t, file, seen)
	}
	if len(seen) < 100 {
		t.Fatalf("only %d different objects in %d files", len(seen), len(files))
	}
	return fleets
}

// readObjects reads the objects of our group in a file that were not seen before, without fields that only an API
// server can set.
func readObjects(t *testing.T, file string, seen map[string]bool) []*unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	list := &unstructured.UnstructuredList{}
	if err := json.Unmarshal(data, list); err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for i := range list.Items {
		obj := &list.Items[i]
		if obj.GetAPIVersion() != v1alpha1.SchemeGroupVersion.String() {
			continue
		}
		dropServerFields(obj)
		text, err := obj.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if !seen[string(text)] {
			seen[string(text)] = true
			objects = append(objects, obj)
		}
	}
	return objects
}

func dropServerFields(obj *unstructured.Unstructured) {
	for _, field := range []string{
		"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
		"deletionGracePeriodSeconds", "managedFields",
	} {
		unstructured.RemoveNestedField(obj.Object, "metadata", field)
	}
}

func create(t *testing.T, e *env.Env, want *unstructured.Unstructured) {
	t.Helper()
	obj := want.DeepCopy()
	if err := strict(e).Create(t.Context(), obj); err != nil {
		t.Fatalf("creating %s %s: %v", want.GetKind(), want.GetName(), err)
	}
	if status, hasStatus := want.Object["status"]; hasStatus {
		obj.Object["status"] = status
		if err := strict(e).Status().Update(t.Context(), obj); err != nil {
			t.Fatalf("writing the status of %s %s: %v", want.GetKind(), want.GetName(), err)
		}
	}
}

// rewrite reads an object with our types, and writes all of it.
func rewrite(t *testing.T, e *env.Env, like *unstructured.Unstructured) {
	t.Helper()
	runtimeObject, err := e.Client.Scheme().New(like.GroupVersionKind())
	if err != nil {
		t.Fatal(err)
	}
	obj := runtimeObject.(client.Object)
	if err := e.Client.Get(t.Context(), client.ObjectKeyFromObject(like), obj); err != nil {
		t.Fatal(err)
	}
	// The response of the first write would overwrite the status for the second write, so each write gets a copy.
	again := obj.DeepCopyObject().(client.Object)
	if err := strict(e).Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	if _, hasStatus := like.Object["status"]; hasStatus {
		again.SetResourceVersion(obj.GetResourceVersion())
		if err := strict(e).Status().Update(t.Context(), again); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, e *env.Env, like *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	obj.SetGroupVersionKind(like.GroupVersionKind())
	if err := e.Client.Get(t.Context(), client.ObjectKeyFromObject(like), obj); err != nil {
		t.Fatal(err)
	}
	dropServerFields(obj)
	return obj
}

// output removes objects without fields, of which our types write some where MCM's user wrote none.
func output(tree any) any {
	switch node := tree.(type) {
	case map[string]any:
		kept := map[string]any{}
		for key, value := range node {
			if value = output(value); value != nil {
				kept[key] = value
			}
		}
		if len(kept) == 0 {
			return nil
		}
		return kept
	case []any:
		kept := slices.Clone(node)
		for i := range kept {
			kept[i] = output(kept[i])
		}
		return kept
	}
	return tree
}
