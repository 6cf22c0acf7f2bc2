package rollout

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/pool/budget"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/pool/scale"
)

// NewSet returns a new set with the deployment's template. None of its replicas are excess replicas.
func (r *Rollout) NewSet(replicas int32) *v1alpha1.MachineSet {
	deployment := r.Deployment
	hash := revision.Hash(&deployment.Spec.Template, ptr.Deref(deployment.Status.CollisionCount, 0))
	set := &v1alpha1.MachineSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       deployment.Namespace,
			Name:            revision.SetName(deployment.Name, hash),
			Labels:          withHash(deployment.Spec.Template.Labels, hash),
			Annotations:     copiedAnnotations(deployment),
			Finalizers:      []string{v1alpha1.FinalizerMCM},
			OwnerReferences: []metav1.OwnerReference{OwnerReference(deployment)},
		},
		Spec: v1alpha1.MachineSetSpec{
			Replicas:        replicas,
			MinReadySeconds: deployment.Spec.MinReadySeconds,
			Selector:        deployment.Spec.Selector.DeepCopy(),
			Template:        *deployment.Spec.Template.DeepCopy(),

			AutoPreserveFailedMachineMax: autoPreserveMax(r.Facts, nil),
		},
	}
	set.Spec.Selector.MatchLabels = withHash(set.Spec.Selector.MatchLabels, hash)
	set.Spec.Template.Labels = withHash(set.Spec.Template.Labels, hash)
	revision.Give(set, max(revision.Last(r.Old), revision.Followed(deployment))+1)
	setReplicaAnnotations(set, r, r.Desired)
	scarcity.Assign(set, deployment)
	budget.Assign(set, deployment)
	return set
}

func withHash(labels map[string]string, hash string) map[string]string {
	labelled := map[string]string{}
	maps.Copy(labelled, labels)
	labelled[v1alpha1.DefaultMachineDeploymentUniqueLabelKey] = hash
	return labelled
}

// Kind is the group, version and kind of MachineDeployment.
var Kind = v1alpha1.SchemeGroupVersion.WithKind("MachineDeployment")

// OwnerReference returns the owner reference that makes a deployment the controller of a set.
func OwnerReference(deployment *v1alpha1.MachineDeployment) metav1.OwnerReference {
	return *metav1.NewControllerRef(deployment, Kind)
}

// planRefresh updates sets that are not scaled. It records no new sizes while other sets are scaled.
func planRefresh(r *Rollout, replicas []Operation, excess map[*v1alpha1.MachineSet]int32) []Operation {
	var operations []Operation
	for _, set := range r.sets {
		scaled := func(op Operation) bool { return op.Set == set }
		if idle(r, set) || !set.DeletionTimestamp.IsZero() || slices.ContainsFunc(replicas, scaled) {
			continue
		}
		next := refreshed(r, set, set.Spec.Replicas, excess[set])
		if len(replicas) == 0 && counts.Desired(set) > 0 && !slices.Contains(r.heldBack, set) && r.sizedTogether() {
			setReplicaAnnotations(next, r, r.Desired) // it has its share of the size
		}
		if equality.Semantic.DeepEqual(set, next) {
			continue
		}
		op := Operation{Action: Refresh, Set: set, Next: next, Reason: "the deployment changed in fields that need no new machines"}
		if equality.Semantic.DeepEqual(set.Spec, next.Spec) {
			op.Reason = "its annotations were updated from the deployment and its rollout"
		}
		operations = append(operations, op)
	}
	return operations
}

// idle is a cheap check that a set has nothing to copy from the deployment, as is the case for hundreds of old
// sets.
func idle(r *Rollout, set *v1alpha1.MachineSet) bool {
	return set != r.Current && counts.Desired(set) == 0 && !scale.Frozen(set) && !mayPreserve(set)
}

