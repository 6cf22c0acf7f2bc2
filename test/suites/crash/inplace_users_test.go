package crash

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
)

// usersAmidUpdates contains the scenarios in which users and autoscalers act during an in-place update.
var usersAmidUpdates = []scenario{
	{
		name:   "rollback amid an update in place",
		given:  givenBothClasses(2, inPlace),
		act:    inTurn(beginUpdate, updateOne, nameReady, patched(`{"spec":{"rollbackTo":{}}}`), succeedNamed, nameNone),
		want:   withAgents(inPlaceOf(pool, 2)),
		always: both(both(both(most(2), least(1)), oneUpdates), noneReplaced),
	},
	{
		name:   "update in place, whose agent responds too late",
		given:  givenBothClasses(2, inPlace, updatedWithin(shortUpdateTimeout), neverFailed),
		act:    inTurn(beginUpdate, nameReady, awaitThat("an update that is blocked", blocked), succeedNamed),
		want:   withAgents(inPlaceOf(newClass, 2)),
		always: both(both(both(most(2), least(1)), oneUpdates), noneReplaced),
	},
	{
		name:  "labels of an update in place by hand, in a wrong order",
		given: givenBothClasses(2, inPlace),
		act: inTurn(
			selectAll, beginUpdate, nameReady,
			labelNamed(v1alpha1.LabelKeyNodeUpdateResult, ptr.To("perhaps")), awaitThat("an update that is blocked", blocked),
			labelNamed(v1alpha1.LabelKeyNodeCandidateForUpdate, nil), succeedNamed,
		),
		want:   withAgents(inPlaceOf(newClass, 2)),
		always: both(most(2), noneReplaced),
	},
	{
		name:   "preserved amid an update in place",
		given:  givenBothClasses(2, inPlace),
		act:    inTurn(beginUpdate, nameReady, requested("now"), awaitThat("a preservation", preserved), succeedNamed, awaitThat("the end of its update", namedUpdated), unwish),
		want:   withAgents(all(inPlaceOf(newClass, 2), namedUnmarked)),
		always: both(both(most(2), least(1)), both(keepPreserved, noneReplaced)),
	},
	{
		name:          "preserved when its update in place fails",
		healthTimeout: shortHealthTimeout,
		given:         givenBothClasses(2, inPlace, updatedWithin(10*time.Second)), // the request comes before that
		act:           inTurn(beginUpdate, nameReady, requested("when-failed"), awaitThat("a preservation", preserved), requested("false")),
		want:          withAgents(all(allInSetOf(2, newClass), namedGone)),
		always:        both(most(3), both(keepPreserved, onlyFailed)),
	},
	{
		name:   "scale down by name amid an update in place",
		given:  givenBothClasses(3, inPlace),
		act:    inTurn(beginUpdate, awaitThat("a node that is ready for its update", someReady), nameIdle, scaleByName(2)),
		want:   withAgents(all(inPlaceOf(newClass, 2), namedGone)),
		always: both(both(most(3), least(1)), onlyNamed),
	},
	{
		name:   "scale down by name of one that is updated in place",
		given:  givenBothClasses(3, inPlace),
		act:    inTurn(beginUpdate, nameReady, scaleByName(2), succeedNamed),
		want:   withAgents(all(inPlaceOf(newClass, 2), namedGone)),
		always: both(both(most(3), least(1)), onlyNamed),
	},
}

// nameNone leaves all nodes to withAgents: a node whose update was complete before the rollback is updated once
// more.
func nameNone(_ context.Context, r *run) error {
	r.named = ""
	return nil
}

// unwish cancels a preservation request.
func unwish(ctx context.Context, r *run) error {
	machine, err := r.namedMachine(ctx)
	if err != nil {
		return err
	}
	return r.merge(ctx, machine, preserveAnnotation("null"))
}

// inPlaceOf checks that that many Machines run, all updated in place to the MachineSet of a class.
func inPlaceOf(class string, replicas int) func(context.Context, *run) error {
	return all(allInSetOf(replicas, class), func(ctx context.Context, r *run) error {
		return r.eachNode(ctx, func(node *corev1.Node) error {
			if !wantText(node, v1alpha1.NodeInPlaceUpdate, v1alpha1.UpdateSuccessful) {
				return fmt.Errorf("node %s was not updated", node.Name)
			}
			return nil
		})
	})
}

// all combines several checks.
func all(checks ...func(context.Context, *run) error) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		for _, check := range checks {
			if err := check(ctx, r); err != nil {
				return err
			}
		}
		return nil
	}
}

// neverFailed keeps Machines from becoming Failed, regardless of the health of their nodes.
func neverFailed(deployment *v1alpha1.MachineDeployment) {
	deployment.Spec.Template.Spec.MachineConfiguration.DisableHealthTimeout = ptr.To(true)
}

// selectAll selects all nodes, whether they are candidates or not.
func selectAll(ctx context.Context, r *run) error {
	return r.eachNode(ctx, func(node *corev1.Node) error {
		return r.mergeNode(ctx, node.Name, labelNode(v1alpha1.LabelKeyNodeSelectedForUpdate, "true"))
	})
}

// labelNamed adds a label to the marked node, or removes it.
func labelNamed(key string, value *string) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		if value == nil {
			return r.mergeNode(ctx, r.named, fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, key))
		}
		return r.mergeNode(ctx, r.named, labelNode(key, *value))
	}
}

func (r *run) namedMachine(ctx context.Context) (*v1alpha1.Machine, error) {
	machine := &v1alpha1.Machine{}
	err := r.control.Client.Get(ctx, client.ObjectKey{Namespace: r.control.Namespace, Name: r.named}, machine)
	return machine, err
}

// namedUpdated checks that the marked node was updated and uncordoned.
func namedUpdated(ctx context.Context, r *run) error {
	node := &corev1.Node{}
	err := r.target.Client.Get(ctx, client.ObjectKey{Name: r.named}, node)
	if err == nil && (inplaceupdate.Labelled(node) || !wantText(node, v1alpha1.NodeInPlaceUpdate, v1alpha1.UpdateSuccessful)) {
		err = fmt.Errorf("its labels are %v", node.Labels)
	}
	return err
}

// namedUnmarked checks that the marked Machine exists, without a trace of a preservation.
func namedUnmarked(ctx context.Context, r *run) error {
	machine, err := r.namedMachine(ctx)
	if err != nil {
		return err
	}
	return r.unmarked(ctx, machine)
}

// namedGone checks that the marked Machine is gone.
func namedGone(ctx context.Context, r *run) error {
	_, err := r.namedMachine(ctx)
	if err == nil {
		return fmt.Errorf("%s is still there", r.named)
	}
	return client.IgnoreNotFound(err)
}

// someReady checks that a node waits for its agent.
func someReady(ctx context.Context, r *run) error {
	ready := false
	err := r.eachNode(ctx, func(node *corev1.Node) error {
		ready = ready || waitsForAgent(node)
		return nil
	})
	if err == nil && !ready {
		err = errors.New("there is none")
	}
	return err
}

// nameIdle marks the Machine of a node that is not selected.
func nameIdle(ctx context.Context, r *run) error {
	return r.eachNode(ctx, func(node *corev1.Node) error {
		if !inplaceupdate.Selected(node) {
			r.named = node.Name
		}
		return nil
	})
}

func scaleByName(replicas int) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error { return r.nameAndScale(ctx, replicas) }
}
