package apiserver

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
)

// TestCRD_AcceptsRecordedObjects checks that everything that a real MCM worked with can be created with either CRDs.
// With MCM's own CRDs, each object can be updated to its next recorded state, because MCM replaces whole objects.
func TestCRD_AcceptsRecordedObjects(t *testing.T) {
	e := guarded(t)
	moments := recordings(t)
	t.Run("our CRDs", func(t *testing.T) {
		for _, moment := range slices.Sorted(maps.Keys(moments)) {
			for _, object := range moments[moment] {
				expect(t, moment+": "+object.GetName(), nil, e.Client.Create(t.Context(), stripped(e, object), client.DryRunAll))
			}
		}
	})
	e.InstallMCMsCRDs(t)
	t.Run("quantities with MCM's CRDs", func(t *testing.T) { refusesQuantities(t, e) })
	t.Run("MCM's CRDs", func(t *testing.T) {
		there, changes := map[string]bool{}, 0
		for _, moment := range slices.Sorted(maps.Keys(moments)) {
			for _, object := range moments[moment] {
				key := object.GetKind() + "/" + object.GetName()
				if !there[key] {
					expect(t, moment+": "+key, nil, e.Client.Create(t.Context(), stripped(e, object)))
				} else {
					expect(t, moment+": "+key+" changes", nil, update(t, e, stripped(e, object), stripped(e, object)))
					changes++
				}
				there[key] = true
				writeStatus(t, e, moment+": status of "+key, object)
			}
		}
		if changes < 50 {
			t.Errorf("only %d objects were recorded more than once", changes)
		}
	})
}

// recordings returns the recorded objects of machine.sapcloud.io by moment.
func recordings(t *testing.T) map[string][]*unstructured.Unstructured {
	t.Helper()
	files, err := filepath.Glob("../../../api/machine/v1alpha1/testdata/mcm/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recorded objects: %v", err)
	}
	moments, kinds := map[string][]*unstructured.Unstructured{}, map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		list := &unstructured.UnstructuredList{}
		if err := list.UnmarshalJSON(text); err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			if item := &list.Items[i]; item.GetAPIVersion() == v1alpha1.SchemeGroupVersion.String() {
				moments[filepath.Base(file)] = append(moments[filepath.Base(file)], item)
				kinds[item.GetKind()] = true
			}
		}
	}
	if len(kinds) != 4 {
		t.Errorf("only these kinds were recorded: %v", kinds)
	}
	return moments
}

// stripped returns a recorded object without what the API server of the recording set.
func stripped(e *env.Env, object *unstructured.Unstructured) *unstructured.Unstructured {
	made := object.DeepCopy()
	for _, field := range []string{"deletionTimestamp", "deletionGracePeriodSeconds", "uid", "generation", "creationTimestamp", "resourceVersion", "ownerReferences"} {
		unstructured.RemoveNestedField(made.Object, "metadata", field)
	}
	made.SetNamespace(e.Namespace)
	return made
}

// writeStatus writes a recorded status.
func writeStatus(t *testing.T, e *env.Env, what string, object *unstructured.Unstructured) {
	t.Helper()
	status, has := object.Object["status"]
	if !has {
		return
	}
	text, err := (&unstructured.Unstructured{Object: map[string]any{"apiVersion": object.GetAPIVersion(), "kind": object.GetKind(), "status": status}}).MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	expect(t, what, nil, e.Client.Status().Patch(t.Context(), stripped(e, object), client.RawPatch(types.MergePatchType, text)))
}

// refusesQuantities checks that quantities that MCM's CRDs store, and clients cannot read, are rejected whatever
// annotations a class has. A class that already has one can be edited otherwise, and deleted.
func refusesQuantities(t *testing.T, e *env.Env) {
	const field, problem = "nodeTemplate.capacity[cpu]", ": Invalid value"
	with := func(name, quantity string) *unstructured.Unstructured {
		class := &unstructured.Unstructured{Object: map[string]any{
			"provider": "sim", "providerSpec": map[string]any{},
			"nodeTemplate": map[string]any{
				"capacity": map[string]any{"cpu": quantity, "gpu": int64(0), "memory": "1.5Gi"}, "virtualCapacity": map[string]any{"x": "1e3"},
				"instanceType": "a", "region": "b", "zone": "c",
			},
		}}
		class.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.MachineClassKind))
		class.SetNamespace(e.Namespace)
		class.SetName(name)
		class.SetAnnotations(map[string]string{v1alpha1.AnnotationKeySkipValidation: "true"})
		return class
	}
	for _, quantity := range []string{"1e1.5", "1e-2147483648", "1e2147483648", strings.Repeat("9", 100_000)} {
		expect(t, quantity[:min(20, len(quantity))], []string{field + problem}, e.Client.Create(t.Context(), with("bad", quantity), client.DryRunAll))
	}
	class := with("kept", "1")
	expect(t, "a good one", nil, e.Client.Create(t.Context(), class))
	policy := &metav1.PartialObjectMetadata{}
	policy.SetGroupVersionKind(admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicyBinding"))
	policy.Name = "millwright-machine-class-quantities"
	actions := func(action string) {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"validationActions":["`+action+`"]}}`))
		if err := e.Client.Patch(t.Context(), policy, patch); err != nil {
			t.Fatal(err)
		}
	}
	number, has := 0, ""
	worsen := func() []string {
		number++ // unchanged fields are not validated
		next := fmt.Sprintf("1e%d.5", number)
		problems := refused(update(t, e, class, with("kept", next)))
		if problems == nil {
			has = next
		}
		return problems
	}
	actions("Warn") // as if the policy had been added later
	NewWithT(t).Eventually(worsen, env.WaitTimeout, 50*time.Millisecond).Should(BeEmpty())
	actions("Deny")
	NewWithT(t).Eventually(worsen, env.WaitTimeout, 50*time.Millisecond).Should(Equal([]string{field + problem}))
	edited := with("kept", has)
	edited.SetFinalizers([]string{v1alpha1.FinalizerMCM})
	expect(t, "another field of one that has it", nil, update(t, e, class, edited))
	if err := e.Client.Delete(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	expect(t, "its finalizer is removed", nil, update(t, e, class, with("kept", "1e2.5")))
}
