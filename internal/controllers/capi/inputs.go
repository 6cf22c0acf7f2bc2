package capi

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/credentials"
	"github.com/millwright-dev/millwright/internal/controllers/capi/translate"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// missing is an input of the driver that is not there. The zero value is nothing.
type missing struct{ reason, message string }

// findOwner finds the Machine, and reports whether it is there.
func (c *Controller) findOwner(ctx context.Context, s *scope) (bool, error) {
	name := core.Owner(s.machine, core.MachineKind)
	if name == "" {
		return false, nil
	}
	owner := &core.Machine{}
	if err := c.Client.Get(ctx, types.NamespacedName{Namespace: s.machine.Namespace, Name: name}, owner); err != nil {
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return false, fmt.Errorf("reading Machine %s: %w", name, err)
	}
	s.owner = owner
	return true, nil
}

// findCluster finds the Cluster, if it is there.
func (c *Controller) findCluster(ctx context.Context, s *scope) error {
	name := clusterOf(s)
	if name == "" {
		return nil
	}
	cluster := &core.Cluster{}
	if err := c.Client.Get(ctx, types.NamespacedName{Namespace: s.machine.Namespace, Name: name}, cluster); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("reading Cluster %s: %w", name, err)
	}
	s.cluster = cluster
	return nil
}

// clusterOf names the Cluster; empty if nothing does.
func clusterOf(s *scope) string {
	if s.owner != nil {
		if name := s.owner.Labels[core.LabelCluster]; name != "" {
			return name
		}
		return s.owner.Spec.ClusterName
	}
	return s.machine.Labels[core.LabelCluster]
}

// collect makes what the driver gets.
func (c *Controller) collect(ctx context.Context, s *scope) (missing, error) {
	spec := &s.machine.Spec
	given := translate.Given{Machine: s.machine, FailureDomain: spec.FailureDomain, Placer: c.Placer}
	switch {
	case spec.MachineClassRef != nil:
		class, secret, missed, err := c.class(ctx, s.machine)
		if err != nil || missed != (missing{}) {
			return missed, err
		}
		given.Class, given.Secret, s.class = class, secret, class
	case spec.ProviderSpec == nil: // the API server refuses that; an old object may have it
		return missing{infrav1.ReasonInvalidSpec, "neither spec.providerSpec nor spec.machineClassRef is set"}, nil
	}
	s.credentials = given.Class != nil && len(credentials.OfClass(given.Class)) > 0
	if ref := spec.CredentialsSecretRef; ref != nil {
		data, missed, err := c.credentials(ctx, s, ref.Name)
		if err != nil || missed != (missing{}) {
			return missed, err
		}
		given.Secret = overlay(given.Secret, data)
	}
	return s.synthesise(given)
}

// credentials reads what the driver needs to log in.
func (c *Controller) credentials(ctx context.Context, s *scope, name string) (map[string][]byte, missing, error) {
	secret := &corev1.Secret{}
	if err := c.Live.Get(ctx, types.NamespacedName{Namespace: s.machine.Namespace, Name: name}, secret); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, missing{infrav1.ReasonCredentialsMissing, fmt.Sprintf("Secret %q of spec.credentialsSecretRef does not exist", name)}, nil
		}
		return nil, missing{}, fmt.Errorf("reading Secret %s: %w", name, err)
	}
	s.credentials = true
	s.unheld = !controllerutil.ContainsFinalizer(secret, infrav1.SecretFinalizer) && secret.DeletionTimestamp.IsZero()
	return secret.Data, missing{}, nil
}

func overlay(under, over map[string][]byte) map[string][]byte {
	data := map[string][]byte{}
	maps.Copy(data, under)
	maps.Copy(data, over)
	return data
}

func (s *scope) synthesise(given translate.Given) (missing, error) {
	objects, err := translate.Request(given)
	switch {
	case errors.Is(err, translate.ErrFailureDomain):
		return missing{infrav1.ReasonUnknownFailureDomain, err.Error()}, nil
	case err != nil:
		return missing{infrav1.ReasonInvalidSpec, err.Error()}, nil
	}
	s.objects = objects
	return missing{}, nil
}

// class finds the class that the object refers to, and the merged data of its Secrets.
func (c *Controller) class(ctx context.Context, machine *infrav1.MillwrightMachine) (*v1alpha1.MachineClass, map[string][]byte, missing, error) {
	name := machine.Spec.MachineClassRef.Name
	class := &v1alpha1.MachineClass{}
	if err := c.Client.Get(ctx, types.NamespacedName{Namespace: machine.Namespace, Name: name}, class); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil, missing{infrav1.ReasonMachineClassMissing, fmt.Sprintf("MachineClass %q of spec.machineClassRef does not exist", name)}, nil
		}
		return nil, nil, missing{}, fmt.Errorf("reading MachineClass %s: %w", name, err)
	}
	secret, absent, err := fieldindex.MergedSecret(ctx, c.Live, class)
	if err != nil {
		return nil, nil, missing{}, err
	}
	if absent != "" {
		return nil, nil, missing{infrav1.ReasonMachineClassMissing, absent}, nil
	}
	return class, secret.Data, missing{}, nil
}
