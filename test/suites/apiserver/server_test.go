package apiserver

import (
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
)

// TestAPIServer_RejectsUnknownFields checks that strict validation is enabled, on which
// TestMCMObjects_AreStoredWithoutLoss relies.
func TestAPIServer_RejectsUnknownFields(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	machine := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.SchemeGroupVersion.String(),
		"kind":       "Machine",
		"metadata":   map[string]any{"name": "m", "namespace": e.Namespace},
		"spec":       map[string]any{"surprise": true},
	}}
	if err := strict(e).Create(t.Context(), machine); !apierrors.IsBadRequest(err) {
		t.Errorf("got %v, want BadRequest", err)
	}
}

// Objects that only the controllers reject must be storable: such objects may exist, and one that cannot be
// edited cannot lose its finalizer.
func TestCRD_StoresObjectsOnlyControllersReject(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	meta := metav1.ObjectMeta{Name: "bad", Namespace: e.Namespace}
	for _, obj := range []client.Object{
		&v1alpha1.Machine{ObjectMeta: meta},
		&v1alpha1.MachineSet{ObjectMeta: meta, Spec: v1alpha1.MachineSetSpec{Replicas: 1}},
		&v1alpha1.MachineDeployment{ObjectMeta: meta, Spec: v1alpha1.MachineDeploymentSpec{
			Strategy: v1alpha1.MachineDeploymentStrategy{Type: "Nonsense"},
		}},
	} {
		if err := e.Client.Create(t.Context(), obj); err != nil {
			t.Errorf("%T: %v", obj, err)
		}
	}
}

// TestScaleSubresource checks that autoscalers find the replicas and the selector in the scale subresource.
func TestScaleSubresource(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	meta := metav1.ObjectMeta{Name: "pool", Namespace: e.Namespace}
	set := &v1alpha1.MachineSet{ObjectMeta: meta, Spec: v1alpha1.MachineSetSpec{Replicas: 3}}
	scale(t, e, set, func() {
		set.Status = v1alpha1.MachineSetStatus{Replicas: 2, Selector: "pool=a"}
	})
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: meta, Spec: v1alpha1.MachineDeploymentSpec{Replicas: 3}}
	scale(t, e, deployment, func() {
		deployment.Status = v1alpha1.MachineDeploymentStatus{Replicas: 2, Selector: "pool=a"}
	})
	if set.Spec.Replicas != 5 || deployment.Spec.Replicas != 5 {
		t.Errorf("replicas after scaling: %d and %d, want 5", set.Spec.Replicas, deployment.Spec.Replicas)
	}
}

// scale creates an object with 3 desired replicas, sets its status, checks the scale subresource, and scales to
// 5.
func scale(t *testing.T, e *env.Env, obj client.Object, setStatus func()) {
	t.Helper()
	must(t, e.Client.Create(t.Context(), obj))
	setStatus()
	must(t, e.Client.Status().Update(t.Context(), obj))

	scale := &autoscalingv1.Scale{}
	must(t, e.Client.SubResource("scale").Get(t.Context(), obj, scale))
	want := autoscalingv1.ScaleStatus{Replicas: 2, Selector: "pool=a"}
	if scale.Spec.Replicas != 3 || scale.Status != want {
		t.Errorf("%T: scale is %+v %+v, want 3 %+v", obj, scale.Spec, scale.Status, want)
	}
	scale.Spec.Replicas = 5
	must(t, e.Client.SubResource("scale").Update(t.Context(), obj, client.WithSubResourceBody(scale)))
	must(t, e.Client.Get(t.Context(), client.ObjectKeyFromObject(obj), obj))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestCRD_RejectsInvalidReplacementPolicies checks policies that controllers could not read or follow.
func TestCRD_RejectsInvalidReplacementPolicies(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	for name, test := range map[string]struct {
		budget   map[string]any
		wantText string
	}{
		"good":            {map[string]any{"max": "10%", "per": "topology.kubernetes.io/zone", "within": "1h30m"}, ""},
		"none at all":     {map[string]any{"max": 0}, ""},
		"below-zero":      {map[string]any{"max": -1}, "must be a non-negative number"},
		"too-much":        {map[string]any{"max": "1000%"}, "budgets[0].max"},
		"no-percentage":   {map[string]any{"max": "5"}, "budgets[0].max"},
		"missing":         {map[string]any{"per": "zone"}, "budgets[0].max: Required value"},
		"a-fortnight":     {map[string]any{"max": 1, "within": "2w"}, "budgets[0].within"},
		"no-time":         {map[string]any{"max": 1, "within": "0s"}, "must be above zero, and at most 24h"},
		"two-days":        {map[string]any{"max": 1, "within": "48h"}, "must be above zero, and at most 24h"},
		"longer-than-all": {map[string]any{"max": 1, "within": "999999999h"}, "budgets[0].within"},
	} {
		deployment := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.SchemeGroupVersion.String(),
			"kind":       "MachineDeployment",
			"metadata":   map[string]any{"generateName": "pool-", "namespace": e.Namespace},
			"spec": map[string]any{
				"template":    map[string]any{"spec": map[string]any{"class": map[string]any{"kind": "MachineClass", "name": "pool"}}},
				"replacement": map[string]any{"budgets": []any{test.budget}},
			},
		}}
		err := e.Client.Create(t.Context(), deployment)
		if test.wantText == "" && err != nil || test.wantText != "" && (err == nil || !strings.Contains(err.Error(), test.wantText)) {
			t.Errorf("%s: the API server reports %v, want %q", name, err, test.wantText)
		}
	}
}
