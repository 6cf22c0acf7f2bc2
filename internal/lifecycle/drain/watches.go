package drain

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Events finds the machines whose drains an event in the cluster of the nodes concerns.
type Events struct {
	// Draining finds the machines of a node that are being deleted.
	Draining func(ctx context.Context, node string) []reconcile.Request
	// Drainer knows whose drains wait for what.
	Drainer interface {
		Awaiting(persistentVolume string) []types.NamespacedName
		Refused(namespace string) []types.NamespacedName
	}
}

// Sources returns the events, of the sources that watch makes.
func (e Events) Sources(watch func(client.Object, handler.EventHandler, ...predicate.Predicate) source.Source) []source.Source {
	mapped := handler.EnqueueRequestsFromMapFunc
	return []source.Source{
		watch(&corev1.Node{}, mapped(e.OfNode), VolumeChanges()),
		watch(&corev1.Pod{}, mapped(e.OfPod), PodChanges()),
		watch(&storagev1.VolumeAttachment{}, mapped(e.OfAttachment)),
		watch(&policyv1.PodDisruptionBudget{}, mapped(e.OfBudget)),
	}
}

// OfNode finds the machines of a Node.
func (e Events) OfNode(ctx context.Context, object client.Object) []reconcile.Request {
	return e.Draining(ctx, object.GetName())
}

// OfPod finds the machines of a Pod's node.
func (e Events) OfPod(ctx context.Context, object client.Object) []reconcile.Request {
	return e.Draining(ctx, object.(*corev1.Pod).Spec.NodeName)
}

// OfAttachment finds the machines of a VolumeAttachment's node, and those that wait for its
// volume.
func (e Events) OfAttachment(ctx context.Context, object client.Object) []reconcile.Request {
	attachment := object.(*storagev1.VolumeAttachment)
	requests := e.Draining(ctx, attachment.Spec.NodeName)
	if volume := attachment.Spec.Source.PersistentVolumeName; volume != nil {
		requests = append(requests, requestsFor(e.Drainer.Awaiting(*volume))...)
	}
	return requests
}

// OfBudget finds the machines whose drains a PodDisruptionBudget holds up.
func (e Events) OfBudget(_ context.Context, object client.Object) []reconcile.Request {
	return requestsFor(e.Drainer.Refused(object.GetNamespace()))
}

func requestsFor(keys []types.NamespacedName) []reconcile.Request {
	requests := make([]reconcile.Request, len(keys))
	for i, key := range keys {
		requests[i].NamespacedName = key
	}
	return requests
}

// VolumeChanges lets through that volumes were attached or detached. That nodes come and go is
// for others to watch.
func VolumeChanges() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return VolumesDiffer(e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node))
		},
	}
}
