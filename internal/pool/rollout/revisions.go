package rollout

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/pool/scale"
)

// isTrue is the value of labels and annotations that are set.
const isTrue = "True"

// notCopied are the annotations of a deployment that are not copied to its sets.
var notCopied = []string{
	"kubectl.kubernetes.io/last-applied-configuration",
	v1alpha1.AnnotationKeyRevision,
	v1alpha1.AnnotationKeyRevisionHistory,
	v1alpha1.AnnotationKeyDesiredReplicas,
	v1alpha1.AnnotationKeyMaxReplicas,
	v1alpha1.AnnotationKeyPreferNoSchedule,
	v1alpha1.AnnotationKeyUnfreeze,
	v1alpha1.AnnotationKeyTriggerDeletion,
	v1alpha1.AnnotationKeyExcessReplicas,
	v1alpha1.AnnotationKeyExcessNoExecute,
	v1alpha1.AnnotationKeyFallbackClasses,
	v1alpha1.AnnotationKeyZoneMaxSkew,
	v1alpha1.AnnotationKeyReplacement,
	v1alpha1.AnnotationKeyZonesOut,
	v1alpha1.AnnotationKeyAwaitsRestoreUntil,
	v1alpha1.AnnotationKeyUID,
}

func copiedAnnotations(deployment *v1alpha1.MachineDeployment) map[string]string {
	copied := map[string]string{}
	maps.Copy(copied, deployment.Annotations)
	maps.DeleteFunc(copied, func(key, _ string) bool { return slices.Contains(notCopied, key) })
	return copied
}

// operational are the annotations of a deployment that control how Machines are created and deleted,
// independent of the template. Old sets get them too, and a rollback does not change them. Old sets keep their
// values of all other annotations, and a rollback restores those. MCM overwrites them whenever it scales a set.
var operational = []string{v1alpha1.AnnotationKeyLastReplicaChange, v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout}

// setReplicaAnnotations records the size of the deployment for which a set was last scaled.
func setReplicaAnnotations(set *v1alpha1.MachineSet, r *Rollout, size int32) {
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyDesiredReplicas, strconv.Itoa(int(size)))
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyMaxReplicas, strconv.Itoa(int(size)+int(r.surge)))
}

// TemplateRevision returns the revision that the deployment's template has or is about to get.
func (r *Rollout) TemplateRevision() int64 {
	last := revision.Last(r.Old)
	switch {
	case r.Current == nil:
		return max(revision.Followed(r.Deployment), last) + 1
	case revision.Number(r.Current) <= last:
		return last + 1
	default:
		return revision.Number(r.Current)
	}
}

// Annotated returns a copy of a deployment with the metadata that follows from its sets: the revision, whether
// a set is frozen, and which named Machines are still to be deleted, since when.
func (r *Rollout) Annotated(deployment *v1alpha1.MachineDeployment) *v1alpha1.MachineDeployment {
	deployment = deployment.DeepCopy()
	if r.Current != nil && revision.Number(r.Current) > revision.Followed(deployment) {
		metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, v1alpha1.AnnotationKeyRevision, r.Current.Annotations[v1alpha1.AnnotationKeyRevision])
	}
	delete(deployment.Annotations, v1alpha1.AnnotationKeyUnfreeze) // its sets have the annotation now
	if slices.ContainsFunc(r.sets, scale.Frozen) {
		metav1.SetMetaDataLabel(&deployment.ObjectMeta, v1alpha1.LabelKeyFreeze, isTrue)
	} else {
		delete(deployment.Labels, v1alpha1.LabelKeyFreeze)
	}
	if at := upgradedAt(r); at != "" {
		metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, v1alpha1.AnnotationKeyLastReplicaChange, at)
	}
	if names := pendingNames(r); names != "" {
		metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, v1alpha1.AnnotationKeyTriggerDeletion, names)
	} else {
		delete(deployment.Annotations, v1alpha1.AnnotationKeyTriggerDeletion)
	}
	return deployment
}

// planRollback carries out or refuses spec.rollbackTo, unless the deployment is paused.
func planRollback(r *Rollout) []Operation {
	to := r.Deployment.Spec.RollbackTo
	if to == nil || r.Deployment.Spec.Paused {
		return nil
	}
	next := r.Deployment.DeepCopy()
	next.Spec.RollbackTo = nil
	op := Operation{Action: Refuse, Topic: v1alpha1.DeploymentReasonRevisionNotFound, Deployment: next}
	target := revision.Pick(r.sets, to.Revision)
	switch {
	case target == nil && to.Revision == 0:
		op.Reason = "spec.rollbackTo: no earlier revision exists"
	case target == nil:
		op.Reason = fmt.Sprintf("spec.rollbackTo.revision: no machine set has revision %d", to.Revision)
	case revision.Same(&target.Spec.Template, &r.Deployment.Spec.Template):
		op.Topic = v1alpha1.DeploymentReasonTemplateUnchanged
		op.Reason = fmt.Sprintf("spec.rollbackTo.revision: the template is already that of revision %d", revision.Number(target))
	default:
		rollBack(next, target)
		op.Action, op.Set, op.Topic = RollBack, target, v1alpha1.DeploymentReasonRollback
		op.Reason = fmt.Sprintf("Rolled back deployment %q to revision %d", r.Deployment.Name, revision.Number(target))
	}
	return []Operation{op}
}

// rollBack restores the template of an old set and the annotations that belong to it.
func rollBack(deployment *v1alpha1.MachineDeployment, set *v1alpha1.MachineSet) {
	set.Spec.Template.DeepCopyInto(&deployment.Spec.Template)
	delete(deployment.Spec.Template.Labels, v1alpha1.DefaultMachineDeploymentUniqueLabelKey)
	own := slices.Concat(operational, notCopied)
	ofSet := func(key, _ string) bool { return !slices.Contains(own, key) }
	maps.DeleteFunc(deployment.Annotations, ofSet)
	for key, value := range set.Annotations {
		if ofSet(key, value) {
			metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, key, value)
		}
	}
}