// refreshed returns a copy of a set with the given numbers of replicas and excess replicas, and with everything
// that it copies from the deployment.
func refreshed(r *Rollout, set *v1alpha1.MachineSet, replicas, excess int32) *v1alpha1.MachineSet {
	next := set.DeepCopy()
	next.Spec.Replicas = replicas
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	if next.Spec.AutoPreserveFailedMachineMax > 0 || r.Deployment.Spec.AutoPreserveFailedMachineMax > 0 {
		next.Spec.AutoPreserveFailedMachineMax = autoPreserveMax(r.Facts, set)
	}
	if set == r.Current {
		refreshCurrent(r, next)
		mayGrow(r, set, next)
	} else {
		refreshOld(r, next)
	}
	if slices.Contains(r.heldBack, set) {
		keepAnnotation(next, set, v1alpha1.AnnotationKeyLastReplicaChange)
	}
	reserve.Assign(next, r.Deployment, excess)
	scarcity.Assign(next, r.Deployment)
	budget.Assign(next, r.Deployment)
	if _, asked := r.Deployment.Annotations[v1alpha1.AnnotationKeyUnfreeze]; asked && scale.Frozen(set) {
		next.Annotations[v1alpha1.AnnotationKeyUnfreeze] = isTrue
	}
	return next
}

// mayGrow removes the label that prevents the current set from creating Machines. During an in-place update, it
// does so if the set's former or next replicas do not exceed its Machines, because the set may have been an old
// one that lost Machines. With another strategy, it does so when an old set becomes the current one, because
// the label may come from an earlier in-place update. Otherwise the label belongs to the user.
func mayGrow(r *Rollout, set, next *v1alpha1.MachineSet) {
	may := revision.Number(set) <= revision.Last(r.Old)
	if r.inPlace {
		may = r.replaced || min(set.Spec.Replicas, next.Spec.Replicas) <= r.active(set)
	}
	if may {
		delete(next.Labels, v1alpha1.LabelKeyMachineSetScaleUpDisabled)
	}
}

// keepAnnotation restores an annotation of a set to its former value.
func keepAnnotation(next, was *v1alpha1.MachineSet, key string) {
	delete(next.Annotations, key)
	if value, ok := was.Annotations[key]; ok {
		next.Annotations[key] = value
	}
}

// refreshCurrent copies the fields that can change on existing Machines. Old sets keep theirs for a rollback.
func refreshCurrent(r *Rollout, set *v1alpha1.MachineSet) {
	scale.TakeOver(&r.Deployment.Spec.Template.Spec, &set.Spec.Template.Spec)
	set.Spec.MinReadySeconds = r.Deployment.Spec.MinReadySeconds
	maps.Copy(set.Annotations, copiedAnnotations(r.Deployment))
	recordScaling(r, set)
	if last := revision.Last(r.Old); revision.Number(set) <= last {
		revision.Give(set, last+1)
	}
	if r.Nodes != nil {
		delete(set.Annotations, v1alpha1.AnnotationKeyPreferNoSchedule) // after the nodes were changed
	}
}

func refreshOld(r *Rollout, set *v1alpha1.MachineSet) {
	if counts.Desired(set) > 0 {
		recordScaling(r, set)
	}
	if r.inPlace && r.MarksNodes {
		metav1.SetMetaDataLabel(&set.ObjectMeta, v1alpha1.LabelKeyMachineSetScaleUpDisabled, "true")
	}
	if r.Nodes != nil && r.MarksNodes && counts.Desired(set) > 0 {
		set.Annotations[v1alpha1.AnnotationKeyPreferNoSchedule] = isTrue
	}
}

// recordScaling records on a set when the deployment was last scaled. Named Machines are deleted by that time.
func recordScaling(r *Rollout, set *v1alpha1.MachineSet) {
	if at := scaledAt(r); at != "" {
		set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange] = at
	}
}

// planHistory deletes old sets that exceed the history limit, the oldest first. As in MCM, a set that still has
// Machines is skipped, and no other set is deleted instead.
func planHistory(r *Rollout) []Operation {
	limit := r.Deployment.Spec.RevisionHistoryLimit
	if limit == nil || r.Current == nil || !r.Deployment.Spec.Paused && !r.RolledOut {
		return nil
	}
	old := slices.DeleteFunc(slices.Clone(r.Old), func(set *v1alpha1.MachineSet) bool { return !set.DeletionTimestamp.IsZero() })
	var operations []Operation
	for _, set := range old[:max(0, len(old)-max(0, int(*limit)))] {
		if counts.Settled(set) && counts.Existing(set) == 0 && !r.HasMachines(set) { // one may just have been moved to it
			operations = append(operations, Operation{Action: Prune, Set: set, Reason: fmt.Sprintf("revisionHistoryLimit is %d", *limit)})
		}
	}
	return operations
}
