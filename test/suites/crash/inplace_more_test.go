package crash

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
)

// shortUpdateTimeout is the timeout of in-place updates that never complete.
const shortUpdateTimeout = time.Second

// troubledUpdates contains the scenarios in which an in-place update does not simply succeed.
var troubledUpdates = []scenario{
	{
		name:   "update in place, which fails at first",
		given:  givenBothClasses(2, inPlace),
		act:    inTurn(beginUpdate, failNext, awaitThat("an update that is blocked", blocked), succeedNamed),
		want:   withAgents(updatedInPlace(2)),
		always: both(both(least(1), oneUpdates), noneReplaced),
	},
	{
		name:          "update in place, amid which the node dies",
		healthTimeout: shortHealthTimeout,
		given:         givenBothClasses(2, inPlace, updatedWithin(shortUpdateTimeout)),
		act:           inTurn(beginUpdate, nameReady, loseNamed),
		want:          withAgents(allInSetOf(2, newClass)),
		always:        both(both(most(3), least(1)), onlyFailed),
	},
	{
		name:   "update in place, by hand",
		given:  givenBothClasses(2, inPlace, byHand),
		act:    inTurn(beginUpdate, selectOne, updateOne, awaitThat("one that is updated", oneUpdated), selectOne, updateOne),
		want:   updatedInPlace(2),
		always: both(both(most(2), least(1)), noneReplaced),
	},
	{
		name:   "scale down amid an update in place",
		given:  givenBothClasses(3, inPlace),
		act:    inTurn(beginUpdate, nameReady, patched(`{"spec":{"replicas":2}}`), succeedNamed),
		want:   withAgents(allInSetOf(2, newClass)),
		always: both(both(most(3), least(1)), both(namedStays, newOnesStay)),
	},
}

// byHand makes users select the nodes.
func byHand(deployment *v1alpha1.MachineDeployment) {
	deployment.Spec.Strategy.InPlaceUpdate.OrchestrationType = v1alpha1.OrchestrationTypeManual
}

// updatedWithin sets the timeout of each update.
func updatedWithin(timeout time.Duration) deploymentOption {
	return func(deployment *v1alpha1.MachineDeployment) {
		deployment.Spec.Template.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineInPlaceUpdateTimeout: &metav1.Duration{Duration: timeout}}
	}
}

func beginUpdate(ctx context.Context, r *run) error { return r.rollTo(ctx, newClass) }

func patched(patch string) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error { return r.patchDeployment(ctx, patch) }
}

// nameReady waits for a node that is ready for its update, and marks it for the following steps. Its agent does
// not respond by itself.
func nameReady(ctx context.Context, r *run) error {
	name, err := r.awaitReady(ctx)
	r.named = name
	return err
}

// failNext makes the agent of the next node that is ready report that its update failed.
func failNext(ctx context.Context, r *run) error {
	if err := nameReady(ctx, r); err != nil {
		return err
	}
	return r.mergeNode(ctx, r.named, labelNode(v1alpha1.LabelKeyNodeUpdateResult, v1alpha1.LabelValueNodeUpdateFailed))
}

// succeedNamed makes the agent of the marked node report that it was updated.
func succeedNamed(ctx context.Context, r *run) error {
	return r.mergeNode(ctx, r.named, labelNode(v1alpha1.LabelKeyNodeUpdateResult, v1alpha1.LabelValueNodeUpdateSuccessful))
}

// loseNamed makes the marked node silent.
func loseNamed(_ context.Context, r *run) error {
	_, err := r.cloud.SetNodeReady(r.named, corev1.ConditionUnknown)
	return err
}

// blocked checks that the MachineDeployment reports that an update does not continue by itself.
func blocked(ctx context.Context, r *run) error {
	deployment, err := r.deployment(ctx)
	if err != nil {
		return err
	}
	for _, condition := range deployment.Status.Conditions {
		if condition.Type == v1alpha1.MachineDeploymentProgressing && condition.Reason == v1alpha1.DeploymentReasonUpdateBlocked {
			return nil
		}
	}
	return fmt.Errorf("its conditions are %v", deployment.Status.Conditions)
}

