package drain

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// The indexes that a Drainer needs, to be used with client.MatchingFields.
const (
	// PodByNode finds the Pods of a Node by the Node's name.
	PodByNode = "drain.pod.node"
	// AttachmentByNode finds the VolumeAttachments of a Node by the Node's name.
	AttachmentByNode = "drain.attachment.node"
	// AttachmentByVolume finds the VolumeAttachments of a PersistentVolume by its name.
	AttachmentByVolume = "drain.attachment.volume"
)

// AddIndexes adds the indexes to the cache of the target cluster. To be called before
// the cache starts.
func AddIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, index := range []struct {
		object client.Object
		name   string
		value  func(client.Object) string
	}{
		{&corev1.Pod{}, PodByNode, func(o client.Object) string { return o.(*corev1.Pod).Spec.NodeName }},
		{&storagev1.VolumeAttachment{}, AttachmentByNode, func(o client.Object) string { return o.(*storagev1.VolumeAttachment).Spec.NodeName }},
		{&storagev1.VolumeAttachment{}, AttachmentByVolume, func(o client.Object) string { return volumeOf(o.(*storagev1.VolumeAttachment)) }},
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

// volumeOf is the name of the PersistentVolume that is attached; "" for an inline volume.
func volumeOf(attachment *storagev1.VolumeAttachment) string {
	if name := attachment.Spec.Source.PersistentVolumeName; name != nil {
		return *name
	}
	return ""
}

// StripPod leaves of a Pod what a drain reads, and is a transform for the cache of the
// target cluster's Pods, which may be many. It changes the Pod itself, of which the cache has
// the only copy at that time. A Pod without containers, which no API server has, was stripped
// before: caches do that twice, and by then others may read it. What is no Pod is returned as
// it is. It never fails.
func StripPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok || len(pod.Spec.Containers) == 0 {
		return object, nil
	}
	*pod = corev1.Pod{
		TypeMeta: pod.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Labels: pod.Labels, Annotations: mirrorOf(pod), OwnerReferences: pod.OwnerReferences,
			DeletionTimestamp: pod.DeletionTimestamp, DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, Priority: pod.Spec.Priority, Volumes: claimedVolumes(pod),
			TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}
	return pod, nil
}

// mirrorOf is the annotation by which a Pod is known that only mirrors what a kubelet runs.
func mirrorOf(pod *corev1.Pod) map[string]string {
	mirror, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	if !ok {
		return nil
	}
	return map[string]string{corev1.MirrorPodAnnotationKey: mirror}
}

// claimedVolumes are those volumes of a Pod that are claims.
func claimedVolumes(pod *corev1.Pod) []corev1.Volume {
	var volumes []corev1.Volume
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		kept := corev1.Volume{Name: volume.Name}
		switch {
		case volume.PersistentVolumeClaim != nil:
			kept.PersistentVolumeClaim = volume.PersistentVolumeClaim
		case volume.Ephemeral != nil:
			kept.Ephemeral = &corev1.EphemeralVolumeSource{} // the claim's name follows from the volume's
		default:
			continue
		}
		volumes = append(volumes, kept)
	}
	return volumes
}

// PodChanges lets through what a drain waits for of Pods: that one comes to a node,
// begins to go, ends, or is gone.
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
