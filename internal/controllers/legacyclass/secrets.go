package legacyclass

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// handOverSecrets replaces the finalizers that MCM put on the Secrets of legacy classes, since nothing else would remove
// them. It keeps finalizers on Secrets that other legacy objects need.
func (c *Controller) handOverSecrets(ctx context.Context, s *scope) flow.Result {
	for _, name := range secretsOf(s.object) {
		needed, err := c.secretNeeded(ctx, s, name)
		if err != nil {
			return flow.Fail(err)
		}
		if needed {
			continue
		}
		secret := &corev1.Secret{}
		err = c.Client.Get(ctx, client.ObjectKey{Namespace: s.key.Namespace, Name: name}, secret)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return flow.Fail(fmt.Errorf("reading Secret %s: %w", name, err))
		}
		before := secret.DeepCopy()
		if !moveFinalizer(secret, v1alpha1.FinalizerSecret, v1alpha1.FinalizerMCM, v1alpha1.FinalizerLegacy) {
			continue
		}
		if err := c.Client.Patch(ctx, secret, expectations.Locked(before)); apierror.IgnoreGone(err) != nil {
			return flow.Fail(fmt.Errorf("changing the finalizers of Secret %s: %w", name, err))
		}
	}
	return flow.Continue()
}

// secretsOf returns the names of the Secrets that an object refers to in its own namespace.
func secretsOf(object *unstructured.Unstructured) []string {
	var names []string
	for _, field := range []string{"secretRef", "credentialsSecretRef"} {
		name, _, _ := unstructured.NestedString(object.Object, "spec", field, "name")
		namespace, _, _ := unstructured.NestedString(object.Object, "spec", field, "namespace")
		if name != "" && (namespace == "" || namespace == object.GetNamespace()) {
			names = append(names, name)
		}
	}
	return names
}

// secretNeeded reports whether another object that is not migrated refers to a Secret.
func (c *Controller) secretNeeded(ctx context.Context, s *scope, secret string) (bool, error) {
	for _, kind := range c.Kinds {
		others, err := c.list(ctx, kind, client.InNamespace(s.key.Namespace))
		if err != nil {
			return false, err
		}
		for _, other := range others {
			if other.identity() == s.identity() || other.migrated() {
				continue
			}
			if slices.Contains(secretsOf(other.object), secret) {
				return true, nil
			}
		}
	}
	return false, nil
}

// markMigrated marks the object as migrated and removes its finalizers in one write.
func (c *Controller) markMigrated(ctx context.Context, s *scope) flow.Result {
	before, marked := s.object.DeepCopy(), false
	if (len(s.users) > 0 || s.begun()) && !s.migrated() {
		annotations := s.object.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[legacy.AnnotationMigrated] = "present"
		s.object.SetAnnotations(annotations)
		marked = true
	}
	changed := controllerutil.RemoveFinalizer(s.object, v1alpha1.FinalizerMCM)
	changed = controllerutil.RemoveFinalizer(s.object, v1alpha1.FinalizerLegacy) || changed
	if !marked && !changed {
		return flow.Continue()
	}
	if err := c.Client.Patch(ctx, s.object, expectations.Locked(before)); err != nil {
		return flow.Fail(apierror.IgnoreGone(err))
	}
	if marked {
		c.Events.Eventf(s.object, corev1.EventTypeNormal, reasonMigrated, "Migrated to the MachineClass of the same name")
	}
	return flow.Continue()
}
