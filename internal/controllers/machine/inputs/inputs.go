// Package inputs reads what the VMs of Machines are made from: their classes, and the Secrets of these.
package inputs

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

// Migration is where the migration of a class of a legacy kind to a MachineClass stands.
type Migration struct {
	// Pending says that the class is to be migrated. Its Machines wait, also with their deletion.
	Pending bool
	// Problem says what keeps the class from being migrated; empty if nothing is known.
	Problem string
}

// Reader reads inputs.
type Reader struct {
	// Client reads from the cache.
	Client client.Reader
	// Drivers are those that may serve a class. Nil means that classes are not checked.
	Drivers *registry.Registry
	// Migration tells where the migration of a class of a legacy kind stands. Nil means that there
	// are no such kinds.
	Migration func(ctx context.Context, namespace string, class v1alpha1.ClassSpec) (Migration, error)
}

// Inputs are what a driver needs of a class.
type Inputs struct {
	// Class is nil if it is missing, or if no driver serves it.
	Class *v1alpha1.MachineClass
	// Secret is that of the class; nil without a class.
	Secret *corev1.Secret
	// Awaited says that the class is of a legacy kind and will be a MachineClass; Migrating, that
	// nothing is known to be in the way.
	Awaited, Migrating bool
}

// OfMachine returns the inputs of a Machine. missing says what is not there; empty if all is.
func (r Reader) OfMachine(ctx context.Context, machine *v1alpha1.Machine) (inputs Inputs, missing string, err error) {
	ref := machine.Spec.Class
	if ref.Kind != v1alpha1.MachineClassKind {
		return r.ofOlderClass(ctx, machine)
	}
	class := &v1alpha1.MachineClass{}
	if err := r.Client.Get(ctx, types.NamespacedName{Namespace: machine.Namespace, Name: ref.Name}, class); err != nil {
		if apierrors.IsNotFound(err) {
			return Inputs{}, fmt.Sprintf("MachineClass %q not found in namespace %q", ref.Name, machine.Namespace), nil
		}
		return Inputs{}, "", fmt.Errorf("reading MachineClass %s: %w", ref.Name, err)
	}
	return r.OfClass(ctx, class)
}

// ofOlderClass returns the inputs of a Machine whose class is no MachineClass.
func (r Reader) ofOlderClass(ctx context.Context, machine *v1alpha1.Machine) (inputs Inputs, missing string, err error) {
	ref := machine.Spec.Class
	missing = fmt.Sprintf("Class kind %q of machine %q is not supported, only %s is", ref.Kind, machine.Name, v1alpha1.MachineClassKind)
	if r.Migration == nil {
		return Inputs{}, missing, nil
	}
	migration, err := r.Migration(ctx, machine.Namespace, ref)
	switch {
	case err != nil:
		return Inputs{}, "", err
	case migration.Problem != "":
		missing = migration.Problem
	case migration.Pending:
		missing = fmt.Sprintf("%s %q is being migrated to a %s", ref.Kind, ref.Name, v1alpha1.MachineClassKind)
	}
	return Inputs{Awaited: migration.Pending, Migrating: migration.Pending && migration.Problem == ""}, missing, nil
}

// OfClass returns what a driver needs of a class, which is not changed. missing is as in OfMachine.
func (r Reader) OfClass(ctx context.Context, class *v1alpha1.MachineClass) (inputs Inputs, missing string, err error) {
	if message := r.Drivers.Refusal(class); message != "" {
		return Inputs{}, message, nil
	}
	secret, missing, err := fieldindex.MergedSecret(ctx, r.Client, class)
	return Inputs{Class: class, Secret: secret}, missing, err
}

// Invalid returns why no VM can be made from inputs of which nothing is missing; empty if one can.
func (i Inputs) Invalid() string {
	if errs := validation.MachineClass(i.Class); len(errs) > 0 {
		return fmt.Sprintf("MachineClass %q is not valid: %v", i.Class.Name, errs.ToAggregate())
	}
	if !controllerutil.ContainsFinalizer(i.Class, v1alpha1.FinalizerMCM) && !i.Class.DeletionTimestamp.IsZero() {
		return fmt.Sprintf("MachineClass %q is being deleted", i.Class.Name)
	}
	if _, ok := i.Secret.Data[bootstrap.UserDataKey]; !ok {
		return fmt.Sprintf("No Secret of MachineClass %q has the key %q", i.Class.Name, bootstrap.UserDataKey)
	}
	return ""
}
