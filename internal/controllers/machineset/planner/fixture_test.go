package planner

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/fixture"
)

// noon is when tests happen.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// newSet is a valid set with that number of replicas.
func newSet(replicas int32, changes ...func(*v1alpha1.MachineSet)) *v1alpha1.MachineSet {
	set := fixture.MachineSet(changes...)
	set.Spec.Replicas = replicas
	return set
}

type change = func(*v1alpha1.Machine)

// machine is a Running Machine of the set, an hour old.
func machine(name string, changes ...change) *v1alpha1.Machine {
	m := fixture.OwnedBy(newSet(0), fixture.Named(name, fixture.Machine()))
	m.CreationTimestamp = metav1.NewTime(noon.Add(-time.Hour))
	m.Annotations = map[string]string{}
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

func labelled(key, value string) change {
	return func(m *v1alpha1.Machine) { m.Labels = map[string]string{"name": fixture.Pool, key: value} }
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

func newParent(replicas int32, kind v1alpha1.MachineDeploymentStrategyType, surge string) *v1alpha1.MachineDeployment {
	parent := &v1alpha1.MachineDeployment{}
	parent.Spec.Replicas = replicas
	parent.Spec.Strategy.Type = kind
	if surge != "" {
		value := intstr.Parse(surge)
		bounds := v1alpha1.UpdateConfiguration{MaxSurge: &value}
		parent.Spec.Strategy.RollingUpdate = &v1alpha1.RollingUpdateMachineDeployment{UpdateConfiguration: bounds}
		parent.Spec.Strategy.InPlaceUpdate = &v1alpha1.InPlaceUpdateMachineDeployment{UpdateConfiguration: bounds}
	}
	return parent
}
