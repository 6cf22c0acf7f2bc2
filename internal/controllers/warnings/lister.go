package warnings

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// lister reads a class or a Secret with a list request for a single object. The roles of the manager do not allow get
// requests for these kinds, since the manager reads them from its cache.
type lister struct{ client.Reader }

// Get implements client.Reader.
func (l lister) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	only := []client.ListOption{client.InNamespace(key.Namespace), client.MatchingFields{"metadata.name": key.Name}}
	switch into := into.(type) {
	case *v1alpha1.MachineClass:
		list := &v1alpha1.MachineClassList{}
		if err := l.List(ctx, list, only...); err != nil {
			return err
		}
		return first(list.Items, into, v1alpha1.Resource("machineclasses"), key)
	case *corev1.Secret:
		list := &corev1.SecretList{}
		if err := l.List(ctx, list, only...); err != nil {
			return err
		}
		return first(list.Items, into, corev1.Resource("secrets"), key)
	}
	return l.Reader.Get(ctx, key, into, options...)
}

// first copies the only object of a list. It returns a NotFound error if the list is empty.
func first[T any](list []T, into *T, resource schema.GroupResource, key client.ObjectKey) error {
	if len(list) == 0 {
		return apierrors.NewNotFound(resource, key.Name)
	}
	*into = list[0]
	return nil
}
