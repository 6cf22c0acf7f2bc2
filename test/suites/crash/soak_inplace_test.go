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

// soakUpdateTimeout is the timeout of in-place updates. Agents check their nodes each second.
const soakUpdateTimeout = 5 * time.Second

// Operations of operators and agents during in-place updates. Without an update, they do nothing.
var soakUpdateOperations = []soakOperation{
	{"roll out another class", (*soak).rollOut},
	{"the update of a node fails", (*soak).failUpdate},
	{"select a node for its update", (*soak).selectNode},
}

// givenAgents creates that many running Machines, whose nodes have agents that update them in place.
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

// chooseStrategy selects whether Machines are replaced or updated in place, and whether the MachineDeployment or
// users select the nodes.
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

// eachCandidate calls a function for the candidate nodes until it reports that it is done.
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

// failUpdate makes the agent of a node report that its update failed.
func (s *soak) failUpdate(ctx context.Context, r *run) error {
	return r.eachCandidate(ctx, func(node *corev1.Node) (bool, error) {
		if !waitsForAgent(node) {
			return false, nil
		}
		return true, r.mergeNode(ctx, node.Name, labelNode(v1alpha1.LabelKeyNodeUpdateResult, v1alpha1.LabelValueNodeUpdateFailed))
	})
}

// selectNode selects a candidate, as users do. The MachineDeployment may have selected others.
func (s *soak) selectNode(ctx context.Context, r *run) error {
	return r.eachCandidate(ctx, func(node *corev1.Node) (bool, error) {
		if inplaceupdate.Selected(node) {
			return false, nil
		}
		return true, r.mergeNode(ctx, node.Name, labelNode(v1alpha1.LabelKeyNodeSelectedForUpdate, "true"))
	})
}

// endUpdates makes no update wait for a user, or remain failed.
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

// allInSetOf checks that that many Machines run, all of them in the MachineSet of a class. A Machine that was
// updated in place still refers to its original class. No node takes part in an update.
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
