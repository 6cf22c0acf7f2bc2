// Package webhooks refuses changes that Cluster API could not deal with. The controllers
// work without it: what it refuses would only have no effect, or a surprising one.
package webhooks

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

// Add has the manager's webhook server answer for our kinds.
func Add(mgr ctrl.Manager) error {
	for _, add := range []func() error{
		ctrl.NewWebhookManagedBy(mgr, &infrav1.MillwrightMachineTemplate{}).WithValidator(MachineTemplates()).Complete,
		ctrl.NewWebhookManagedBy(mgr, &infrav1.MillwrightClusterTemplate{}).WithValidator(ClusterTemplates()).Complete,
		ctrl.NewWebhookManagedBy(mgr, &infrav1.MillwrightCluster{}).WithValidator(Clusters()).Complete,
	} {
		if err := add(); err != nil {
			return fmt.Errorf("adding a webhook: %w", err)
		}
	}
	return nil
}

// updates is a validator of updates: all else is allowed.
type updates[T client.Object] func(ctx context.Context, before, after T) error

// ValidateCreate implements admission.Validator.
func (u updates[T]) ValidateCreate(context.Context, T) (admission.Warnings, error) { return nil, nil }

// ValidateUpdate implements admission.Validator.
func (u updates[T]) ValidateUpdate(ctx context.Context, before, after T) (admission.Warnings, error) {
	return nil, u(ctx, before, after)
}

// ValidateDelete implements admission.Validator.
func (u updates[T]) ValidateDelete(context.Context, T) (admission.Warnings, error) { return nil, nil }

// MachineTemplates refuses changes of a MillwrightMachineTemplate: its machines would not
// follow them, and nobody could tell which of them it fits.
func MachineTemplates() admission.Validator[*infrav1.MillwrightMachineTemplate] {
	return updates[*infrav1.MillwrightMachineTemplate](func(ctx context.Context, before, after *infrav1.MillwrightMachineTemplate) error {
		return immutable(ctx, after, infrav1.MillwrightMachineTemplateKind, before.Spec.Template.Spec, after.Spec.Template.Spec)
	})
}

// ClusterTemplates refuses changes of a MillwrightClusterTemplate.
func ClusterTemplates() admission.Validator[*infrav1.MillwrightClusterTemplate] {
	return updates[*infrav1.MillwrightClusterTemplate](func(ctx context.Context, before, after *infrav1.MillwrightClusterTemplate) error {
		return immutable(ctx, after, infrav1.MillwrightClusterTemplateKind, before.Spec.Template.Spec, after.Spec.Template.Spec)
	})
}

// Clusters refuses to take a MillwrightCluster back from another system that manages it:
// that system is not asked, and its work would be undone.
func Clusters() admission.Validator[*infrav1.MillwrightCluster] {
	return updates[*infrav1.MillwrightCluster](func(_ context.Context, before, after *infrav1.MillwrightCluster) error {
		_, was := before.Annotations[core.AnnotationManagedBy]
		_, is := after.Annotations[core.AnnotationManagedBy]
		if !was || is {
			return nil
		}
		path := field.NewPath("metadata", "annotations").Key(core.AnnotationManagedBy)
		return apierrors.NewInvalid(infrav1.Kind(infrav1.MillwrightClusterKind), after.Name,
			field.ErrorList{field.Forbidden(path, "cannot be taken off: the infrastructure is managed by another system")})
	})
}

// immutable refuses that a template's spec changes. The topology controller only tries out
// what would come of it, and says so twice.
func immutable(ctx context.Context, after client.Object, kind string, was, is any) error {
	if equality.Semantic.DeepEqual(was, is) || triedOut(ctx, after) {
		return nil
	}
	return apierrors.NewInvalid(infrav1.Kind(kind), after.GetName(),
		field.ErrorList{field.Forbidden(field.NewPath("spec", "template", "spec"), "cannot be changed: make a new template and refer to that one")})
}

func triedOut(ctx context.Context, object client.Object) bool {
	request, err := admission.RequestFromContext(ctx)
	if err != nil || request.DryRun == nil || !*request.DryRun {
		return false
	}
	_, announced := object.GetAnnotations()[core.AnnotationDryRun]
	return announced
}
