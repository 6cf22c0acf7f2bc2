package crash

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// zoneOutages contains the scenarios of zones in which all nodes fail.
var zoneOutages = []scenario{
	{
		name:          "zone that is out",
		healthTimeout: shortHealthTimeout,
		given:         givenTwoZones,
		act:           inTurn(failAllNodes, awaitThat("both machines to be unhealthy", allIn(v1alpha1.MachineUnknown)), replaceThem),
		want:          allOf(2, newClass),
		always:        most(4), // they are deleted, and replaced by their successors
	},
}

// givenTwoZones creates two running Machines in the zone of the first class, whose replacement a budget forbids.
func givenTwoZones(ctx context.Context, r *run) error {
	err := r.create(ctx, r.classSecret(), r.classIn(pool, "a"), r.classIn(newClass, "b"))
	if err == nil {
		err = r.declareDeployment(ctx, 2, fallingBackTo(newClass), func(deployment *v1alpha1.MachineDeployment) {
			deployment.Spec.Replacement = &v1alpha1.ReplacementPolicy{
				Budgets: []v1alpha1.ReplacementBudget{{}}, ZoneOutage: v1alpha1.ZoneOutageReplace,
			}
		})
	}
	if err != nil {
		return err
	}
	return r.await(ctx, "what is given", running(2))
}

func (r *run) classIn(name, zone string) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provider: simDriver,
		ProviderSpec: runtime.RawExtension{Raw: []byte(`{}`)},
		NodeTemplate: &v1alpha1.NodeTemplate{
			Capacity:     corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("4Gi"), "gpu": resource.MustParse("0")},
			InstanceType: "small", Region: "here", Zone: zone,
		},
		SecretRef: &corev1.SecretReference{Namespace: r.control.Namespace, Name: pool},
	}
}

// failAllNodes makes the nodes of all Machines fail.
func failAllNodes(ctx context.Context, r *run) error {
	machines := &v1alpha1.MachineList{}
	if err := r.list(ctx, machines); err != nil {
		return err
	}
	var errs []error
	for _, machine := range machines.Items {
		_, err := r.cloud.SetNodeReady(machine.Name, corev1.ConditionFalse)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// allIn checks that all Machines are in a phase.
func allIn(phase v1alpha1.MachinePhase) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		machines := &v1alpha1.MachineList{}
		if err := r.list(ctx, machines); err != nil {
			return err
		}
		for _, machine := range machines.Items {
			if is := machine.Status.CurrentStatus.Phase; is != phase {
				return fmt.Errorf("machine %s is %s", machine.Name, is)
			}
		}
		return nil
	}
}

// replaceThem removes the budget.
func replaceThem(ctx context.Context, r *run) error {
	return r.patchDeployment(ctx, `{"spec":{"replacement":{"budgets":null}}}`)
}