// selectOne selects a candidate, as a user does.
func selectOne(ctx context.Context, r *run) error {
	candidate := ""
	err := r.await(ctx, "a candidate", func(ctx context.Context, r *run) error {
		err := r.eachCandidate(ctx, func(node *corev1.Node) (bool, error) {
			if inplaceupdate.Selected(node) || wantText(node, v1alpha1.NodeInPlaceUpdate, v1alpha1.UpdateSuccessful) {
				return false, nil
			}
			candidate = node.Name
			return true, nil
		})
		if err == nil && candidate == "" {
			err = errors.New("there is none")
		}
		return err
	})
	if err != nil {
		return err
	}
	return r.mergeNode(ctx, candidate, labelNode(v1alpha1.LabelKeyNodeSelectedForUpdate, "true"))
}

// oneUpdated checks that one Machine was updated, and is available again.
func oneUpdated(ctx context.Context, r *run) error {
	machines := &v1alpha1.MachineList{}
	if err := r.list(ctx, machines); err != nil {
		return err
	}
	for i := range machines.Items {
		machine := &machines.Items[i]
		if inplaceupdate.State(machine) == v1alpha1.UpdateSuccessful && machine.Status.CurrentStatus.Phase == v1alpha1.MachineRunning {
			return nil
		}
	}
	return errors.New("there is none")
}

// withAgents makes the agents of all nodes except the marked one succeed, until a check succeeds.
func withAgents(check func(context.Context, *run) error) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		err := r.eachNode(ctx, func(node *corev1.Node) error {
			if node.Name == r.named || !waitsForAgent(node) {
				return nil
			}
			return r.mergeNode(ctx, node.Name, labelNode(v1alpha1.LabelKeyNodeUpdateResult, v1alpha1.LabelValueNodeUpdateSuccessful))
		})
		if err != nil {
			return err // a node may be gone meanwhile
		}
		return check(ctx, r)
	}
}

// oneUpdates requires that at most one Machine takes part in an update at a time, including one that failed.
func oneUpdates(_ *run, _, is moment) error {
	updating := 0
	for _, machine := range is.machines {
		if inplaceupdate.Undergoing(machine, nil) {
			updating++
		}
	}
	if updating > 1 {
		return fmt.Errorf("%w: %d are updated at the same time", errTooFew, updating)
	}
	return nil
}

// leaving calls a function for each Machine whose deletion starts.
func leaving(was, is moment, do func(*v1alpha1.Machine) error) error {
	for name, machine := range was.machines {
		if next, exists := is.machines[name]; machine.DeletionTimestamp.IsZero() && (!exists || !next.DeletionTimestamp.IsZero()) {
			if err := do(machine); err != nil {
				return fmt.Errorf("%w: %s, %w", errVictim, name, err)
			}
		}
	}
	return nil
}

// onlyFailed requires that only Failed Machines are deleted.
func onlyFailed(_ *run, was, is moment) error {
	return leaving(was, is, func(machine *v1alpha1.Machine) error {
		if phase := machine.Status.CurrentStatus.Phase; phase != v1alpha1.MachineFailed {
			return fmt.Errorf("which is %q", phase)
		}
		return nil
	})
}

// namedStays requires that the marked Machine is not deleted.
func namedStays(r *run, was, is moment) error {
	return leaving(was, is, func(machine *v1alpha1.Machine) error {
		if machine.Name == r.named {
			return errors.New("whose node is being updated")
		}
		return nil
	})
}

// newOnesStay requires that no Machine of the new MachineSet is deleted, neither an updated nor a created one.
func newOnesStay(_ *run, was, is moment) error {
	return leaving(was, is, func(machine *v1alpha1.Machine) error {
		owner := ptr.Deref(metav1.GetControllerOf(machine), metav1.OwnerReference{})
		if set := was.sets[owner.Name]; set != nil && set.Spec.Template.Spec.Class.Name == newClass {
			return errors.New("which is one of the new set")
		}
		return nil
	})
}
