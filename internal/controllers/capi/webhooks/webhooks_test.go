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

// TestMachineTemplate_IsImmutable checks that the spec of a template can change only in dry runs of the topology controller
// (T3, T5).
func TestMachineTemplate_IsImmutable(t *testing.T) {
	type template = infrav1.MillwrightMachineTemplate
	spec := func(m *template) {
		m.Spec.Template.Spec.ProviderSpec = &runtime.RawExtension{Raw: []byte(`{"size":"large"}`)}
	}
	for name, tc := range map[string]struct {
		change            func(*template)
		dryRun, annotated bool
		refused           bool
	}{
		"nothing":                            {change: func(*template) {}},
		"metadata":                           {change: func(m *template) { m.Labels = map[string]string{"a": "b"} }},
		"status":                             {change: func(m *template) { m.Status.NodeInfo = &infrav1.NodeInfo{Architecture: "arm64"} }},
		"spec":                               {change: spec, refused: true},
		"dry run of the topology controller": {change: spec, dryRun: true, annotated: true},
		"dry run of a user":                  {change: spec, dryRun: true, refused: true},
		"annotation only":                    {change: spec, annotated: true, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			before := &template{}
			before.Spec.Template.Spec.ProviderSpec = &runtime.RawExtension{Raw: []byte(`{"size":"small"}`)}
			after := before.DeepCopy()
			tc.change(after)
			if tc.annotated {
				after.Annotations = map[string]string{core.AnnotationDryRun: ""}
			}
			ctx := admission.NewContextWithRequest(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{DryRun: &tc.dryRun}})
			err := machineTemplate(ctx, before, after)
			if apierrors.IsInvalid(err) != tc.refused || (err != nil) != tc.refused {
				t.Errorf("err = %v", err)
			}
		})
	}
}

func TestClusterTemplate_IsImmutable(t *testing.T) {
	before := &infrav1.MillwrightClusterTemplate{}
	after := before.DeepCopy()
	after.Spec.Template.Spec.ControlPlanePort = 443
	if err := clusterTemplate(context.Background(), before, after); !apierrors.IsInvalid(err) {
		t.Errorf("err = %v", err)
	}
	if err := clusterTemplate(context.Background(), before, before); err != nil {
		t.Errorf("err = %v", err)
	}
}

// TestCluster_ManagedByCannotBeRemoved checks that the managed-by annotation or label cannot be removed (C8).
func TestCluster_ManagedByCannotBeRemoved(t *testing.T) {
	plain, managed, labeled := &infrav1.MillwrightCluster{}, &infrav1.MillwrightCluster{}, &infrav1.MillwrightCluster{}
	managed.Annotations = map[string]string{core.KeyManagedBy: ""}
	labeled.Labels = map[string]string{core.KeyManagedBy: ""}
	for _, tc := range []struct {
		before, after *infrav1.MillwrightCluster
		refused       bool
	}{{plain, managed, false}, {managed, managed, false}, {plain, plain, false}, {managed, plain, true}, {plain, labeled, false}, {managed, labeled, false}, {labeled, plain, true}} {
		if err := cluster(context.Background(), tc.before, tc.after); apierrors.IsInvalid(err) != tc.refused {
			t.Errorf("%v to %v: %v", tc.before.Annotations, tc.after.Annotations, err)
		}
	}
}

// TestMachine_FieldsOfVMAreImmutable checks that only Cluster API can change the provider specification once there is a VM.
// Cluster API makes a dry run first.
func TestMachine_FieldsOfVMAreImmutable(t *testing.T) {
	type machine = infrav1.MillwrightMachine
	spec := func(text string) func(*machine) {
		return func(m *machine) { m.Spec.ProviderSpec = &runtime.RawExtension{Raw: []byte(text)} }
	}
	other := spec(`{"size":"small","disk":{"gib":[1,3]}}`)
	for name, tc := range map[string]struct {
		change  func(*machine)
		noVM    bool
		dryRun  bool
		refused bool
	}{
		"nothing":              {change: func(*machine) {}},
		"label":                {change: func(m *machine) { m.Labels = map[string]string{"a": "b"} }},
		"order and whitespace": {change: spec(`{"disk": {"gib":[1,2]}, "size":"small"}`)},
		"value in a list":      {change: other, refused: true},
		"field removed":        {change: spec(`{"size":"small"}`), refused: true},
		"invalid JSON":         {change: spec(`{`), refused: true},
		"removed":              {change: func(m *machine) { m.Spec.ProviderSpec = nil }, refused: true},
		"class":                {change: func(m *machine) { m.Spec.MachineClassRef = &infrav1.LocalReference{Name: "a"} }, refused: true},
		"no VM":                {change: other, noVM: true},
		"dry run":              {change: other, dryRun: true},
		"update in place":      {change: func(m *machine) { other(m); m.Annotations = map[string]string{core.AnnotationUpdateInProgress: ""} }},
		"other annotation":     {change: func(m *machine) { other(m); m.Annotations = map[string]string{core.AnnotationDryRun: ""} }, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			before := &machine{}
			spec(`{"size":"small","disk":{"gib":[1,2]}}`)(before)
			if !tc.noVM {
				before.Status.ProviderID = "test:///1"
			}
			after := before.DeepCopy()
			tc.change(after)
			ctx := admission.NewContextWithRequest(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{DryRun: &tc.dryRun}})
			if err := machineUpdate(ctx, before, after); apierrors.IsInvalid(err) != tc.refused || (err != nil) != tc.refused {
				t.Errorf("err = %v", err)
			}
		})
	}
}
