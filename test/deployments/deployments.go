// Package deployments makes MachineDeployments, their sets and Machines for tests.
package deployments

import (
	"maps"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
)

// Noon is when tests happen.
var Noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// Times before noon, as annotations have them.
const (
	Early = "2026-01-02T11:00:00Z"
	Later = "2026-01-02T11:30:00Z"
)

// Pool is the name of deployments.
const Pool = "pool"

// Changes of what is made.
type (
	Change        = func(*v1alpha1.MachineDeployment)
	SetChange     = func(*v1alpha1.MachineSet)
	MachineChange = func(*v1alpha1.Machine)
)

// New returns a valid deployment with that number of replicas, of the class "a".
func New(replicas int32, changes ...Change) *v1alpha1.MachineDeployment {
	labels := map[string]string{"name": Pool}
	deployment := &v1alpha1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: Pool, UID: "uid-of-pool", Generation: 1},
		Spec: v1alpha1.MachineDeploymentSpec{
			Replicas: replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1alpha1.MachineTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "a"}},
			},
		},
	}
	for _, change := range changes {
		change(deployment)
	}
	return deployment
}

// Class sets the class of the template.
func Class(name string) Change {
	return func(d *v1alpha1.MachineDeployment) { d.Spec.Template.Spec.Class.Name = name }
}

// Paused pauses a deployment.
func Paused(d *v1alpha1.MachineDeployment) { d.Spec.Paused = true }

// Recreate sets that strategy.
func Recreate(d *v1alpha1.MachineDeployment) {
	d.Spec.Strategy.Type = v1alpha1.RecreateMachineDeploymentStrategyType
}

// Rolling sets both bounds: numbers, percentages, or "" for what is not given.
func Rolling(surge, unavailable string) Change {
	return func(d *v1alpha1.MachineDeployment) {
		d.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{
			Type:          v1alpha1.RollingUpdateMachineDeploymentStrategyType,
			RollingUpdate: &v1alpha1.RollingUpdateMachineDeployment{UpdateConfiguration: configuration(surge, unavailable)},
		}
	}
}

// InPlace sets that strategy and its bounds.
func InPlace(surge, unavailable string) Change {
	return func(d *v1alpha1.MachineDeployment) {
		d.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{
			Type: v1alpha1.InPlaceUpdateMachineDeploymentStrategyType,
			InPlaceUpdate: &v1alpha1.InPlaceUpdateMachineDeployment{
				UpdateConfiguration: configuration(surge, unavailable), OrchestrationType: v1alpha1.OrchestrationTypeAuto,
			},
		}
	}
}

func configuration(surge, unavailable string) v1alpha1.UpdateConfiguration {
	var config v1alpha1.UpdateConfiguration
	if surge != "" {
		config.MaxSurge = ptr.To(intstr.Parse(surge))
	}
	if unavailable != "" {
		config.MaxUnavailable = ptr.To(intstr.Parse(unavailable))
	}
	return config
}

// RollbackTo asks for a revision.
func RollbackTo(revision int64) Change {
	return func(d *v1alpha1.MachineDeployment) { d.Spec.RollbackTo = &v1alpha1.RollbackConfig{Revision: revision} }
}

// Set returns the deployment's set of a class. All its Machines are available unless changed.
func Set(class string, replicas int32, changes ...SetChange) *v1alpha1.MachineSet {
	owner := New(replicas, Class(class))
	labels := maps.Clone(owner.Spec.Template.Labels)
	labels[v1alpha1.DefaultMachineDeploymentUniqueLabelKey] = revision.Hash(&owner.Spec.Template, 0)
	size := strconv.Itoa(int(replicas))
	set := &v1alpha1.MachineSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "pool-" + class, Generation: 1, Labels: maps.Clone(labels),
			CreationTimestamp: metav1.NewTime(Noon.Add(time.Duration(class[0]) * time.Second)), // a is older than b
			Finalizers:        []string{v1alpha1.FinalizerMCM},
			OwnerReferences:   []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1alpha1.SchemeGroupVersion.WithKind("MachineDeployment"))},
			Annotations: map[string]string{
				v1alpha1.AnnotationKeyRevision: "1", v1alpha1.AnnotationKeyDesiredReplicas: size, v1alpha1.AnnotationKeyMaxReplicas: size,
			},
		},
		Spec: v1alpha1.MachineSetSpec{
			Replicas: replicas, Selector: &metav1.LabelSelector{MatchLabels: maps.Clone(labels)}, Template: *owner.Spec.Template.DeepCopy(),
		},
		Status: v1alpha1.MachineSetStatus{
			ObservedGeneration: 1, Replicas: replicas, ReadyReplicas: replicas, AvailableReplicas: replicas, FullyLabeledReplicas: replicas,
		},
	}
	set.Spec.Template.Labels = labels
	for _, change := range changes {
		change(set)
	}
	return set
}

// Reports is what a set's status says of its Machines.
func Reports(replicas, available int32) SetChange {
	return func(set *v1alpha1.MachineSet) {
		set.Status.Replicas, set.Status.AvailableReplicas, set.Status.ReadyReplicas = replicas, available, available
	}
}

