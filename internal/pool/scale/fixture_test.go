package scale

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

var noon = fixture.Noon

// newSet returns a valid set with the given number of replicas.
func newSet(replicas int32, changes ...func(*v1alpha1.MachineSet)) *v1alpha1.MachineSet {
	set := fixture.MachineSet(changes...)
	set.Spec.Replicas = replicas
	return set
}

type change = func(*v1alpha1.Machine)

// machine returns a Running Machine of the set, an hour old.
func machine(name string, changes ...change) *v1alpha1.Machine {
	return fixture.Running(newSet(0), name, changes...)
}

// machines returns n Running Machines m0, m1, …
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

func ownerless(m *v1alpha1.Machine) { m.OwnerReferences = nil }

func deleting(m *v1alpha1.Machine) { m.DeletionTimestamp = &metav1.Time{Time: noon} }

var preservedUntil = fixture.PreservedUntil

// marked returns a change that names a Machine for deletion.
func marked(at time.Time) change { return fixture.MarkedAt(at.Format(time.RFC3339)) }

func age(d time.Duration) change {
	return func(m *v1alpha1.Machine) { m.CreationTimestamp = metav1.NewTime(noon.Add(-d)) }
}

func newParent(replicas int32, kind v1alpha1.MachineDeploymentStrategyType, surge string) *v1alpha1.MachineDeployment {
	return fixture.Deployment(replicas, fixture.Strategy(kind, surge, ""))
}
