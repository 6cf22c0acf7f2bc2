package drain

import (
	"context"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Evictor asks an API server to evict pods. Its errors are those of the API server; a pod
// of that name with another UID is a conflict.
type Evictor interface {
	Evict(ctx context.Context, pod types.NamespacedName, uid types.UID) error
}

// NewEvictor makes an Evictor that uses the subresource eviction in policy/v1. The client
// is that of the core group, as CoreV1().RESTClient() is one. On an API server without the
// subresource, pods are deleted instead, with their own grace period.
func NewEvictor(core rest.Interface) Evictor { return restEvictor{core} }

type restEvictor struct{ core rest.Interface }

func (e restEvictor) Evict(ctx context.Context, pod types.NamespacedName, uid types.UID) error {
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(uid))}
	eviction := &policyv1.Eviction{
		TypeMeta:      metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "Eviction"},
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &options,
	}
	// A refusal may carry a Retry-After, which client-go would sleep for, up to ten times.
	err := e.core.Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
		VersionedParams(&metav1.CreateOptions{}, scheme.ParameterCodec).MaxRetries(0).Body(eviction).Do(ctx).Error()
	if !unsupported(err) {
		return err
	}
	return e.core.Delete().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		MaxRetries(0).Body(&options).Do(ctx).Error()
}

// unsupported tells a missing subresource from a missing pod: only the latter is answered
// in the API's own form.
func unsupported(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.IsUnexpectedServerError(err)
}
