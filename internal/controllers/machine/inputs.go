package machine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

// Migration is the progress of the migration of a class of a legacy kind to a MachineClass.
type Migration struct {
	// Pending reports that the class still has to be migrated. Until then, its Machines are neither created
	// nor deleted.
	Pending bool
	// Problem is why the class cannot be migrated; empty if no problem is known.
	Problem string
}

// inputReader reads the classes and Secrets from which the VMs of Machines are created.
type inputReader struct{ *Options }

// classInputs contains what a driver needs to know about a class.
type classInputs struct {
	// class is nil if the class does not exist or no driver serves it.
	class *v1alpha1.MachineClass
	// secret has the merged data of the class's Secrets. It is nil if class is nil.
	secret *corev1.Secret
	// awaited reports that the class has a legacy kind and still has to be migrated to a MachineClass.
	// migrating reports that, in addition, no problem with the migration is known.
	awaited, migrating bool
}

// ofMachine returns the inputs for a Machine. missing is a message about what is missing; it is empty if the
// inputs are complete.
func (r inputReader) ofMachine(ctx context.Context, machine *v1alpha1.Machine) (in classInputs, missing string, err error) {
	ref := machine.Spec.Class
	if ref.Kind != v1alpha1.MachineClassKind {
		return r.ofLegacyClass(ctx, machine)
	}
	class := &v1alpha1.MachineClass{}
	if err := r.Client.Get(ctx, types.NamespacedName{Namespace: machine.Namespace, Name: ref.Name}, class); err != nil {
		if apierrors.IsNotFound(err) {
			return classInputs{}, fmt.Sprintf("MachineClass %q not found in namespace %q", ref.Name, machine.Namespace), nil
		}
		return classInputs{}, "", fmt.Errorf("reading MachineClass %s: %w", ref.Name, err)
	}
	return r.ofClass(ctx, class)
}

// ofLegacyClass returns the inputs for a Machine whose class is not a MachineClass.
func (r inputReader) ofLegacyClass(ctx context.Context, machine *v1alpha1.Machine) (in classInputs, missing string, err error) {
	ref := machine.Spec.Class
	missing = fmt.Sprintf("Class kind %q of machine %q is not supported; use the kind %s", ref.Kind, machine.Name, v1alpha1.MachineClassKind)
	if r.Migration == nil {
		return classInputs{}, missing, nil
	}
	migration, err := r.Migration(ctx, machine.Namespace, ref)
	switch {
	case err != nil:
		return classInputs{}, "", err
	case migration.Problem != "":
		missing = migration.Problem
	case migration.Pending:
		missing = fmt.Sprintf("%s %q is being migrated to a %s", ref.Kind, ref.Name, v1alpha1.MachineClassKind)
	}
	return classInputs{awaited: migration.Pending, migrating: migration.Pending && migration.Problem == ""}, missing, nil
}

// ofClass returns the inputs for a class, without changing the class. missing is as in ofMachine.
func (r inputReader) ofClass(ctx context.Context, class *v1alpha1.MachineClass) (in classInputs, missing string, err error) {
	if message := r.Drivers.Refusal(class); message != "" {
		return classInputs{}, message, nil
	}
	secret, missing, err := fieldindex.MergedSecret(ctx, r.Client, class)
	return classInputs{class: class, secret: secret}, missing, err
}

// readClass returns a class from the cache, or nil if it does not exist. The class must not be changed.
func (r inputReader) readClass(ctx context.Context, namespace, name string) (*v1alpha1.MachineClass, error) {
	class := &v1alpha1.MachineClass{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, class, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading MachineClass %s: %w", name, err)
	}
	return class, nil
}

// invalid returns why no VM can be created from the inputs, which must be complete. It is empty if one can be.
func (in classInputs) invalid() string {
	if errs := validation.MachineClass(in.class); len(errs) > 0 {
		return fmt.Sprintf("MachineClass %q is not valid: %v", in.class.Name, errs.ToAggregate())
	}
	if !controllerutil.ContainsFinalizer(in.class, v1alpha1.FinalizerMCM) && !in.class.DeletionTimestamp.IsZero() {
		return fmt.Sprintf("MachineClass %q is being deleted", in.class.Name)
	}
	if _, ok := in.secret.Data[bootstrap.UserDataKey]; !ok {
		return fmt.Sprintf("No Secret of MachineClass %q has the key %q", in.class.Name, bootstrap.UserDataKey)
	}
	return ""
}
