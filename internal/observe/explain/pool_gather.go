package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// mostExamples is how many Machines of a pool are looked at in all detail, each of which
// costs about a dozen requests.
const mostExamples = 4

// GatherSet reads all that concerns a MachineSet. What cannot be read is noted in the facts:
// it fails only if not even the set can be asked for.
func (g Gatherer) GatherSet(ctx context.Context, key types.NamespacedName) (PoolFacts, error) {
	r := &gathering{Gatherer: g, facts: Facts{Key: key}}
	facts := PoolFacts{Kind: kindSet, Key: key}
	set := &v1alpha1.MachineSet{}
	switch err := g.Control.Get(ctx, key, set); {
	case err == nil:
		facts.Sets = []v1alpha1.MachineSet{*set}
		r.deployment(ctx, metav1.GetControllerOfNoCopy(set))
		facts.Deployment = r.facts.Owners.Deployment
	case !apierrors.IsNotFound(err):
		return PoolFacts{}, fmt.Errorf("reading machine set %s: %w", key, err)
	}
	return r.pool(ctx, facts), nil
}

// GatherDeployment does the same for a MachineDeployment.
func (g Gatherer) GatherDeployment(ctx context.Context, key types.NamespacedName) (PoolFacts, error) {
	r := &gathering{Gatherer: g, facts: Facts{Key: key}}
	facts := PoolFacts{Kind: kindDeployment, Key: key}
	deployment := &v1alpha1.MachineDeployment{}
	switch err := g.Control.Get(ctx, key, deployment); {
	case err == nil:
		facts.Deployment = deployment
		facts.Sets, facts.SetsUnread = r.setsOf(ctx, deployment)
	case !apierrors.IsNotFound(err):
		return PoolFacts{}, fmt.Errorf("reading machine deployment %s: %w", key, err)
	}
	return r.pool(ctx, facts), nil
}

func (r *gathering) setsOf(ctx context.Context, deployment *v1alpha1.MachineDeployment) (owned []v1alpha1.MachineSet, unread bool) {
	list := &v1alpha1.MachineSetList{}
	if !r.list(ctx, r.Control, list, client.InNamespace(deployment.Namespace)) {
		return nil, true
	}
	sets := slices.DeleteFunc(list.Items, func(set v1alpha1.MachineSet) bool { return !metav1.IsControlledBy(&set, deployment) })
	slices.SortFunc(sets, func(a, b v1alpha1.MachineSet) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return sets, false
}

// pool reads what there is around a set or deployment.
func (r *gathering) pool(ctx context.Context, facts PoolFacts) PoolFacts {
	facts.Lease = r.lease(ctx, v1alpha1.LeaseMachineControllerManager)
	facts.MachineLease = r.lease(ctx, v1alpha1.LeaseMachineController)
	if facts.Kind == kindDeployment && facts.exists() {
		r.eventsOf(ctx, kindDeployment, facts.Deployment)
	}
	for i := range facts.Sets {
		r.eventsOf(ctx, kindSet, &facts.Sets[i])
	}
	if !facts.exists() {
		r.events(ctx, r.Control, facts.Key.Namespace, facts.Kind, facts.Key.Name)
		facts.Names = r.names(ctx, facts.Kind)
	}
	machines := &v1alpha1.MachineList{}
	if len(facts.Sets) > 0 {
		facts.MachinesUnread = !r.list(ctx, r.Control, machines, client.InNamespace(facts.Key.Namespace))
		facts.Machines = slices.DeleteFunc(machines.Items, func(machine v1alpha1.Machine) bool {
			return !slices.ContainsFunc(facts.Sets, func(set v1alpha1.MachineSet) bool { return metav1.IsControlledBy(&machine, &set) })
		})
	}
	facts.Examples = map[string]Facts{}
	groups := facts.groups(facts.Machines)
	for _, group := range groups[:min(mostExamples, len(groups))] {
		example, err := r.Gather(ctx, client.ObjectKeyFromObject(group[0]))
		if err != nil {
			r.unread("Machine %s: %v", group[0].Name, err)
			continue
		}
		facts.Examples[group[0].Name] = example
		r.facts.Unread = append(r.facts.Unread, example.Unread...)
	}
	slices.Sort(r.facts.Unread)
	facts.Unread = slices.Compact(r.facts.Unread)
	facts.Events = r.facts.Events
	slices.SortStableFunc(facts.Events, func(a, b corev1.Event) int { return timeOf(&a).Compare(timeOf(&b)) })
	return facts
}

func (r *gathering) lease(ctx context.Context, name string) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{}
	if !r.get(ctx, r.Control, types.NamespacedName{Namespace: r.facts.Key.Namespace, Name: name}, lease) {
		return nil
	}
	return lease
}

// names are those of the objects of a kind in the namespace.
func (r *gathering) names(ctx context.Context, kind string) []string {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(kind + "List"))
	var names []string
	if r.list(ctx, r.Control, list, client.InNamespace(r.facts.Key.Namespace)) {
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
	}
	return names
}
