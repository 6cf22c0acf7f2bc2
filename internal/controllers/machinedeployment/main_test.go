package machinedeployment

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/env"
)

func TestMain(m *testing.M) { env.Main(m) }

// noon is when tests happen.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

const pool = "pool"

type change = func(*v1alpha1.MachineDeployment)

// newDeployment is a valid deployment with that number of replicas, of the class "a".
func newDeployment(replicas int32, changes ...change) *v1alpha1.MachineDeployment {
	labels := map[string]string{"name": pool}
	deployment := &v1alpha1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pool, UID: "uid-of-pool", Generation: 1},
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

func class(name string) change {
	return func(d *v1alpha1.MachineDeployment) { d.Spec.Template.Spec.Class.Name = name }
}

func paused(d *v1alpha1.MachineDeployment) { d.Spec.Paused = true }

func recreate(d *v1alpha1.MachineDeployment) {
	d.Spec.Strategy.Type = v1alpha1.RecreateMachineDeploymentStrategyType
}

// rolling sets both bounds: numbers, percentages, or "" for what is not given.
func rolling(surge, unavailable string) change {
	return func(d *v1alpha1.MachineDeployment) {
		d.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{
			Type:          v1alpha1.RollingUpdateMachineDeploymentStrategyType,
			RollingUpdate: &v1alpha1.RollingUpdateMachineDeployment{UpdateConfiguration: configuration(surge, unavailable)},
		}
	}
}

func inPlace(surge, unavailable string) change {
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

// setOf is the deployment's set for a class. All its machines are available unless
// changed.
func setOf(class string, replicas int32, changes ...func(*v1alpha1.MachineSet)) *v1alpha1.MachineSet {
	owner := newDeployment(replicas, func(d *v1alpha1.MachineDeployment) { d.Spec.Template.Spec.Class.Name = class })
	set, err := newSet(facts{deployment: owner}, replicas)
	if err != nil {
		panic(err)
	}
	set.Name, set.Generation = "pool-"+class, 1
	set.CreationTimestamp = metav1.NewTime(noon.Add(time.Duration(class[0]) * time.Second)) // a is older than b
	set.Status = v1alpha1.MachineSetStatus{
		ObservedGeneration: 1, Replicas: replicas, ReadyReplicas: replicas, AvailableReplicas: replicas, FullyLabeledReplicas: replicas,
	}
	for _, change := range changes {
		change(set)
	}
	return set
}

// reports is what a set's status says of its machines.
func reports(replicas, available int32) func(*v1alpha1.MachineSet) {
	return func(set *v1alpha1.MachineSet) {
		set.Status.Replicas, set.Status.AvailableReplicas, set.Status.ReadyReplicas = replicas, available, available
	}
}

func preserved(n int32) func(*v1alpha1.MachineSet) {
	return func(set *v1alpha1.MachineSet) { set.Status.PreservedFailedReplicas = n }
}

// unsettled is a set whose controller has not looked at its last change.
func unsettled(set *v1alpha1.MachineSet) { set.Generation++ }

func leaving(set *v1alpha1.MachineSet) { set.DeletionTimestamp = &metav1.Time{Time: noon} }
