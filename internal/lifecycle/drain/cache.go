package drain

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Indexes of the cache, for client.MatchingFields: Pods by the name of their Node, and VolumeAttachments by the
// names of their Node and PersistentVolume.
const (
	PodByNode          = "drain.pod.node"
	AttachmentByNode   = "drain.attachment.node"
	AttachmentByVolume = "drain.attachment.volume"
)

// AddIndexes adds the indexes to the cache of the target cluster. Call it before the cache starts.
func AddIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, index := range []struct {
		object client.Object
		name   string
		value  func(client.Object) string
	}{
		{&corev1.Pod{}, PodByNode, func(o client.Object) string { return o.(*corev1.Pod).Spec.NodeName }},
		{&storagev1.VolumeAttachment{}, AttachmentByNode, func(o client.Object) string { return o.(*storagev1.VolumeAttachment).Spec.NodeName }},
		{&storagev1.VolumeAttachment{}, AttachmentByVolume, func(o client.Object) string {
			return ptr.Deref(o.(*storagev1.VolumeAttachment).Spec.Source.PersistentVolumeName, "")
		}},
	} {
		values := func(object client.Object) []string {
			if value := index.value(object); value != "" {
				return []string{value}
			}
			return nil
		}
		if err := indexer.IndexField(ctx, index.object, index.name, values); err != nil {
			return fmt.Errorf("adding the index %s: %w", index.name, err)
		}
	}
	return nil
}

// StripPod is a cache transform for Pods that removes, in place, everything that a drain does not read. Pods
// without containers are unchanged because they were stripped before: caches transform objects twice, and the
// second time the Pod may be in use. Other objects are returned unchanged. StripPod never fails.
func StripPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok || len(pod.Spec.Containers) == 0 {
		return object, nil
	}
	*pod = corev1.Pod{
		TypeMeta: pod.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Labels: pod.Labels, CreationTimestamp: pod.CreationTimestamp, Annotations: mirrorOf(pod), OwnerReferences: pod.OwnerReferences,
			DeletionTimestamp: pod.DeletionTimestamp, DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, Priority: pod.Spec.Priority, Volumes: claimedVolumes(pod),
			TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
			Tolerations:                   cordonTolerations(pod),
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}
	return pod, nil
}

func mirrorOf(pod *corev1.Pod) map[string]string {
	mirror, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	if !ok {
		return nil
	}
	return map[string]string{corev1.MirrorPodAnnotationKey: mirror}
}

func claimedVolumes(pod *corev1.Pod) []corev1.Volume {
	var volumes []corev1.Volume
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		kept := corev1.Volume{Name: volume.Name}
		switch {
		case volume.PersistentVolumeClaim != nil:
			kept.PersistentVolumeClaim = volume.PersistentVolumeClaim
		case volume.Ephemeral != nil:
			kept.Ephemeral = &corev1.EphemeralVolumeSource{} // the name of the claim is derived from the volume's
		default:
			continue
		}
		volumes = append(volumes, kept)
	}
	return volumes
}

// PodChanges is a predicate for events in which a Pod is bound to a node, is being deleted, finishes or is
// gone.
func PodChanges() predicate.Predicate {
	bound := func(object client.Object) bool { return object.(*corev1.Pod).Spec.NodeName != "" }
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return bound(e.Object) },
		DeleteFunc: func(e event.DeleteEvent) bool { return bound(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			was, is := e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod)
			return bound(is) && (!bound(was) || was.UID != is.UID || finished(was) != finished(is) ||
				was.DeletionTimestamp.IsZero() != is.DeletionTimestamp.IsZero())
		},
	}
}

// VolumesDiffer reports whether a volume was attached to the node or detached from it.
func VolumesDiffer(was, is *corev1.Node) bool {
	before := map[corev1.UniqueVolumeName]bool{}
	for _, volume := range was.Status.VolumesAttached {
		before[volume.Name] = true
	}
	for _, volume := range is.Status.VolumesAttached {
		if !before[volume.Name] {
			return true
		}
	}
	return len(was.Status.VolumesAttached) != len(is.Status.VolumesAttached)
}

// Events maps events of the target cluster to the Machines whose drains they affect.
type Events struct {
	// Draining returns the Machines of a node that are being deleted.
	Draining func(ctx context.Context, node string) []reconcile.Request
	Drainer  interface {
		Awaiting(persistentVolume string) []types.NamespacedName
		Refused(namespace string) []types.NamespacedName
	}
}

// Sources returns all event sources, created with watch.
func (e Events) Sources(watch func(client.Object, handler.EventHandler, ...predicate.Predicate) source.Source) []source.Source {
	mapped := handler.EnqueueRequestsFromMapFunc
	return []source.Source{
		watch(&corev1.Node{}, mapped(e.OfNode), VolumeChanges()),
		watch(&corev1.Pod{}, mapped(e.OfPod), PodChanges()),
		watch(&storagev1.VolumeAttachment{}, mapped(e.OfAttachment)),
		watch(&policyv1.PodDisruptionBudget{}, mapped(e.OfBudget)),
	}
}

// OfNode returns the Machines of a Node.
func (e Events) OfNode(ctx context.Context, object client.Object) []reconcile.Request {
	return e.Draining(ctx, object.GetName())
}

// OfPod returns the Machines of a Pod's node.
func (e Events) OfPod(ctx context.Context, object client.Object) []reconcile.Request {
	return e.Draining(ctx, object.(*corev1.Pod).Spec.NodeName)
}

// OfAttachment returns the Machines of a VolumeAttachment's node and the Machines that wait for its volume.
func (e Events) OfAttachment(ctx context.Context, object client.Object) []reconcile.Request {
	attachment := object.(*storagev1.VolumeAttachment)
	requests := e.Draining(ctx, attachment.Spec.NodeName)
	if volume := attachment.Spec.Source.PersistentVolumeName; volume != nil {
		requests = append(requests, requestsFor(e.Drainer.Awaiting(*volume))...)
	}
	return requests
}

// OfBudget returns the Machines whose drains are blocked by a PodDisruptionBudget.
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

// VolumeChanges is a predicate for events in which volumes were attached to a Node or detached from it.
func VolumeChanges() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return VolumesDiffer(e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node))
		},
	}
}
