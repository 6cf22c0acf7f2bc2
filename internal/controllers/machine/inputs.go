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
	// Pending reports that the class will be migrated. Its Machines wait, even with their deletion.
	Pending bool
	// Problem is why the class cannot be migrated; empty if nothing is known.
	Problem string
}

// inputReader reads what the VMs of Machines are created from: classes and their Secrets.
type inputReader struct{ *Options }

// classInputs are what a driver needs to know about a class.
type classInputs struct {
	// class is nil if it does not exist, or if no driver serves it.
	class *v1alpha1.MachineClass
	// secret has the merged data of the class's Secrets; nil without a class.
	secret *corev1.Secret
	// awaited reports that the class is of a legacy kind and will be a MachineClass; migrating, that in
	// addition no problem is known.
	awaited, migrating bool
}

// ofMachine returns the inputs for a Machine. missing says what does not exist; empty if everything does.
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
	missing = fmt.Sprintf("Class kind %q of machine %q is not supported, only %s is", ref.Kind, machine.Name, v1alpha1.MachineClassKind)
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

// ofClass returns the inputs of a class, which is not changed. missing is as in ofMachine.
func (r inputReader) ofClass(ctx context.Context, class *v1alpha1.MachineClass) (in classInputs, missing string, err error) {
	if message := r.Drivers.Refusal(class); message != "" {
		return classInputs{}, message, nil
	}
	secret, missing, err := fieldindex.MergedSecret(ctx, r.Client, class)
	return classInputs{class: class, secret: secret}, missing, err
}

// readClass returns a class from the cache, which must not be changed; nil if it does not exist.
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

// invalid returns why no VM can be created from complete inputs; empty if one can.
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
