package webhooks

import (
	"context"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

// TestTemplatesAreImmutable (T3, T5): except in dry runs of the topology controller.
func TestTemplatesAreImmutable(t *testing.T) {
	type template = infrav1.MillwrightMachineTemplate
	spec := func(m *template) {
		m.Spec.Template.Spec.ProviderSpec = &runtime.RawExtension{Raw: []byte(`{"size":"large"}`)}
	}
	for name, tc := range map[string]struct {
		change            func(*template)
		dryRun, announced bool
		refused           bool
	}{
		"nothing":  {change: func(*template) {}},
		"metadata": {change: func(m *template) { m.Labels = map[string]string{"a": "b"} }},
		"status":   {change: func(m *template) { m.Status.NodeInfo = &infrav1.NodeInfo{Architecture: "arm64"} }},
		"spec":     {change: spec, refused: true},
		"spec, in a dry run of the topology controller": {change: spec, dryRun: true, announced: true},
		"spec, in a dry run of a user":                  {change: spec, dryRun: true, refused: true},
		"spec, with the annotation only":                {change: spec, announced: true, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			before := &template{}
			before.Spec.Template.Spec.ProviderSpec = &runtime.RawExtension{Raw: []byte(`{"size":"small"}`)}
			after := before.DeepCopy()
			tc.change(after)
			if tc.announced {
				after.Annotations = map[string]string{core.AnnotationDryRun: ""}
			}
			ctx := admission.NewContextWithRequest(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{DryRun: &tc.dryRun}})
			err := machineTemplate(ctx, before, after)
			if apierrors.IsInvalid(err) != tc.refused || (err != nil) != tc.refused {
				t.Errorf("answers %v", err)
			}
		})
	}
}

func TestClusterTemplatesAreImmutable(t *testing.T) {
	before := &infrav1.MillwrightClusterTemplate{}
	after := before.DeepCopy()
	after.Spec.Template.Spec.ControlPlanePort = 443
	if err := clusterTemplate(context.Background(), before, after); !apierrors.IsInvalid(err) {
		t.Errorf("answers %v", err)
	}
	if err := clusterTemplate(context.Background(), before, before); err != nil {
		t.Errorf("answers %v", err)
	}
}

// TestManagedByStays (C8).
func TestManagedByStays(t *testing.T) {
	plain, managed := &infrav1.MillwrightCluster{}, &infrav1.MillwrightCluster{}
	managed.Annotations = map[string]string{core.AnnotationManagedBy: ""}
	for _, tc := range []struct {
		before, after *infrav1.MillwrightCluster
		refused       bool
	}{{plain, managed, false}, {managed, managed, false}, {plain, plain, false}, {managed, plain, true}} {
		if err := cluster(context.Background(), tc.before, tc.after); apierrors.IsInvalid(err) != tc.refused {
			t.Errorf("%v to %v: %v", tc.before.Annotations, tc.after.Annotations, err)
		}
	}
}
