package machineset

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/env"
)

func TestMain(m *testing.M) { env.Main(m) }

// noon is when tests happen.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

const pool = "pool"

// newSet is a valid set with that number of replicas.
func newSet(replicas int32, changes ...func(*v1alpha1.MachineSet)) *v1alpha1.MachineSet {
	labels := map[string]string{"name": pool}
	set := &v1alpha1.MachineSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pool, UID: "uid-of-pool", Generation: 1},
		Spec: v1alpha1.MachineSetSpec{
			Replicas: replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1alpha1.MachineTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "small"}},
			},
		},
	}
	for _, change := range changes {
		change(set)
	}
	return set
}

type change = func(*v1alpha1.Machine)

// machine is a Running Machine of the set, an hour old.
func machine(name string, changes ...change) *v1alpha1.Machine {
	m := &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID("uid-of-" + name),
			CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour)),
			Labels:            map[string]string{"name": pool},
			Annotations:       map[string]string{},
			Finalizers:        []string{v1alpha1.FinalizerMCM},
			OwnerReferences:   []metav1.OwnerReference{ownerReference(newSet(0))},
		},
	}
	m.Spec.Class = newSet(0).Spec.Template.Spec.Class
	m.Status.CurrentStatus.Phase = v1alpha1.MachineRunning
	for _, change := range changes {
		change(m)
	}
	return m
}

// machines are n Running Machines m0, m1, …
func machines(n int, changes ...change) []*v1alpha1.Machine {
	var all []*v1alpha1.Machine
	for i := range n {
		all = append(all, machine(fmt.Sprintf("m%d", i), changes...))
	}
	return all
}

func phase(phase v1alpha1.MachinePhase) change {
	return func(m *v1alpha1.Machine) { m.Status.CurrentStatus.Phase = phase }
}

func annotated(key, value string) change {
	return func(m *v1alpha1.Machine) { m.Annotations[key] = value }
}

func unlabelled(m *v1alpha1.Machine) { m.Labels = nil }

func stray(m *v1alpha1.Machine) { m.OwnerReferences = nil }

func deleting(m *v1alpha1.Machine) { m.DeletionTimestamp = &metav1.Time{Time: noon} }

func preservedUntil(at time.Time) change {
	return func(m *v1alpha1.Machine) { m.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: at} }
}

// marked is what is done to a Machine that an autoscaler names for deletion.
func marked(at time.Time) change {
	return func(m *v1alpha1.Machine) {
		m.Annotations[v1alpha1.AnnotationKeyMachinePriority] = "1"
		m.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime] = at.Format(time.RFC3339)
	}
}

func age(d time.Duration) change {
	return func(m *v1alpha1.Machine) { m.CreationTimestamp = metav1.NewTime(noon.Add(-d)) }
}

func frozenSet(set *v1alpha1.MachineSet) {
	set.Labels = map[string]string{v1alpha1.LabelKeyFreeze: "True"}
}
