package machinedeployment

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// gather reads the facts for a pass. It reads the nodes last, and only if the rollout affects them.
func (p scope) gather(ctx context.Context, deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) (*rollout.Rollout, error) {
	facts, err := p.facts(ctx, deployment, sets)
	if err != nil {
		return nil, err
	}
	r := rollout.New(facts)
	if !p.nodesMatter(r) {
		p.memory.waitingSince = time.Time{}
		return r, nil
	}
	if !p.Target.Ready() {
		return r.WithNodes(nil), nil // rollouts do not wait for the target
	}
	nodes, err := p.readNodes(ctx, facts)
	if err != nil {
		return nil, err
	}
	return r.WithNodes(nodes), nil
}

// facts reads the sets and Machines of a deployment.
func (p scope) facts(ctx context.Context, deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) (f rollout.Facts, err error) {
	f = rollout.NewFacts(deployment, sets, p.Clock.Now())
	if f.Orphans, f.Released, err = p.unowned(ctx, deployment); err != nil {
		return f, err
	}
	if f.Named, err = p.named(ctx, f); err != nil {
		return f, err
	}
	if f.Overlaps, err = p.overlaps(ctx, deployment); err != nil {
		return f, err
	}
	if f.Retained, err = p.retained(ctx, f); err != nil {
		return f, err
	}
	if f.Machines, err = p.inPlace(ctx, f); err != nil {
		return f, err
	}
	f.LiveUpdate, err = p.liveUpdate(ctx, f)
	return f, err
}

// sets returns the sets with the given controller. It sorts them by name, since messages list them.
func (c *Controller) sets(ctx context.Context, namespace, controller string) ([]*v1alpha1.MachineSet, error) {
	list := &v1alpha1.MachineSetList{}
	err := c.Client.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{fieldindex.ByController: controller})
	if err != nil {
		return nil, fmt.Errorf("listing machine sets: %w", err)
	}
	sets := make([]*v1alpha1.MachineSet, len(list.Items))
	for i := range list.Items {
		sets[i] = &list.Items[i]
	}
	slices.SortFunc(sets, func(a, b *v1alpha1.MachineSet) int { return cmp.Compare(a.Name, b.Name) })
	return sets, nil
}

// unowned returns the sets that the deployment has to adopt, and the sets that it released.
func (c *Controller) unowned(ctx context.Context, deployment *v1alpha1.MachineDeployment) (orphans, released []*v1alpha1.MachineSet, err error) {
	sets, err := c.sets(ctx, deployment.Namespace, fieldindex.Orphan)
	selects := rollout.Selects(deployment)
	for _, set := range sets {
		matches := selects(set)
		switch {
		case matches && c.Live != nil && set.DeletionTimestamp.IsZero():
			orphans = append(orphans, set)
		case !matches && counts.Existing(set) > 0 && revision.CreatedFor(deployment, set):
			released = append(released, set)
		}
	}
	return orphans, released, err
}

// named returns the Machines that an autoscaler named for deletion. Machines of other deployments count as missing.
func (c *Controller) named(ctx context.Context, f rollout.Facts) ([]rollout.Named, error) {
	named := rollout.ParseNamed(f.Deployment.Annotations[v1alpha1.AnnotationKeyTriggerDeletion])
	for i := range named {
		machine := &v1alpha1.Machine{}
		err := c.Client.Get(ctx, client.ObjectKey{Namespace: f.Deployment.Namespace, Name: named[i].Name}, machine)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading machine %s: %w", named[i].Name, err)
		}
		if err == nil && f.Controls(machine) {
			named[i].Machine = machine
		}
	}
	return named, nil
}

