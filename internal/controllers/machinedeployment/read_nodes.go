package machinedeployment

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// findNodes adds the nodes to the facts, if there may be something to do about them. A
// rollout does not wait for a target that does not answer.
func (c *Controller) findNodes(ctx context.Context, f *facts) error {
	if !c.nodesMatter(*f) {
		return nil
	}
	if !c.Target.Ready() {
		f.again = targetAway
		return nil
	}
	found, fresh, err := c.readNodes(ctx, *f)
	if err != nil {
		return err
	}
	f.nodes = found
	switch {
	case !fresh:
		f.again = staleCache
	case rolledOut(*f) && len(planNodes(*f)) == 0:
		if in, some := stillProtected(*f); some {
			f.again = in
		} else {
			c.unmarked.Store(client.ObjectKeyFromObject(f.deployment), true)
		}
	}
	return nil
}

// stillProtected reports whether a rollout that is over left nodes protected, since their Machines are
// preserved, and in what time the first of these preservations ends; 0 if nothing says so.
func stillProtected(f facts) (in time.Duration, some bool) {
	for _, n := range slices.Concat(f.nodes.ofOld, f.nodes.ofCurrent) {
		if _, ours := n.node.Annotations[v1alpha1.AnnotationKeyScaleDownDisabledByMCM]; !ours {
			continue
		}
		some = true
		if expiry := n.machine.Status.CurrentStatus.PreserveExpiryTime; expiry != nil {
			in = sooner(in, expiry.Sub(f.now))
		}
	}
	return in, some
}

// nodesMatter reports whether nodes may have to be marked, or marks be taken off.
func (c *Controller) nodesMatter(f facts) bool {
	key := client.ObjectKeyFromObject(f.deployment)
	if marking(f) {
		c.unmarked.Delete(key)
	}
	_, unmarked := c.unmarked.Load(key)
	due := marking(f) || unmarking(f) || rolledOut(f) && !unmarked
	return c.Target != nil && !f.deployment.Spec.Paused && due
}

// readNodes reads the nodes of all sets in use. Fresh is that of nodesOf.
func (c *Controller) readNodes(ctx context.Context, f facts) (found *nodes, fresh bool, err error) {
	found, fresh = &nodes{protect: c.ProtectNodes}, true
	for _, set := range inUse(f) {
		read, shown, err := c.nodesOf(ctx, set)
		if err != nil {
			return nil, false, err
		}
		fresh = fresh && shown
		if set == f.current {
			found.ofCurrent = read
		} else {
			found.ofOld = append(found.ofOld, read...)
		}
	}
	return found, fresh, nil
}

// nodesOf reads the nodes of a set's Machines, those on their way out left aside, and those
// that join just now. Fresh reports whether the cache shows what was written to all of them;
// what it does not is left out.
func (c *Controller) nodesOf(ctx context.Context, set *v1alpha1.MachineSet) (found []nodeOf, fresh bool, err error) {
	machines, err := c.machines(ctx, set)
	if err != nil {
		return nil, false, err
	}
	fresh = true
	for _, machine := range machines {
		name := machine.Labels[v1alpha1.NodeLabelKey]
		if name == "" {
			continue
		}
		if !machine.DeletionTimestamp.IsZero() {
			c.nodes.Forget(client.ObjectKey{Name: name}) // it is never written again
			continue
		}
		node := &corev1.Node{}
		err := c.Target.Client().Get(ctx, client.ObjectKey{Name: name}, node, client.UnsafeDisableDeepCopy)
		switch {
		case apierrors.IsNotFound(err):
			c.nodes.Forget(client.ObjectKey{Name: name})
		case err != nil:
			return nil, false, fmt.Errorf("reading node %s: %w", name, err)
		case !c.nodes.Fresh(node):
			fresh = false
		case node.DeletionTimestamp.IsZero() && !joining(machine, node):
			found = append(found, nodeOf{machine, node})
		}
	}
	return found, fresh, nil
}

// joining reports whether a node is about to be adopted by its Machine's controller. That may
// write taints, and so fails if anybody else has written. The set's status tells when the
// node is there, which brings the next pass.
func joining(machine *v1alpha1.Machine, node *corev1.Node) bool {
	return machine.Status.CurrentStatus.Phase == v1alpha1.MachinePending && !controllerutil.ContainsFinalizer(node, v1alpha1.FinalizerNode)
}
