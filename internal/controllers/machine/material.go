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

// material is what a driver needs besides the Machine.
type material struct {
	class  *v1alpha1.MachineClass
	secret *corev1.Secret
}

// material finds the Machine's class and the merged data of its Secrets. What is
// missing is no error: it is said in a sentence.
func (c *Controller) material(ctx context.Context, machine *v1alpha1.Machine) (material, string, error) {
	ref := machine.Spec.Class
	if ref.Kind != v1alpha1.MachineClassKind {
		return material{}, fmt.Sprintf("Class kind %q of machine %q is not supported, only %s is", ref.Kind, machine.Name, v1alpha1.MachineClassKind), nil
	}
	class := &v1alpha1.MachineClass{}
	if err := c.Client.Get(ctx, types.NamespacedName{Namespace: machine.Namespace, Name: ref.Name}, class); err != nil {
		if apierrors.IsNotFound(err) {
			return material{}, fmt.Sprintf("MachineClass %q not found in namespace %q", ref.Name, machine.Namespace), nil
		}
		return material{}, "", fmt.Errorf("reading MachineClass %s: %w", ref.Name, err)
	}
	if sentence := validation.Driver(class, c.DriverName); sentence != "" {
		return material{}, sentence, nil
	}
	secret, missing, err := fieldindex.MergedSecret(ctx, c.Client, class)
	return material{class: class, secret: secret}, missing, err
}

// held reports whether the class carries our finalizer. Without it the class could vanish
// while an instance is made from it, and nobody could delete that instance again.
func (m material) held() bool {
	return controllerutil.ContainsFinalizer(m.class, v1alpha1.FinalizerMCM)
}

// unfit says why nothing can be created from the material yet; empty if all is well.
func (m material) unfit() string {
	if errs := validation.MachineClass(m.class); len(errs) > 0 {
		return fmt.Sprintf("MachineClass %q is not valid: %v", m.class.Name, errs.ToAggregate())
	}
	if !m.held() && !m.class.DeletionTimestamp.IsZero() {
		return fmt.Sprintf("MachineClass %q is being deleted", m.class.Name)
	}
	if _, ok := m.secret.Data[bootstrap.UserDataKey]; !ok {
		return fmt.Sprintf("No Secret of MachineClass %q has the key %q", m.class.Name, bootstrap.UserDataKey)
	}
	return ""
}
