package machine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

// classInputs is what a driver needs besides the Machine.
type classInputs struct {
	class  *v1alpha1.MachineClass
	secret *corev1.Secret
}

// classInputs returns the Machine's class and the merged data of its Secrets. What is missing
// is no error but a message.
func (c *Controller) classInputs(ctx context.Context, machine *v1alpha1.Machine) (inputs classInputs, missing string, err error) {
	ref := machine.Spec.Class
	if ref.Kind != v1alpha1.MachineClassKind {
		return classInputs{}, fmt.Sprintf("Class kind %q of machine %q is not supported, only %s is", ref.Kind, machine.Name, v1alpha1.MachineClassKind), nil
	}
	class := &v1alpha1.MachineClass{}
	if err := c.Client.Get(ctx, types.NamespacedName{Namespace: machine.Namespace, Name: ref.Name}, class); err != nil {
		if apierrors.IsNotFound(err) {
			return classInputs{}, fmt.Sprintf("MachineClass %q not found in namespace %q", ref.Name, machine.Namespace), nil
		}
		return classInputs{}, "", fmt.Errorf("reading MachineClass %s: %w", ref.Name, err)
	}
	if message := validation.Driver(class, c.DriverName); message != "" {
		return classInputs{}, message, nil
	}
	secret, missing, err := fieldindex.MergedSecret(ctx, c.Client, class)
	return classInputs{class: class, secret: secret}, missing, err
}

// held reports whether the class carries our finalizer. Without it the class could vanish
// while an instance is made from it, and nobody could delete that instance again.
func (i classInputs) held() bool {
	return controllerutil.ContainsFinalizer(i.class, v1alpha1.FinalizerMCM)
}

// invalid says why nothing can be created from the inputs yet; empty if all is well.
func (i classInputs) invalid() string {
	if errs := validation.MachineClass(i.class); len(errs) > 0 {
		return fmt.Sprintf("MachineClass %q is not valid: %v", i.class.Name, errs.ToAggregate())
	}
	if !i.held() && !i.class.DeletionTimestamp.IsZero() {
		return fmt.Sprintf("MachineClass %q is being deleted", i.class.Name)
	}
	if _, ok := i.secret.Data[bootstrap.UserDataKey]; !ok {
		return fmt.Sprintf("No Secret of MachineClass %q has the key %q", i.class.Name, bootstrap.UserDataKey)
	}
	return ""
}