func (c *Controller) overlaps(ctx context.Context, deployment *v1alpha1.MachineDeployment) ([]string, error) {
	list := &v1alpha1.MachineDeploymentList{}
	if err := c.Client.List(ctx, list, client.InNamespace(deployment.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing machine deployments: %w", err)
	}
	var names []string
	for i := range list.Items {
		if rollout.Overlap(deployment, &list.Items[i]) {
			names = append(names, list.Items[i].Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

func (c *Controller) retained(ctx context.Context, f rollout.Facts) (map[string]int32, error) {
	retained := map[string]int32{}
	for _, set := range f.All() {
		if counts.Existing(set) == counts.Desired(set) || !set.DeletionTimestamp.IsZero() {
			continue
		}
		machines, err := c.Machines.ControlledBy(ctx, set.Namespace, string(set.UID))
		if err != nil {
			return nil, err
		}
		retained[set.Name] = rollout.Retained(set, machines, f.Now)
	}
	return retained, nil
}

// inPlace returns the Machines of all sets, by the name of the set, or nil if they cannot be updated in place.
func (p scope) inPlace(ctx context.Context, f rollout.Facts) (map[string][]*v1alpha1.Machine, error) {
	if !p.InPlace || p.Target == nil || f.Deployment.Spec.Strategy.Type != v1alpha1.InPlaceUpdateMachineDeploymentStrategyType {
		return nil, nil
	}
	all := map[string][]*v1alpha1.Machine{}
	for _, set := range f.All() {
		var err error
		if all[set.Name], err = p.machinesOf(ctx, set); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// machinesOf returns the Machines of a set, sorted by name. It fails if the cache lacks writes to them.
func (p scope) machinesOf(ctx context.Context, set *v1alpha1.MachineSet) ([]*v1alpha1.Machine, error) {
	machines, err := p.Machines.ControlledBy(ctx, set.Namespace, string(set.UID))
	if err != nil {
		return nil, err
	}
	for _, machine := range machines {
		if !machine.DeletionTimestamp.IsZero() {
			p.memory.machines.Forget(client.ObjectKeyFromObject(machine))
		} else if !p.memory.machines.Fresh(machine) {
			return nil, edge.ErrStale // the Machine may belong to another set now
		}
	}
	slices.SortFunc(machines, func(a, b *v1alpha1.Machine) int { return cmp.Compare(a.Name, b.Name) })
	return machines, nil
}

// liveUpdate returns the live update of Machines to another class, or nil if there is none.
func (p scope) liveUpdate(ctx context.Context, f rollout.Facts) (*liveupdate.Pool, error) {
	update := liveupdate.Find(f.Deployment, f.Current, f.Old, f.Now)
	if update == nil {
		return nil, nil
	}
	var err error
	update.Machines, err = p.machinesOf(ctx, update.Set)
	return update, err
}

// nodesMatter reports whether marks may have to be added to nodes or removed from them.
func (p scope) nodesMatter(r *rollout.Rollout) bool {
	return p.Target != nil && !r.Deployment.Spec.Paused &&
		(r.MarksNodes || r.UnmarksCurrent || r.RolledOut && !p.memory.nodesUnmarked || r.NeedsNodes)
}

func (p scope) readNodes(ctx context.Context, f rollout.Facts) (*rollout.Nodes, error) {
	nodes := &rollout.Nodes{Protect: p.ProtectNodes}
	for _, set := range f.All() {
		if counts.Desired(set) == 0 && !f.HasMachines(set) {
			continue
		}
		machines, err := p.Machines.ControlledBy(ctx, set.Namespace, string(set.UID))
		if err != nil {
			return nil, err
		}
		of := &nodes.OfOld
		if set == f.Current {
			of = &nodes.OfCurrent
		}
		for _, machine := range machines {
			node, err := p.node(ctx, machine)
			if err != nil {
				return nil, err
			}
			if node != nil && p.usable(nodes, machine, node) {
				*of = append(*of, rollout.Node{Machine: machine, Node: node})
			}
		}
	}
	nodes.AwaitingSince = p.waitingSince(nodes, f.Now)
	return nodes, nil
}

// waitingSince records since when candidates have been waiting for the machine controller. The node itself does not
// contain the time when it got a label.
func (p scope) waitingSince(nodes *rollout.Nodes, now time.Time) time.Time {
	waits := slices.ContainsFunc(nodes.OfOld, func(n rollout.Node) bool { return inplaceupdate.Unanswered(n.Machine, n.Node) })
	switch {
	case !waits:
		p.memory.waitingSince = time.Time{}
	case p.memory.waitingSince.IsZero():
		p.memory.waitingSince = now
	}
	return p.memory.waitingSince
}

// usable reports whether a plan can include a node, and records in nodes why it cannot.
func (p scope) usable(nodes *rollout.Nodes, machine *v1alpha1.Machine, node *corev1.Node) bool {
	if !p.memory.nodes.Fresh(node) {
		nodes.Stale = true
		return false
	}
	if !node.DeletionTimestamp.IsZero() || joining(machine, node) {
		return false
	}
	nodes.Behind = nodes.Behind || inplaceupdate.Behind(machine, node)
	return true
}

// node returns the cached node of a Machine, or nil if there is none or the Machine is being deleted.
func (p scope) node(ctx context.Context, machine *v1alpha1.Machine) (*corev1.Node, error) {
	key := client.ObjectKey{Name: machine.NodeName()}
	if key.Name == "" {
		return nil, nil
	}
	if !machine.DeletionTimestamp.IsZero() {
		p.memory.nodes.Forget(key) // the node is not written any longer
		return nil, nil
	}
	node := &corev1.Node{}
	err := p.Target.Client().Get(ctx, key, node, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		p.memory.nodes.Forget(key)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading node %s: %w", key.Name, err)
	}
	return node, nil
}

// joining reports whether the machine controller is about to adopt a node. A concurrent write by this controller
// would make its write of the taints fail. When the node has joined, the set's status triggers the next pass.
func joining(machine *v1alpha1.Machine, node *corev1.Node) bool {
	return machine.Status.CurrentStatus.Phase == v1alpha1.MachinePending && !controllerutil.ContainsFinalizer(node, v1alpha1.FinalizerNode)
}
