package crash

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
)

// reserves contains the scenarios of MachineDeployments with excess Machines.
var reserves = []scenario{
	{
		name:   "grow into the reserve",
		given:  givenReserve(2, 1),
		act:    func(ctx context.Context, r *run) error { return r.scale(ctx, 3) },
		want:   withReserve(3, 1, pool),
		always: both(most(4), both(forPods(2), freedFirst(3))),
	},
	{
		name:   "shrink with a reserve",
		given:  givenReserve(3, 1),
		act:    func(ctx context.Context, r *run) error { return r.scale(ctx, 2) },
		want:   withReserve(2, 1, pool),
		always: both(most(4), forPods(2)),
	},
	{
		name:   "roll with a reserve",
		given:  givenReserve(2, 1, rolling(1, 0)),
		act:    func(ctx context.Context, r *run) error { return r.rollTo(ctx, newClass) },
		want:   withReserve(2, 1, newClass),
		always: both(both(most(4), least(3)), forPods(2)),
	},
	{
		name:  "give up the reserve",
		given: givenReserve(2, 1),
		act: func(ctx context.Context, r *run) error {
			return r.patchDeployment(ctx, `{"spec":{"excessReplicas":null}}`)
		},
		want:   withReserve(2, 0, pool),
		always: both(most(3), forPods(2)),
	},
}

// givenReserve creates running Machines: that many for Pods, and that many in excess.
func givenReserve(replicas, excess int32, options ...deploymentOption) func(context.Context, *run) error {
	options = append(options, func(deployment *v1alpha1.MachineDeployment) {
		deployment.Spec.ExcessReplicas = ptr.To(intstr.FromInt32(excess))
	})
	return func(ctx context.Context, r *run) error {
		if err := errors.Join(declareNewClass(ctx, r), declareClass(ctx, r)); err != nil {
			return err
		}
		if err := r.declareDeployment(ctx, replicas, options...); err != nil {
			return err
		}
		return r.await(ctx, "what is given", withReserve(int(replicas), int(excess), pool))
	}
}

// withReserve checks the number of Machines for Pods and in excess, all of one class, and that the status counts
// them separately.
func withReserve(replicas, excess int, class string) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		machines, deployments := &v1alpha1.MachineList{}, &v1alpha1.MachineDeploymentList{}
		if err := errors.Join(r.list(ctx, machines), r.list(ctx, deployments), allOf(replicas+excess, class)(ctx, r)); err != nil {
			return err
		}
		held := 0
		for i := range machines.Items {
			if reserve.In(&machines.Items[i].Spec) {
				held++
			}
		}
		if held != excess {
			return fmt.Errorf("%d machines are in excess, want %d", held, excess)
		}
		for _, deployment := range deployments.Items {
			if status := deployment.Status; int(status.Replicas) != replicas || int(status.ExcessReplicas) != excess {
				return fmt.Errorf("the status counts %d replicas and %d in excess, want %d and %d", status.Replicas, status.ExcessReplicas, replicas, excess)
			}
		}
		return nil
	}
}

var (
	errKeptFree = errors.New("too few machines are for pods")
	errMadeSoon = errors.New("a machine is created while an excess machine is needed for Pods")
)

// freeOf counts the Machines that are kept, and those of them that are for Pods.
func freeOf(is moment) (active, free int) {
	for _, machine := range is.machines {
		if !machine.DeletionTimestamp.IsZero() {
			continue
		}
		active++
		if !reserve.In(&machine.Spec) {
			free++
		}
	}
	return active, free
}

// forPods requires a minimum number of Machines for Pods.
func forPods(limit int) rule {
	return func(_ *run, _, is moment) error {
		if _, free := freeOf(is); free < limit {
			return fmt.Errorf("%w: %d, at least %d", errKeptFree, free, limit)
		}
		return nil
	}
}

// freedFirst requires that additional Machines exist only when there are enough Machines for Pods.
func freedFirst(limit int) rule {
	return func(_ *run, _, is moment) error {
		if active, free := freeOf(is); active > limit && free < limit {
			return fmt.Errorf("%w: %d of %d are for pods, not %d", errMadeSoon, free, active, limit)
		}
		return nil
	}
}