// Preserved is how many failed Machines of a set are preserved.
func Preserved(n int32) SetChange {
	return func(set *v1alpha1.MachineSet) { set.Status.PreservedFailedReplicas = n }
}

// Unsettled makes a set one whose controller has not seen its last change.
func Unsettled(set *v1alpha1.MachineSet) { set.Generation++ }

// Leaving makes a set one that is being deleted.
func Leaving(set *v1alpha1.MachineSet) { set.DeletionTimestamp = &metav1.Time{Time: Noon} }

// WithUID gives a set a UID of its own, by which its Machines are found.
func WithUID(set *v1alpha1.MachineSet) { set.UID = types.UID("uid-of-" + set.Name) }

// OfRevision gives a set a revision.
func OfRevision(number string) SetChange {
	return func(set *v1alpha1.MachineSet) { set.Annotations[v1alpha1.AnnotationKeyRevision] = number }
}

// ScaledFor makes a set one that was last scaled when the deployment had that size.
func ScaledFor(replicas, most int) SetChange {
	return func(set *v1alpha1.MachineSet) {
		set.Annotations[v1alpha1.AnnotationKeyDesiredReplicas] = strconv.Itoa(replicas)
		set.Annotations[v1alpha1.AnnotationKeyMaxReplicas] = strconv.Itoa(most)
	}
}

// Member returns a Running Machine of a set, on the node of its own name.
func Member(set *v1alpha1.MachineSet, name string) *v1alpha1.Machine {
	owner := metav1.OwnerReference{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "MachineSet", Name: set.Name, UID: set.UID, Controller: ptr.To(true)}
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, UID: types.UID("uid-of-" + name),
		Labels: map[string]string{v1alpha1.NodeLabelKey: name}, OwnerReferences: []metav1.OwnerReference{owner},
	}}
	machine.Status.CurrentStatus.Phase = v1alpha1.MachineRunning
	return machine
}

// PreservedFor preserves a Machine for that long.
func PreservedFor(d time.Duration) MachineChange {
	return func(m *v1alpha1.Machine) {
		m.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: Noon.Add(d)}
	}
}

// MarkedAt marks a Machine as one that an autoscaler named for deletion.
func MarkedAt(when string) MachineChange {
	return func(m *v1alpha1.Machine) {
		m.Annotations = map[string]string{v1alpha1.AnnotationKeyMachinePriority: "1", v1alpha1.AnnotationKeyMarkedForDeletionTime: when}
	}
}

// TemplateChanges are changes of a template, and whether they make it another.
var TemplateChanges = map[string]struct {
	Change func(*v1alpha1.MachineTemplateSpec)
	Rolls  bool
}{
	"nothing":        {func(*v1alpha1.MachineTemplateSpec) {}, false},
	"the hash label": {func(t *v1alpha1.MachineTemplateSpec) { t.Labels["machine-template-hash"] = "5" }, false},
	"a node label": {func(t *v1alpha1.MachineTemplateSpec) {
		t.Spec.NodeTemplateSpec.Labels = map[string]string{"zone": "a"}
	}, false},
	"a node annotation": {func(t *v1alpha1.MachineTemplateSpec) {
		t.Spec.NodeTemplateSpec.Annotations = map[string]string{"zone": "a"}
	}, false},
	"a taint": {func(t *v1alpha1.MachineTemplateSpec) {
		t.Spec.NodeTemplateSpec.Spec.Taints = []corev1.Taint{{Key: "gpu"}}
	}, false},
	"a timeout": {func(t *v1alpha1.MachineTemplateSpec) {
		t.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineDrainTimeout: &metav1.Duration{Duration: time.Hour}}
	}, false},
	"empty configuration":  {func(t *v1alpha1.MachineTemplateSpec) { t.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{} }, false},
	"no annotations":       {func(t *v1alpha1.MachineTemplateSpec) { t.Annotations = map[string]string{} }, false},
	"the kind of class":    {func(t *v1alpha1.MachineTemplateSpec) { t.Spec.Class.Kind = "AWSMachineClass" }, false},
	"the name of class":    {func(t *v1alpha1.MachineTemplateSpec) { t.Spec.Class.Name = "b" }, true},
	"the group of class":   {func(t *v1alpha1.MachineTemplateSpec) { t.Spec.Class.APIGroup = "machine.sapcloud.io" }, true},
	"a label":              {func(t *v1alpha1.MachineTemplateSpec) { t.Labels["zone"] = "a" }, true},
	"a label less":         {func(t *v1alpha1.MachineTemplateSpec) { delete(t.Labels, "name") }, true},
	"an annotation":        {func(t *v1alpha1.MachineTemplateSpec) { t.Annotations = map[string]string{"restart": "1"} }, true},
	"the provider ID":      {func(t *v1alpha1.MachineTemplateSpec) { t.Spec.ProviderID = "sim:///x" }, true},
	"a template finalizer": {func(t *v1alpha1.MachineTemplateSpec) { t.Finalizers = []string{"example.com/x"} }, true},
}
