package crash

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machineset"
)

// sizes contains the scenarios in which a MachineSet or a MachineDeployment is scaled.
var sizes = []scenario{
	{
		name:   "scale up",
		given:  givenSet(1),
		act:    func(ctx context.Context, r *run) error { return r.scaleSet(ctx, 3) },
		want:   running(3),
		always: both(most(3), least(1)),
	},
	{
		name:   "scale down",
		given:  givenDeployment(2),
		act:    func(ctx context.Context, r *run) error { return r.scale(ctx, 1) },
		want:   running(1),
		always: both(most(2), least(1)),
	},
	{
		name:   "scale down by name",
		given:  givenDeployment(3),
		act:    nameYoungest,
		want:   withoutNamed(2),
		always: both(onlyNamed, least(2)),
	},
	{
		name: "scale down by name, of one that fails",
		// The MachineSet may replace the Machine before it is deleted by name, and then deletes one that is not
		// needed. Usable Machines are kept.
		firstNeverJoins: true,
		given:           givenOneThatDoesNotJoin,
		act:             nameAndFail,
		want:            withoutNamed(1),
		always:          both(most(3), least(1)),
	},
	{
		name: "frozen",
		// A MachineSet is frozen at its desired replicas, and unfrozen three below that.
		overshoot: &machineset.Overshoot{Up: 0, Down: 3},
		given:     givenFrozen,
		act:       loseOneAndScale,
		want:      stillFrozen,
		always:    both(frozenMakeNothing, most(2)),
	},
}

// givenSet creates a MachineSet with that many running Machines, without a MachineDeployment.
func givenSet(replicas int32) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		if err := declareClass(ctx, r); err != nil {
			return err
		}
		err := r.create(ctx, &v1alpha1.MachineSet{
			ObjectMeta: metav1.ObjectMeta{Name: pool},
			Spec: v1alpha1.MachineSetSpec{
				Replicas: replicas,
				Selector: &metav1.LabelSelector{MatchLabels: poolLabels()},
				Template: r.scenario.machineTemplate(),
			},
		})
		if err != nil {
			return err
		}
		return r.await(ctx, "what is given", running(int(replicas)))
	}
}

func (r *run) scaleSet(ctx context.Context, replicas int32) error {
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	return r.control.Client.Patch(ctx, &v1alpha1.MachineSet{ObjectMeta: r.poolMeta()}, patch)
}

// nameYoungest marks a Machine that would not be deleted otherwise.
func nameYoungest(ctx context.Context, r *run) error {
	machines := &v1alpha1.MachineList{}
	if err := r.list(ctx, machines); err != nil {
		return err
	}
	r.named = youngest(machines.Items)
	return r.nameAndScale(ctx, len(machines.Items)-1)
}

// nameAndScale scales down and marks the Machine to delete with a single write, as an autoscaler does.
func (r *run) nameAndScale(ctx context.Context, replicas int) error {
	now := time.Now().UTC().Format(time.RFC3339)
	return r.patchDeployment(ctx, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q,%q:%q}},"spec":{"replicas":%d}}`,
		v1alpha1.AnnotationKeyTriggerDeletion, r.named+"~"+now, v1alpha1.AnnotationKeyLastReplicaChange, now, replicas))
}

// givenOneThatDoesNotJoin creates two Machines: a running one, and one whose node does not join. The latter will
// be marked.
func givenOneThatDoesNotJoin(ctx context.Context, r *run) error {
	if err := declareClass(ctx, r); err != nil {
		return err
	}
	if err := r.declareDeployment(ctx, 2); err != nil {
		return err
	}
	return r.await(ctx, "one Machine Running, and one Pending", func(ctx context.Context, r *run) error {
		machines := &v1alpha1.MachineList{}
		if err := r.list(ctx, machines); err != nil {
			return err
		}
		phases := map[v1alpha1.MachinePhase]string{}
		for _, machine := range machines.Items {
			phases[machine.Status.CurrentStatus.Phase] = machine.Name
		}
		if phases[v1alpha1.MachineRunning] == "" || phases[v1alpha1.MachinePending] == "" {
			return fmt.Errorf("there are %v", phases)
		}
		r.named = phases[v1alpha1.MachinePending]
		return nil
	})
}

// nameAndFail marks the Machine, and makes it time out at the same moment. The order in which these are observed
// is random.
func nameAndFail(ctx context.Context, r *run) error {
	if err := r.nameAndScale(ctx, 1); err != nil {
		return err
	}
	return r.endTimeToJoin(ctx, r.named)
}

// endTimeToJoin makes a Machine fail that waits for its node.
func (r *run) endTimeToJoin(ctx context.Context, name string) error {
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"1ms"}}}`, v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout))
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: r.control.Namespace, Name: name}}
	return client.IgnoreNotFound(r.control.Client.Patch(ctx, machine, patch))
}

