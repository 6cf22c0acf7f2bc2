package machinedeployment

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
)

// planRefresh brings the sets up to date that are not scaled anyway.
func planRefresh(f facts, replicas []operation) []operation {
	var operations []operation
	for _, set := range f.all() {
		if idle(f, set) {
			continue
		}
		scaled := slices.ContainsFunc(replicas, func(op operation) bool { return op.set == set })
		if scaled || !set.DeletionTimestamp.IsZero() {
			continue
		}
		if next := refreshed(f, set); !equality.Semantic.DeepEqual(set, next) {
			operations = append(operations, operation{action: refresh, set: set, reason: whyRefreshed(set, next)})
		}
	}
	return operations
}

// whyRefreshed says what a set takes over besides its size.
func whyRefreshed(set, next *v1alpha1.MachineSet) string {
	if equality.Semantic.DeepEqual(set.Spec, next.Spec) {
		return "its annotations follow the deployment and its rollout"
	}
	return "the deployment has changed in what needs no new machines"
}

// idle tells at a glance that a set takes over nothing: an old one that shall have no machines.
// There may be hundreds.
func idle(f facts, set *v1alpha1.MachineSet) bool {
	return set != f.current && asked(set) == 0 && !frozen(set)
}

// refreshed is a set with all that it takes over from the deployment besides its size.
func refreshed(f facts, set *v1alpha1.MachineSet) *v1alpha1.MachineSet {
	set = set.DeepCopy()
	if set.Annotations == nil {
		set.Annotations = map[string]string{}
	}
	if set.Name == nameOf(f.current) {
		refreshCurrent(f, set)
	} else {
		refreshOld(f, set)
	}
	together := f.rolling && f.current != nil && !replaced(f) || halted(f) && resized(f)
	if asked(set) > 0 && together && allSettled(f) && !postponed(f) && !withheld(f, set) {
		setReplicaAnnotations(set, f, f.deployment.Spec.Replicas)
	}
	if _, wished := f.deployment.Annotations[v1alpha1.AnnotationKeyUnfreeze]; wished && frozen(set) {
		set.Annotations[v1alpha1.AnnotationKeyUnfreeze] = isTrue
	}
	return set
}

func nameOf(set *v1alpha1.MachineSet) string {
	if set == nil {
		return ""
	}
	return set.Name
}

// refreshCurrent takes over what can be changed on Machines that exist. Sets of earlier
// templates keep what they have: one may go back to it.
func refreshCurrent(f facts, set *v1alpha1.MachineSet) {
	template, spec := f.deployment.Spec.Template.Spec.DeepCopy(), &set.Spec.Template.Spec
	spec.NodeTemplateSpec = template.NodeTemplateSpec
	if !sameConfiguration(spec.MachineConfiguration, template.MachineConfiguration) {
		spec.MachineConfiguration = template.MachineConfiguration
	}
	spec.Class.Kind = template.Class.Kind
	set.Spec.MinReadySeconds = f.deployment.Spec.MinReadySeconds
	set.Spec.AutoPreserveFailedMachineMax = f.deployment.Spec.AutoPreserveFailedMachineMax
	maps.Copy(set.Annotations, copiedAnnotations(f.deployment))
	if last := lastRevision(f); revision.Number(set) <= last {
		setRevision(set, last)
	}
	if f.nodes != nil {
		delete(set.Annotations, v1alpha1.AnnotationKeyPreferNoSchedule) // the nodes come first
	}
}

// sameConfiguration: none is the same as one that says nothing, also in JSON.
func sameConfiguration(a, b *v1alpha1.MachineConfiguration) bool {
	if a == nil {
		a = &v1alpha1.MachineConfiguration{}
	}
	if b == nil {
		b = &v1alpha1.MachineConfiguration{}
	}
	return equality.Semantic.DeepEqual(a, b)
}

func refreshOld(f facts, set *v1alpha1.MachineSet) {
	if changed := f.deployment.Annotations[v1alpha1.AnnotationKeyLastReplicaChange]; changed != "" && asked(set) > 0 {
		set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange] = changed
	}
	if f.nodes != nil && marking(f) && asked(set) > 0 {
		set.Annotations[v1alpha1.AnnotationKeyPreferNoSchedule] = isTrue
	}
}

// planHistory deletes old sets beyond the number that is kept, the oldest first. As in MCM,
// one that still has machines is passed over, and no other goes in its place.
func planHistory(f facts) []operation {
	limit := f.deployment.Spec.RevisionHistoryLimit
	if limit == nil || f.current == nil || !f.deployment.Spec.Paused && !rolledOut(f) {
		return nil
	}
	old := slices.DeleteFunc(slices.Clone(f.old), func(set *v1alpha1.MachineSet) bool { return !set.DeletionTimestamp.IsZero() })
	var operations []operation
	for _, set := range old[:max(0, len(old)-max(0, int(*limit)))] {
		if settled(set) && existing(set) == 0 {
			operations = append(operations, operation{action: prune, set: set, reason: fmt.Sprintf("%d old machine sets are kept", *limit)})
		}
	}
	return operations
}

// rolledOut reports whether all machines are of the current set, and can be used.
func rolledOut(f facts) bool {
	wanted := f.deployment.Spec.Replicas
	return f.current != nil && replaced(f) && settled(f.current) && asked(f.current) == wanted &&
		f.counted(f.current) == wanted && usable(f.current) == wanted
}

// accounted is the deployment with what it says about its sets: the revision, whether one is
// frozen, and which of the Machines that an autoscaler named are still to go.
func accounted(f facts) *v1alpha1.MachineDeployment {
	deployment := f.deployment.DeepCopy()
	if f.current != nil && revision.Number(f.current) > followed(deployment) {
		metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, v1alpha1.AnnotationKeyRevision, f.current.Annotations[v1alpha1.AnnotationKeyRevision])
	}
	delete(deployment.Annotations, v1alpha1.AnnotationKeyUnfreeze) // its sets have it by now
	if slices.ContainsFunc(f.all(), frozen) {
		metav1.SetMetaDataLabel(&deployment.ObjectMeta, v1alpha1.LabelKeyFreeze, isTrue)
	} else {
		delete(deployment.Labels, v1alpha1.LabelKeyFreeze)
	}
	recordNamed(f, deployment)
	return deployment
}
