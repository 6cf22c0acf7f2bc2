// Package inputs creates the request to a driver from a MillwrightMachine, and the MachineClass and Secrets that it
// refers to.
package inputs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// Error describes an input that is missing or invalid.
type Error struct {
	// Reason is the reason of the condition, one of those in package infrastructure/v1alpha1.
	Reason, Message string
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Reader reads inputs.
type Reader struct {
	// Cache reads MachineClasses. Required.
	Cache client.Reader
	// Live reads Secrets from the API server. Each Secret is read only a few times, and a cache would need permission
	// to list all Secrets. Required.
	Live client.Reader
	// Placer is the driver, if it supports failure domains; nil if it does not.
	Placer driver.FailureDomains
	// Field is the path of the references, for messages. If empty, it is spec.
	Field string
}

// Inputs are the objects that were read, and the request that was created from them.
type Inputs struct {
	Objects
	// MachineClass is the referenced class, as it is stored; nil if there is no reference.
	MachineClass *v1alpha1.MachineClass
	// Credentials is the Secret of credentialsSecretRef; nil if there is no reference.
	Credentials *corev1.Secret
}

// UseSecrets reports whether the request has data from Secrets.
func (i Inputs) UseSecrets() bool {
	return i.Credentials != nil || i.MachineClass != nil && len(fieldindex.SecretsOf(i.MachineClass)) > 0
}

// Read returns the inputs of a machine. It returns an Error if one is missing. In that case it still returns the
// MachineClass, if that and its Secrets exist.
func (r Reader) Read(ctx context.Context, machine *infrav1.MillwrightMachine) (Inputs, error) {
	var read Inputs
	given := source{Machine: machine, Secret: map[string][]byte{}, Placer: r.Placer}
	if ref := machine.Spec.MachineClassRef; ref != nil {
		class, err := r.Class(ctx, machine.Namespace, ref)
		if err != nil {
			return read, err
		}
		secret, missing, err := fieldindex.MergedSecret(ctx, r.Live, class)
		switch {
		case err != nil:
			return read, err
		case missing != "":
			return read, &Error{infrav1.ReasonMachineClassMissing, missing}
		}
		read.MachineClass, given.Class, given.Secret = class, class, secret.Data
	}
	if ref := machine.Spec.CredentialsSecretRef; ref != nil {
		read.Credentials = &corev1.Secret{}
		err := r.get(ctx, r.Live, types.NamespacedName{Namespace: machine.Namespace, Name: ref.Name}, read.Credentials, "credentialsSecretRef")
		if err != nil {
			return read, err
		}
		maps.Copy(given.Secret, read.Credentials.Data)
	}
	objects, err := request(ctx, given)
	switch {
	case errors.Is(err, errFailureDomain):
		return read, &Error{infrav1.ReasonUnknownFailureDomain, err.Error()}
	case err != nil:
		return read, &Error{infrav1.ReasonInvalidSpec, err.Error()}
	}
	read.Objects = objects
	return read, nil
}

// Class returns a MachineClass. It returns an Error if the class does not exist.
func (r Reader) Class(ctx context.Context, namespace string, ref *infrav1.LocalReference) (*v1alpha1.MachineClass, error) {
	class := &v1alpha1.MachineClass{}
	return class, r.get(ctx, r.Cache, types.NamespacedName{Namespace: namespace, Name: ref.Name}, class, "machineClassRef")
}

func (r Reader) get(ctx context.Context, from client.Reader, key types.NamespacedName, object client.Object, field string) error {
	kind, reason := "Secret", infrav1.ReasonCredentialsMissing
	if _, ok := object.(*v1alpha1.MachineClass); ok {
		kind, reason = "MachineClass", infrav1.ReasonMachineClassMissing
	}
	err := from.Get(ctx, key, object)
	switch {
	case apierrors.IsNotFound(err):
		return &Error{reason, fmt.Sprintf("%s %q of %s.%s does not exist", kind, key.Name, cmp.Or(r.Field, "spec"), field)}
	case err != nil:
		return fmt.Errorf("reading %s %s: %w", kind, key.Name, err)
	}
	return nil
}
