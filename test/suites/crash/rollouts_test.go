package crash

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// newClass is the name of the class to which Machines are rolled out.
const newClass = "pool-v2"

// rollouts contains the scenarios in which a MachineDeployment's Machines are replaced.
var rollouts = []scenario{
	{
		name:   "rolling update",
		given:  givenBothClasses(3, rolling(1, 0)),
		act:    func(ctx context.Context, r *run) error { return r.rollTo(ctx, newClass) },
		want:   allOf(3, newClass),
		always: both(most(4), least(3)),
	},
	{
		name:   "recreate",
		given:  givenBothClasses(2, recreate),
		act:    func(ctx context.Context, r *run) error { return r.rollTo(ctx, newClass) },
		want:   allOf(2, newClass),
		always: both(most(2), notMixed),
	},
	{
		name:   "rollback",
		given:  givenSecondRevision,
		act:    func(ctx context.Context, r *run) error { return r.patchDeployment(ctx, `{"spec":{"rollbackTo":{}}}`) },
		want:   rolledBack,
		always: both(most(3), least(2)),
	},
	{
		name:   "rollback amid a rolling update",
		given:  givenBothClasses(2, rolling(1, 0)),
		act:    rollBackAmid,
		want:   rolledBack,
		always: both(most(3), least(2)),
	},
}

// rolling makes Machines be replaced within these bounds.
func rolling(surge, unavailable int32) deploymentOption {
	return func(deployment *v1alpha1.MachineDeployment) {
		deployment.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{
			Type: v1alpha1.RollingUpdateMachineDeploymentStrategyType,
			RollingUpdate: &v1alpha1.RollingUpdateMachineDeployment{UpdateConfiguration: v1alpha1.UpdateConfiguration{
				MaxSurge: ptr.To(intstr.FromInt32(surge)), MaxUnavailable: ptr.To(intstr.FromInt32(unavailable)),
			}},
		}
	}
}

// recreate makes all Machines be deleted before the first new one is created.
func recreate(deployment *v1alpha1.MachineDeployment) {
	deployment.Spec.Strategy.Type = v1alpha1.RecreateMachineDeploymentStrategyType
}

// rollTo changes the class of all Machines.
func (r *run) rollTo(ctx context.Context, class string) error {
	return r.patchDeployment(ctx, fmt.Sprintf(`{"spec":{"template":{"spec":{"class":{"name":%q}}}}}`, class))
}

func declareNewClass(ctx context.Context, r *run) error {
	return r.create(ctx, &v1alpha1.MachineClass{
		ObjectMeta:   metav1.ObjectMeta{Name: newClass},
		Provider:     simDriver,
		ProviderSpec: runtime.RawExtension{Raw: []byte(`{}`)},
		SecretRef:    &corev1.SecretReference{Namespace: r.control.Namespace, Name: pool},
	})
}

// givenBothClasses creates that many running Machines of the first class, and the second class.
func givenBothClasses(replicas int32, options ...deploymentOption) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		if err := declareNewClass(ctx, r); err != nil {
			return err
		}
		return givenDeployment(replicas, options...)(ctx, r)
	}
}

// givenSecondRevision creates two running Machines of the new class. The first revision never had any.
func givenSecondRevision(ctx context.Context, r *run) error {
	if err := givenBothClasses(0, rolling(1, 0))(ctx, r); err != nil {
		return err
	}
	if err := r.rollTo(ctx, newClass); err != nil {
		return err
	}
	if err := r.await(ctx, "a second set", func(ctx context.Context, r *run) error {
		sets := &v1alpha1.MachineSetList{}
		err := r.list(ctx, sets)
		if err == nil && len(sets.Items) != 2 {
			err = errors.New("there is none")
		}
		return err
	}); err != nil {
		return err
	}
	if err := r.scale(ctx, 2); err != nil {
		return err
	}
	return r.await(ctx, "the second revision", allOf(2, newClass))
}

// rollBackAmid starts a rolling update, and rolls back as soon as the first new Machine exists.
func rollBackAmid(ctx context.Context, r *run) error {
	if err := r.rollTo(ctx, newClass); err != nil {
		return err
	}
	if err := r.await(ctx, "a Machine of the new class", anyOf(newClass)); err != nil {
		return err
	}
	return r.patchDeployment(ctx, `{"spec":{"rollbackTo":{}}}`)
}

// anyOf checks that there is a Machine of a class.
func anyOf(class string) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		machines := &v1alpha1.MachineList{}
		if err := r.list(ctx, machines); err != nil {
			return err
		}
		for _, machine := range machines.Items {
			if machine.Spec.Class.Name == class {
				return nil
			}
		}
		return errors.New("there is none")
	}
}

// allOf checks that that many Machines run, all of them of one class.
func allOf(replicas int, class string) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		machines := &v1alpha1.MachineList{}
		if err := r.list(ctx, machines); err != nil {
			return err
		}
		for _, machine := range machines.Items {
			if machine.Spec.Class.Name != class {
				return fmt.Errorf("machine %s is of class %s", machine.Name, machine.Spec.Class.Name)
			}
		}
		return running(replicas)(ctx, r)
	}
}

// rolledBack checks that the Machines belong to the first revision again.
func rolledBack(ctx context.Context, r *run) error {
	deployment, err := r.deployment(ctx)
	if err != nil {
		return err
	}
	if deployment.Spec.RollbackTo != nil {
		return errors.New("the rollback request is still there")
	}
	return allOf(2, pool)(ctx, r)
}
