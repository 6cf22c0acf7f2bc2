package manager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// unreadable reports which object prevents a cache from reading a kind of the group machine.sapcloud.io.
// Millwright's CRDs refuse nearly everything that the Go types cannot hold, but MCM's CRDs do not. With those,
// "drainTimeout: 10" in one Machine prevents every Machine from being reconciled, and client-go's error does
// not name the Machine.
type unreadable struct {
	// reader reads from the API server.
	reader client.Reader
	events record.EventRecorder
	log    logr.Logger
	scheme *runtime.Scheme
	// namespace is the namespace of the cache. Empty means all namespaces.
	namespace string
}

// watching wraps the list of an informer to report why it fails, for kinds of machine.sapcloud.io.
func (u *unreadable) watching(object runtime.Object, list toolscache.ListWithContextFunc) toolscache.ListWithContextFunc {
	kind, err := apiutil.GVKForObject(object, u.scheme)
	if err != nil || kind.GroupVersion() != v1alpha1.SchemeGroupVersion {
		return list
	}
	return func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		found, err := list(ctx, options)
		if status := apierrors.APIStatus(nil); err != nil && !errors.As(err, &status) && ctx.Err() == nil {
			u.report(ctx, kind)
		}
		return found, err
	}
}

// report reports which objects of a kind cannot be decoded, in the log and in an event for each.
func (u *unreadable) report(ctx context.Context, kind schema.GroupVersionKind) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err := u.reader.List(ctx, list, client.InNamespace(u.namespace)); err != nil {
		return // the informer logs that error
	}
	for i := range list.Items {
		object := &list.Items[i]
		if err := u.read(object); err != nil {
			u.log.Error(err, "cannot decode an object; no objects of its kind are reconciled until it is corrected", "kind", kind.Kind, "object", client.ObjectKeyFromObject(object))
			u.events.Eventf(object, corev1.EventTypeWarning, "Unreadable", "The manager cannot decode this object, and no objects of its kind are reconciled until it is corrected: %v", err)
		}
	}
}

// read decodes an object as the typed clients do.
func (u *unreadable) read(object *unstructured.Unstructured) error {
	raw, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("encoding it as JSON: %w", err)
	}
	typed, err := u.scheme.New(object.GroupVersionKind())
	if err != nil {
		return err
	}
	return utiljson.Unmarshal(raw, typed)
}
