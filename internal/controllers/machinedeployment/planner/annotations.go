package planner

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
)

// isTrue is the value of labels and annotations that say yes.
const isTrue = "True"

// notCopied are the annotations of a deployment that its sets do not get.
var notCopied = []string{
	"kubectl.kubernetes.io/last-applied-configuration",
	v1alpha1.AnnotationKeyRevision,
	v1alpha1.AnnotationKeyRevisionHistory,
	v1alpha1.AnnotationKeyDesiredReplicas,
	v1alpha1.AnnotationKeyMaxReplicas,
	v1alpha1.AnnotationKeyPreferNoSchedule,
	v1alpha1.AnnotationKeyUnfreeze,
	v1alpha1.AnnotationKeyTriggerDeletion,
}

func copiedAnnotations(deployment *v1alpha1.MachineDeployment) map[string]string {
	copied := map[string]string{}
	maps.Copy(copied, deployment.Annotations)
	for _, key := range notCopied {
		delete(copied, key)
	}
	return copied
}

// operational are the annotations of a deployment that say how its Machines are created and deleted
// now, whatever template they have. So old sets get them, too, and a rollback leaves them. All others
// an old set keeps as they were when it was current: they say why it was created, and a rollback
// brings them back. MCM overwrites those whenever it scales a set.
var operational = []string{v1alpha1.AnnotationKeyLastReplicaChange, v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout}

// copyOperational copies them to a set.
func copyOperational(set *v1alpha1.MachineSet, deployment *v1alpha1.MachineDeployment) {
	for _, key := range operational {
		if value, ok := deployment.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&set.ObjectMeta, key, value)
		}
	}
}

// setReplicaAnnotations records for which size of the deployment a set was last scaled.
func setReplicaAnnotations(set *v1alpha1.MachineSet, f Facts, size int32) {
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyDesiredReplicas, strconv.Itoa(int(size)))
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyMaxReplicas, strconv.Itoa(int(size)+int(f.surge)))
}

// longestHistory is how many characters the history of a set's revisions may have, as for a
// ReplicaSet in Kubernetes.
const longestHistory = 2000

// setRevision gives a set a revision. The one that it had before goes to its history, which loses its
// oldest entries when it gets too long.
func setRevision(set *v1alpha1.MachineSet, number int64) {
	if was := set.Annotations[v1alpha1.AnnotationKeyRevision]; was != "" {
		history := was
		if before := set.Annotations[v1alpha1.AnnotationKeyRevisionHistory]; before != "" {
			history = strings.Join([]string{before, was}, ",")
		}
		for len(history) > longestHistory {
			_, history, _ = strings.Cut(history, ",")
		}
		metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyRevisionHistory, history)
	}
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyRevision, strconv.FormatInt(number, 10))
}

// lastRevision returns the highest revision of the old sets.
func lastRevision(f Facts) int64 {
	var last int64
	for _, set := range f.Old {
		last = max(last, given(set))
	}
	return last
}

// given returns the revision of a set or a deployment. The highest number there is was written by
// somebody else: nothing could come after it, so it does not count.
func given(of metav1.Object) int64 {
	number := revision.Number(of)
	if number == math.MaxInt64 {
		return 0
	}
	return number
}

// TemplateRevision returns the revision that the deployment's template has, or is about to get.
func TemplateRevision(f Facts) int64 {
	last := lastRevision(f)
	switch {
	case f.Current == nil:
		return max(given(f.Deployment), last) + 1
	case revision.Number(f.Current) <= last:
		return last + 1
	default:
		return revision.Number(f.Current)
	}
}

// WasComplete reports whether the rollout of the current set was complete before, so that what
// happens now is that the deployment is scaled, or that a Machine is replaced. The deployment's
// revision says which set its status was about; it is written after a status that begins another
// rollout. If sets were deleted by hand, the current one may have a lower revision.
func WasComplete(f Facts) bool {
	status := f.Deployment.Status
	complete := func(c v1alpha1.MachineDeploymentCondition) bool {
		return c.Type == v1alpha1.MachineDeploymentProgressing && c.Reason == v1alpha1.DeploymentReasonComplete
	}
	if f.Current == nil || !slices.ContainsFunc(status.Conditions, complete) || Total(f.Old, Desired) > 0 {
		return false
	}
	set, recorded := revision.Number(f.Current), revision.Number(f.Deployment)
	return set == recorded || set < recorded && status.ObservedGeneration == f.Deployment.Generation
}

// Annotated returns the deployment with what its metadata say about its sets: the revision, whether
// one is frozen, and which of the named Machines are still to go.
func Annotated(f Facts) *v1alpha1.MachineDeployment {
	deployment := f.Deployment.DeepCopy()
	if f.Current != nil && revision.Number(f.Current) > given(deployment) {
		metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, v1alpha1.AnnotationKeyRevision, f.Current.Annotations[v1alpha1.AnnotationKeyRevision])
	}
	delete(deployment.Annotations, v1alpha1.AnnotationKeyUnfreeze) // its sets have it by now
	if slices.ContainsFunc(f.All(), Frozen) {
		metav1.SetMetaDataLabel(&deployment.ObjectMeta, v1alpha1.LabelKeyFreeze, isTrue)
	} else {
		delete(deployment.Labels, v1alpha1.LabelKeyFreeze)
	}
	if names := pendingNames(f); names != "" {
		metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, v1alpha1.AnnotationKeyTriggerDeletion, names)
	} else {
		delete(deployment.Annotations, v1alpha1.AnnotationKeyTriggerDeletion)
	}
	return deployment
}
