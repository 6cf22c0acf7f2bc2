// Package restore recognizes MachineSets and MachineDeployments that were restored from a backup.
//
// Backup tools restore one kind after the other, in an order of their own, without UIDs, owners and statuses. A
// restored object must not create children, because its own may be restored after it. It therefore waits for them.
// The wait begins when a controller first sees the object, is recorded in an annotation, and lasts until all
// children exist, or for [Timeout].
package restore

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Timeout is how long a restored object waits for its children. Tools restore some tens of objects per second.
const Timeout = 15 * time.Minute

// BeginSet records that a set waits for its Machines if it was restored from a backup, and reports whether it changed
// the set. A restored set has no status and no controller, but marks of an earlier life: the revision that its
// deployment gave it, or the UID or the finalizer that its controller wrote. A set that no controller has seen yet has
// none of them.
func BeginSet(set *v1alpha1.MachineSet, now time.Time) bool {
	marked := set.Annotations[v1alpha1.AnnotationKeyRevision] != "" || seenBefore(set)
	if !marked || !IsNewSet(set) || metav1.GetControllerOfNoCopy(set) != nil {
		return false
	}
	return begin(set, now)
}

// BeginDeployment records that a deployment waits for its sets if it was restored from a backup, and reports whether
// it changed the deployment. A restored deployment has no status, but the revision of a set.
func BeginDeployment(deployment *v1alpha1.MachineDeployment, now time.Time) bool {
	if deployment.Annotations[v1alpha1.AnnotationKeyRevision] == "" || !IsNewDeployment(deployment) {
		return false
	}
	return begin(deployment, now)
}

// begin sets the annotation, unless the wait has begun. A time that is over is from the backup.
func begin(object metav1.Object, now time.Time) bool {
	if Waits(object) && !Expired(object, now) {
		return false
	}
	annotate(object, v1alpha1.AnnotationKeyAwaitsRestoreUntil, now.Add(Timeout).UTC().Format(time.RFC3339))
	return true
}

func annotate(object metav1.Object, key, value string) {
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = value
	object.SetAnnotations(annotations)
}

// IsNewSet reports whether no controller has written the status of a set. The wait does not end before that, since it
// would begin again.
func IsNewSet(set *v1alpha1.MachineSet) bool {
	return equality.Semantic.DeepEqual(set.Status, v1alpha1.MachineSetStatus{})
}

// IsNewDeployment is like [IsNewSet], for a deployment.
func IsNewDeployment(deployment *v1alpha1.MachineDeployment) bool {
	return equality.Semantic.DeepEqual(deployment.Status, v1alpha1.MachineDeploymentStatus{})
}

// seenBefore reports whether a controller saw a set before it was restored, and therefore under another UID. MCM, and
// Millwright for sets of deployments, write only the finalizer.
func seenBefore(set *v1alpha1.MachineSet) bool {
	if uid := set.Annotations[v1alpha1.AnnotationKeyUID]; uid != "" {
		return uid != string(set.UID)
	}
	return slices.Contains(set.Finalizers, v1alpha1.FinalizerMCM)
}

// RecordUID records the UID of a set without a deployment, in the write that adds the finalizer. If the process
// terminates between this write and that of the status, the set does not count as restored.
func RecordUID(set *v1alpha1.MachineSet) {
	if metav1.GetControllerOfNoCopy(set) == nil {
		annotate(set, v1alpha1.AnnotationKeyUID, string(set.UID))
	}
}

// Waits reports whether an object waits for its children. The annotation alone determines it, so users can remove it.
func Waits(object metav1.Object) bool {
	_, waits := object.GetAnnotations()[v1alpha1.AnnotationKeyAwaitsRestoreUntil]
	return waits
}

// Until returns until when an object waits at most. It returns zero if the object does not wait, or if its
// annotation is not a time.
func Until(object metav1.Object) time.Time {
	until, err := time.Parse(time.RFC3339, object.GetAnnotations()[v1alpha1.AnnotationKeyAwaitsRestoreUntil])
	if err != nil {
		return time.Time{}
	}
	return until
}

// Expired reports whether an object has waited long enough. A time that no controller can have written counts as past.
// The clocks of two controllers may differ by up to Timeout.
func Expired(object metav1.Object, now time.Time) bool {
	until := Until(object)
	return !now.Before(until) || until.After(now.Add(2*Timeout))
}

// End removes the annotation.
func End(object metav1.Object) {
	annotations := object.GetAnnotations()
	delete(annotations, v1alpha1.AnnotationKeyAwaitsRestoreUntil)
	object.SetAnnotations(annotations)
}
