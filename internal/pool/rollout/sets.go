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
	"github.com/millwright-dev/millwright/internal/pool/inplace"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/pool/scale"
)

// NewSet returns the set of the deployment's template.
func NewSet(f Facts, replicas int32) *v1alpha1.MachineSet {
	deployment := f.Deployment
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

			AutoPreserveFailedMachineMax: autoPreserveMax(f, nil),
		},
	}
	set.Spec.Selector.MatchLabels = withHash(set.Spec.Selector.MatchLabels, hash)
	set.Spec.Template.Labels = withHash(set.Spec.Template.Labels, hash)
	revision.Give(set, max(revision.Last(f.Old), revision.Followed(deployment))+1)
	setReplicaAnnotations(set, f, reserve.Wanted(deployment))
	reserve.Assign(set, deployment, f.excess[nil])
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

// Kind is the kind of deployments.
var Kind = v1alpha1.SchemeGroupVersion.WithKind("MachineDeployment")

// OwnerReference returns the reference by which a deployment controls its sets.
func OwnerReference(deployment *v1alpha1.MachineDeployment) metav1.OwnerReference {
	return *metav1.NewControllerRef(deployment, Kind)
}

// planRefresh updates sets that are not scaled. While others are scaled, none records a new size.
func planRefresh(f Facts, replicas []Operation) []Operation {
	var operations []Operation
	for _, set := range f.All() {
		scaled := func(op Operation) bool { return op.Set == set }
		if idle(f, set) || !set.DeletionTimestamp.IsZero() || slices.ContainsFunc(replicas, scaled) {
			continue
		}
		next := refreshed(f, set, set.Spec.Replicas, len(replicas) == 0)
		if equality.Semantic.DeepEqual(set, next) {
			continue
		}
		op := Operation{Action: Refresh, Set: set, Next: next, Reason: "the deployment has changed in what needs no new machines"}
		if equality.Semantic.DeepEqual(set.Spec, next.Spec) {
			op.Reason = "its annotations follow the deployment and its rollout"
		}
		operations = append(operations, op)
	}
	return operations
}

// idle reports cheaply whether a set takes over nothing, as hundreds of old ones do.
func idle(f Facts, set *v1alpha1.MachineSet) bool {
	return set != f.Current && counts.Desired(set) == 0 && !scale.Frozen(set) && !mayPreserve(set)
}

// refreshed returns a set of so many replicas with all that it takes over from the deployment. With sized,
// it records the size of the deployment if it has its share of that.
func refreshed(f Facts, set *v1alpha1.MachineSet, replicas int32, sized bool) *v1alpha1.MachineSet {
	next := set.DeepCopy()
	next.Spec.Replicas = replicas
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	if next.Spec.AutoPreserveFailedMachineMax > 0 || f.Deployment.Spec.AutoPreserveFailedMachineMax > 0 {
		next.Spec.AutoPreserveFailedMachineMax = autoPreserveMax(f, set)
	}
	if set == f.Current {
		refreshCurrent(f, next)
		mayGrow(f, set, next)
	} else {
		refreshOld(f, next)
	}
	heldBack := slices.Contains(f.heldBack, set)
	if heldBack {
		keepAnnotation(next, set, v1alpha1.AnnotationKeyLastReplicaChange)
	}
	if sized && !heldBack && counts.Desired(set) > 0 && sizedTogether(f) {
		setReplicaAnnotations(next, f, reserve.Wanted(f.Deployment))
	}
	reserve.Assign(next, f.Deployment, f.excess[set])
	scarcity.Assign(next, f.Deployment)
	budget.Assign(next, f.Deployment)
	if _, wished := f.Deployment.Annotations[v1alpha1.AnnotationKeyUnfreeze]; wished && scale.Frozen(set) {
		next.Annotations[v1alpha1.AnnotationKeyUnfreeze] = isTrue
	}
	return next
}

// mayGrow allows the current set to create Machines. In an update in place it does so once the replicas of
// the set are, or were, no more than it has: it may have been an old one, from which Machines were moved or deleted.
// Otherwise it does so when an old set becomes the current one, which may have the label from updates in
// place, before the deployment got another strategy. Else the label is a user's.
func mayGrow(f Facts, set, next *v1alpha1.MachineSet) {
	may := revision.Number(set) <= revision.Last(f.Old)
	if f.inPlace {
		may = replaced(f) || min(set.Spec.Replicas, next.Spec.Replicas) <= inplace.Active(f.machines[set.Name])
	}
	if may {
		delete(next.Labels, v1alpha1.LabelKeyMachineSetScaleUpDisabled)
	}
}

// sizedTogether reports whether the sets have their shares of the deployment's size, all of them.
func sizedTogether(f Facts) bool {
	together := (f.rolling || f.inPlace) && f.Current != nil && !replaced(f) || suspended(f) && resized(f)
	return together && allSettled(f) && !postponed(f)
}

// keepAnnotation leaves an annotation of a set as it was.
func keepAnnotation(next, was *v1alpha1.MachineSet, key string) {
	delete(next.Annotations, key)
	if value, ok := was.Annotations[key]; ok {
		next.Annotations[key] = value
	}
}

// refreshCurrent takes over what changes on existing Machines. Old sets keep theirs for a rollback.
func refreshCurrent(f Facts, set *v1alpha1.MachineSet) {
	scale.TakeOver(&f.Deployment.Spec.Template.Spec, &set.Spec.Template.Spec)
	set.Spec.MinReadySeconds = f.Deployment.Spec.MinReadySeconds
	maps.Copy(set.Annotations, copiedAnnotations(f.Deployment))
	if last := revision.Last(f.Old); revision.Number(set) <= last {
		revision.Give(set, last+1)
	}
	if f.Nodes != nil {
		delete(set.Annotations, v1alpha1.AnnotationKeyPreferNoSchedule) // the nodes come first
	}
}

func refreshOld(f Facts, set *v1alpha1.MachineSet) {
	if changed := f.Deployment.Annotations[v1alpha1.AnnotationKeyLastReplicaChange]; changed != "" && counts.Desired(set) > 0 {
		set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange] = changed
	}
	if f.inPlace && MarksNodes(f) {
		metav1.SetMetaDataLabel(&set.ObjectMeta, v1alpha1.LabelKeyMachineSetScaleUpDisabled, "true")
	}
	if f.Nodes != nil && MarksNodes(f) && counts.Desired(set) > 0 {
		set.Annotations[v1alpha1.AnnotationKeyPreferNoSchedule] = isTrue
	}
}

// planHistory deletes old sets beyond the history limit, the oldest first. As in MCM, a set that still
// has Machines is passed over, and no other is deleted instead.
func planHistory(f Facts) []Operation {
	limit := f.Deployment.Spec.RevisionHistoryLimit
	if limit == nil || f.Current == nil || !f.Deployment.Spec.Paused && !RolledOut(f) {
		return nil
	}
	old := slices.DeleteFunc(slices.Clone(f.Old), func(set *v1alpha1.MachineSet) bool { return !set.DeletionTimestamp.IsZero() })
	var operations []Operation
	for _, set := range old[:max(0, len(old)-max(0, int(*limit)))] {
		if counts.Settled(set) && counts.Existing(set) == 0 && !f.HasMachines(set) { // one may just have been moved there
			operations = append(operations, Operation{Action: Prune, Set: set, Reason: fmt.Sprintf("%d old machine sets are kept", *limit)})
		}
	}
	return operations
}
