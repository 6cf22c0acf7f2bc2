package crash

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
)

// soakUpdateTimeout is how long an update in place may take: agents look at their nodes each second.
const soakUpdateTimeout = 5 * time.Second

// What operators and agents do while nodes are updated in place. Without an update they do nothing.
var soakUpdateOperations = []soakOperation{
	{"roll out another class", (*soak).rollOut},
	{"the update of a node fails", (*soak).failUpdate},
	{"select a node for its update", (*soak).selectNode},
}

// givenAgents has so many Machines run, whose nodes have agents that update them in place.
func givenAgents(replicas int32) func(context.Context, *run) error {
	timeout := func(deployment *v1alpha1.MachineDeployment) {
		deployment.Spec.Template.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{
			MachineInPlaceUpdateTimeout: &metav1.Duration{Duration: soakUpdateTimeout},
		}
	}
	haveAgents := func(ctx context.Context, r *run) error {
		for _, name := range []string{pool, newClass} {
			class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: r.control.Namespace, Name: name}}
			if err := r.merge(ctx, class, fmt.Sprintf(`{"providerSpec":{"agent":%q}}`, sim.AgentSucceeds)); err != nil {
				return err
			}
		}
		return r.scale(ctx, replicas)
	}
	return inTurn(givenBothClasses(0, rolling(1, 1), timeout), haveAgents, awaitThat("what is given", running(int(replicas))))
}

// chooseStrategy has Machines replaced or updated in place, by selection of the deployment or of users.
func (s *soak) chooseStrategy(ctx context.Context, r *run) error {
	const bounds = `{"maxSurge":1,"maxUnavailable":1`
	strategies := []string{
		`{"type":"RollingUpdate","inPlaceUpdate":null,"rollingUpdate":` + bounds + `}}`,
		`{"type":"InPlaceUpdate","rollingUpdate":null,"inPlaceUpdate":` + bounds + `,"orchestrationType":"Auto"}}`,
		`{"type":"InPlaceUpdate","rollingUpdate":null,"inPlaceUpdate":` + bounds + `,"orchestrationType":"Manual"}}`,
	}
	strategy := strategies[s.random.IntN(len(strategies))]
	r.gate.note("strategy %s", strategy)
	return r.patchDeployment(ctx, fmt.Sprintf(`{"spec":{"strategy":%s}}`, strategy))
}

// eachCandidate does something with the nodes that are candidates, until it reports that it is done.
func (r *run) eachCandidate(ctx context.Context, do func(*corev1.Node) (done bool, err error)) error {
	done := false
	return r.eachNode(ctx, func(node *corev1.Node) (err error) {
		if !done && node.Labels[v1alpha1.LabelKeyNodeCandidateForUpdate] != "" {
			done, err = do(node)
		}
		return client.IgnoreNotFound(err)
	})
}

func labelNode(key, value string) string {
	return fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, key, value)
}

// failUpdate has the agent of a node say that its update failed.
func (s *soak) failUpdate(ctx context.Context, r *run) error {
	return r.eachCandidate(ctx, func(node *corev1.Node) (bool, error) {
		if !waitsForAgent(node) {
			return false, nil
		}
		return true, r.mergeNode(ctx, node.Name, labelNode(v1alpha1.LabelKeyNodeUpdateResult, v1alpha1.LabelValueNodeUpdateFailed))
	})
}

// selectNode selects a candidate, as users do. The deployment may have selected others.
func (s *soak) selectNode(ctx context.Context, r *run) error {
	return r.eachCandidate(ctx, func(node *corev1.Node) (bool, error) {
		if inplaceupdate.Selected(node) {
			return false, nil
		}
		return true, r.mergeNode(ctx, node.Name, labelNode(v1alpha1.LabelKeyNodeSelectedForUpdate, "true"))
	})
}

// endUpdates has no user be waited for, and no update stay failed.
func (s *soak) endUpdates(ctx context.Context, r *run) error {
	deployment, err := r.deployment(ctx)
	if err != nil {
		return err
	}
	if deployment.Spec.Strategy.InPlaceUpdate != nil {
		if err := r.patchDeployment(ctx, `{"spec":{"strategy":{"inPlaceUpdate":{"orchestrationType":"Auto"}}}}`); err != nil {
			return err
		}
	}
	return r.eachNode(ctx, func(node *corev1.Node) error {
		if node.Labels[v1alpha1.LabelKeyNodeUpdateResult] != v1alpha1.LabelValueNodeUpdateFailed {
			return nil
		}
		return client.IgnoreNotFound(r.mergeNode(ctx, node.Name, labelNode(v1alpha1.LabelKeyNodeUpdateResult, v1alpha1.LabelValueNodeUpdateSuccessful)))
	})
}

// allInSetOf checks that so many Machines run, all of them of the set of a class: one that was updated in
// place still names the class that it was made from. No node takes part in an update any more.
func allInSetOf(replicas int, class string) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		list, machines := &v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}
		if err := errors.Join(r.list(ctx, list), r.list(ctx, machines)); err != nil {
			return err
		}
		at := slices.IndexFunc(list.Items, func(set v1alpha1.MachineSet) bool { return set.Spec.Template.Spec.Class.Name == class })
		if at < 0 {
			return fmt.Errorf("there is no set of class %s", class)
		}
		for i := range machines.Items {
			if machine := &machines.Items[i]; !metav1.IsControlledBy(machine, &list.Items[at]) || inplaceupdate.Moved(machine) {
				return fmt.Errorf("machine %s is not one of set %s yet", machine.Name, list.Items[at].Name)
			}
		}
		if err := r.eachNode(ctx, settledNode); err != nil {
			return err
		}
		return running(replicas)(ctx, r)
	}
}

func settledNode(node *corev1.Node) error {
	protected := node.Annotations[v1alpha1.AnnotationKeyScaleDownDisabledByMCM] != ""
	if inplaceupdate.Labelled(node) || node.Spec.Unschedulable || protected {
		return fmt.Errorf("node %s is not in use yet: labels %v, cordoned %t, protected %t", node.Name, node.Labels, node.Spec.Unschedulable, protected)
	}
	return nil
}
