// Package warnings warns users who write an object of machine.sapcloud.io about problems that prevent the creation of
// its machines. Its webhooks deny nothing, since missing objects may be created later; controllers also report the
// problems in the object. The webhooks check what policies of the API server cannot check: other objects, drivers, and
// rules that MCM does not have.
package warnings

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/pool/budget"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

// Options configure the webhooks.
type Options struct {
	// Live reads from the API server, since a standby manager has no cache. Only List is called.
	Live client.Reader
	// Drivers contains the manager's drivers.
	Drivers *registry.Registry
}

// Add registers the webhooks with the manager's server.
func Add(mgr ctrl.Manager, options Options) error {
	w := webhooks{live: lister{options.Live}, drivers: options.Drivers}
	for _, add := range []func() error{
		ctrl.NewWebhookManagedBy(mgr, &v1alpha1.Machine{}).WithValidator(warns[*v1alpha1.Machine](w.machine)).Complete,
		ctrl.NewWebhookManagedBy(mgr, &v1alpha1.MachineSet{}).WithValidator(warns[*v1alpha1.MachineSet](w.set)).Complete,
		ctrl.NewWebhookManagedBy(mgr, &v1alpha1.MachineDeployment{}).WithValidator(warns[*v1alpha1.MachineDeployment](w.deployment)).Complete,
		ctrl.NewWebhookManagedBy(mgr, &v1alpha1.MachineClass{}).WithValidator(warns[*v1alpha1.MachineClass](w.class)).Complete,
	} {
		if err := add(); err != nil {
			return fmt.Errorf("adding a webhook: %w", err)
		}
	}
	return nil
}

// warns returns warnings about an object that a user creates or changes. It implements admission.Validator.
type warns[T client.Object] func(ctx context.Context, object T) ([]string, error)

// ValidateCreate implements admission.Validator.
func (w warns[T]) ValidateCreate(ctx context.Context, object T) (admission.Warnings, error) {
	if metav1.GetControllerOfNoCopy(object) != nil { // controllers do not read warnings
		return nil, nil
	}
	found, err := w(ctx, object)
	if err != nil {
		log.FromContext(ctx).Info("cannot check an object for warnings", "err", err.Error())
	}
	return found, nil
}

// ValidateUpdate implements admission.Validator. It warns only about changes to the spec.
func (w warns[T]) ValidateUpdate(ctx context.Context, before, after T) (admission.Warnings, error) {
	if before.GetGeneration() == after.GetGeneration() || !after.GetDeletionTimestamp().IsZero() {
		return nil, nil
	}
	return w.ValidateCreate(ctx, after)
}

// ValidateDelete implements admission.Validator.
func (w warns[T]) ValidateDelete(context.Context, T) (admission.Warnings, error) { return nil, nil }

type webhooks struct {
	live    client.Reader
	drivers *registry.Registry
}

func (w webhooks) machine(ctx context.Context, machine *v1alpha1.Machine) ([]string, error) {
	found := sentences(validation.Machine(machine))
	missing, err := w.missing(ctx, machine.Namespace, machine.Spec.Class, "spec.class.name")
	return append(found, missing...), err
}

func (w webhooks) set(ctx context.Context, set *v1alpha1.MachineSet) ([]string, error) {
	found := sentences(validation.MachineSet(set))
	if wrong := budget.Wrong(set); wrong != "" {
		found = append(found, fmt.Sprintf("metadata.annotations[%s] is invalid and is ignored: %s", v1alpha1.AnnotationKeyReplacement, wrong))
	}
	missing, err := w.missing(ctx, set.Namespace, set.Spec.Template.Spec.Class, "spec.template.spec.class.name")
	found = append(found, missing...)
	if err != nil {
		return found, err
	}
	others := &v1alpha1.MachineSetList{}
	if err := w.live.List(ctx, others, client.InNamespace(set.Namespace)); err != nil {
		return found, fmt.Errorf("listing machine sets: %w", err)
	}
	for i := range others.Items {
		if scale.Overlap(set, &others.Items[i]) {
			found = append(found, overlap("machine set", others.Items[i].Name))
		}
	}
	return found, nil
}

func (w webhooks) deployment(ctx context.Context, deployment *v1alpha1.MachineDeployment) ([]string, error) {
	found := sentences(validation.MachineDeployment(deployment))
	missing, err := w.missing(ctx, deployment.Namespace, deployment.Spec.Template.Spec.Class, "spec.template.spec.class.name")
	found = append(found, missing...)
	if err != nil {
		return found, err
	}
	others := &v1alpha1.MachineDeploymentList{}
	if err := w.live.List(ctx, others, client.InNamespace(deployment.Namespace)); err != nil {
		return found, fmt.Errorf("listing machine deployments: %w", err)
	}
	for i := range others.Items {
		if rollout.Overlap(deployment, &others.Items[i]) {
			found = append(found, overlap("machine deployment", others.Items[i].Name))
		}
	}
	return found, nil
}

func overlap(kind, name string) string {
	return fmt.Sprintf("spec.selector: this object and %s %q select each other's machines", kind, name)
}

// class returns warnings about a class itself. It does not check the Secrets that the class names. Otherwise anyone
// who can reach the port could find out which Secrets exist.
func (w webhooks) class(_ context.Context, class *v1alpha1.MachineClass) ([]string, error) {
	found := sentences(validation.MachineClass(class))
	if refusal := w.drivers.Refusal(class); refusal != "" {
		found = append(found, "provider: "+refusal)
	}
	return found, nil
}

// stored returns warnings about a stored class, including its Secrets.
func (w webhooks) stored(ctx context.Context, class *v1alpha1.MachineClass) ([]string, error) {
	found, err := w.class(ctx, class)
	if err != nil {
		return found, err
	}
	secret, missing, err := fieldindex.MergedSecret(ctx, w.live, class)
	switch {
	case err != nil:
		return found, err
	case missing != "":
		found = append(found, "secretRef: "+missing)
	case secret.Data[bootstrap.UserDataKey] == nil:
		found = append(found, fmt.Sprintf("secretRef: no Secret of MachineClass %q has the key %q", class.Name, bootstrap.UserDataKey))
	}
	return found, nil
}

// missing returns warnings about a reference to a class that does not exist or has a problem. It ignores legacy kinds,
// which are migrated.
func (w webhooks) missing(ctx context.Context, namespace string, ref v1alpha1.ClassSpec, path string) ([]string, error) {
	if ref.Kind != v1alpha1.MachineClassKind || ref.Name == "" {
		return nil, nil
	}
	class := &v1alpha1.MachineClass{}
	err := w.live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, class)
	switch {
	case apierrors.IsNotFound(err):
		return []string{fmt.Sprintf("%s: MachineClass %q not found; no machines are created until it exists", path, ref.Name)}, nil
	case err != nil:
		return nil, fmt.Errorf("reading MachineClass %s: %w", ref.Name, err)
	case !class.DeletionTimestamp.IsZero():
		return []string{fmt.Sprintf("%s: MachineClass %q is being deleted", path, ref.Name)}, nil
	}
	found, err := w.stored(ctx, class)
	for i := range found {
		found[i] = path + ": " + found[i]
	}
	return found, err
}

func sentences(errs field.ErrorList) []string {
	var found []string
	for _, err := range errs {
		found = append(found, err.Error())
	}
	return found
}