// youngest returns the Machine that a MachineSet would delete last if none was marked.
func youngest(machines []v1alpha1.Machine) string {
	last := slices.MaxFunc(machines, func(a, b v1alpha1.Machine) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return last.Name
}

// withoutNamed checks that the marked Machine and the mark are gone, and that that many Machines run.
func withoutNamed(left int) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		err := r.control.Client.Get(ctx, client.ObjectKey{Namespace: r.control.Namespace, Name: r.named}, &v1alpha1.Machine{})
		if err == nil {
			return fmt.Errorf("machine %s still exists", r.named)
		}
		if client.IgnoreNotFound(err) != nil {
			return err
		}
		deployment, err := r.deployment(ctx)
		if err != nil {
			return err
		}
		if requested, left := deployment.Annotations[v1alpha1.AnnotationKeyTriggerDeletion]; left {
			return fmt.Errorf("the deployment still names %s", requested)
		}
		return running(left)(ctx, r)
	}
}

func (r *run) deployment(ctx context.Context) (*v1alpha1.MachineDeployment, error) {
	deployment := &v1alpha1.MachineDeployment{}
	return deployment, r.control.Client.Get(ctx, client.ObjectKey{Namespace: r.control.Namespace, Name: pool}, deployment)
}

// givenFrozen creates a frozen MachineSet with two running Machines.
func givenFrozen(ctx context.Context, r *run) error {
	if err := givenDeployment(2, rolling(0, 1))(ctx, r); err != nil {
		return err
	}
	return r.await(ctx, "a frozen set", func(ctx context.Context, r *run) error {
		set, err := r.onlySet(ctx)
		if err == nil && set.Labels[v1alpha1.LabelKeyFreeze] != "True" {
			err = errors.New("it is not frozen")
		}
		return err
	})
}

func (r *run) onlySet(ctx context.Context) (*v1alpha1.MachineSet, error) {
	sets := &v1alpha1.MachineSetList{}
	if err := r.list(ctx, sets); err != nil {
		return nil, err
	}
	if got := len(sets.Items); got != 1 {
		return nil, fmt.Errorf("there are %d sets, not one", got)
	}
	return &sets.Items[0], nil
}

// loseOneAndScale deletes a Machine of a frozen MachineSet, and scales up by one.
func loseOneAndScale(ctx context.Context, r *run) error {
	machines := &v1alpha1.MachineList{}
	if err := r.list(ctx, machines); err != nil {
		return err
	}
	if err := r.control.Client.Delete(ctx, &machines.Items[0]); err != nil {
		return err
	}
	return r.scale(ctx, 3)
}

// stillFrozen checks that a MachineSet has observed that it lacks Machines, and creates none.
func stillFrozen(ctx context.Context, r *run) error {
	set, err := r.onlySet(ctx)
	if err != nil {
		return err
	}
	switch {
	case set.Labels[v1alpha1.LabelKeyFreeze] != "True":
		return errors.New("the set is not frozen")
	case set.Spec.Replicas != 3 || set.Status.ObservedGeneration != set.Generation:
		return fmt.Errorf("the set knows of generation %d of %d, and wants %d Machines", set.Status.ObservedGeneration, set.Generation, set.Spec.Replicas)
	}
	return running(1)(ctx, r)
}
