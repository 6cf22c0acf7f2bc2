// Package webhooks refuses updates that Cluster API does not allow. The controllers also work without the webhooks:
// such an update would then have no effect, or an unexpected one.
package webhooks

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
)

// Add registers the webhooks with the manager's server.
func Add(mgr ctrl.Manager) error {
	for _, add := range []func() error{
		ctrl.NewWebhookManagedBy(mgr, &infrav1.MillwrightMachine{}).WithValidator(updates[*infrav1.MillwrightMachine](machineUpdate)).Complete,
		ctrl.NewWebhookManagedBy(mgr, &infrav1.MillwrightMachineTemplate{}).WithValidator(updates[*infrav1.MillwrightMachineTemplate](machineTemplate)).Complete,
		ctrl.NewWebhookManagedBy(mgr, &infrav1.MillwrightClusterTemplate{}).WithValidator(updates[*infrav1.MillwrightClusterTemplate](clusterTemplate)).Complete,
		ctrl.NewWebhookManagedBy(mgr, &infrav1.MillwrightCluster{}).WithValidator(updates[*infrav1.MillwrightCluster](cluster)).Complete,
	} {
		if err := add(); err != nil {
			return fmt.Errorf("adding a webhook: %w", err)
		}
	}
	return nil
}

// updates validates updates. It allows all other operations.
type updates[T client.Object] func(ctx context.Context, before, after T) error

// ValidateCreate implements admission.Validator.
func (u updates[T]) ValidateCreate(context.Context, T) (admission.Warnings, error) { return nil, nil }

// ValidateUpdate implements admission.Validator.
func (u updates[T]) ValidateUpdate(ctx context.Context, before, after T) (admission.Warnings, error) {
	return nil, u(ctx, before, after)
}

// ValidateDelete implements admission.Validator.
func (u updates[T]) ValidateDelete(context.Context, T) (admission.Warnings, error) { return nil, nil }

// machineUpdate refuses changes of the fields from which a VM was created, unless Cluster API updates the machine in
// place. Before an in-place update, Cluster API makes a dry run of the change.
func machineUpdate(ctx context.Context, before, after *infrav1.MillwrightMachine) error {
	request, err := admission.RequestFromContext(ctx)
	if before.Status.ProviderID == "" || core.Updating(after) || err == nil && ptr.Deref(request.DryRun, false) {
		return nil
	}
	const message = "cannot be changed after the VM has been created, except by an in-place update of Cluster API"
	switch old, updated := before.Spec, after.Spec; {
	case !equality.Semantic.DeepEqual(old.MachineClassRef, updated.MachineClassRef):
		return forbidden(after, infrav1.MillwrightMachineKind, field.NewPath("spec", "machineClassRef"), message)
	case !marks.SameJSON(old.ProviderSpec, updated.ProviderSpec):
		return forbidden(after, infrav1.MillwrightMachineKind, field.NewPath("spec", "providerSpec"), message)
	}
	return nil
}

func machineTemplate(ctx context.Context, before, after *infrav1.MillwrightMachineTemplate) error {
	return immutable(ctx, after, infrav1.MillwrightMachineTemplateKind, before.Spec.Template.Spec, after.Spec.Template.Spec)
}

func clusterTemplate(ctx context.Context, before, after *infrav1.MillwrightClusterTemplate) error {
	return immutable(ctx, after, infrav1.MillwrightClusterTemplateKind, before.Spec.Template.Spec, after.Spec.Template.Spec)
}

// immutable refuses changes of a template's spec, except in dry runs of the topology controller. Those have both the
// dry-run option and an annotation.
func immutable(ctx context.Context, after client.Object, kind string, old, updated any) error {
	request, err := admission.RequestFromContext(ctx)
	_, topology := after.GetAnnotations()[core.AnnotationDryRun]
	if equality.Semantic.DeepEqual(old, updated) || err == nil && ptr.Deref(request.DryRun, false) && topology {
		return nil
	}
	path := field.NewPath("spec", "template", "spec")
	return forbidden(after, kind, path, "is immutable; create a new template and refer to it instead")
}

// cluster refuses to remove the annotation or label managed-by from a MillwrightCluster. The other system that manages it
// would not notice, and this controller would overwrite its changes.
func cluster(_ context.Context, before, after *infrav1.MillwrightCluster) error {
	if !core.ExternallyManaged(before) || core.ExternallyManaged(after) {
		return nil
	}
	path := field.NewPath("metadata", "annotations")
	if !metav1.HasAnnotation(before.ObjectMeta, core.KeyManagedBy) {
		path = field.NewPath("metadata", "labels")
	}
	path = path.Key(core.KeyManagedBy)
	return forbidden(after, infrav1.MillwrightClusterKind, path, "cannot be removed because another system manages the infrastructure")
}

func forbidden(object client.Object, kind string, path *field.Path, message string) error {
	return apierrors.NewInvalid(infrav1.Kind(kind), object.GetName(), field.ErrorList{field.Forbidden(path, message)})
}
