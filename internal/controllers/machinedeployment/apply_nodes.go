package machinedeployment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

// errNodes marks failures to mark nodes. They do not hold up a rollout: without the marks
// it only moves some pods once more.
var errNodes = errors.New("marking nodes")

const (
	// manyNodes are patched at the same time.
	manyNodes = 16
	// nodesWithin is the time for the nodes of one operation. Those left over come in
	// the next pass.
	nodesWithin = 10 * time.Second
)

// patchNodes brings nodes up to date. A failure is remembered in what it returns, and the
// others are patched all the same.
func (c *Controller) patchNodes(ctx context.Context, deployment *v1alpha1.MachineDeployment, op operation) error {
	limited, cancel := context.WithTimeout(ctx, nodesWithin)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(manyNodes)
	for _, change := range op.nodes {
		group.Go(func() error { return c.patchNode(limited, change) })
	}
	err := group.Wait()
	if err != nil {
		return fmt.Errorf("%w: %w", errNodes, err)
	}
	if op.topic != "" {
		c.Events.Event(deployment, corev1.EventTypeNormal, op.topic, op.reason)
	}
	ctrl.LoggerFrom(ctx).Info("Patched nodes", "why", op.reason)
	return nil
}

// forgetNodes drops what was written to the nodes of a set without machines: nobody looks at them
// any more.
func (c *Controller) forgetNodes(of []nodeOf, set *v1alpha1.MachineSet) {
	for _, n := range of {
		if controlledBy(n.machine, set) {
			c.nodes.Forget(client.ObjectKeyFromObject(n.node))
		}
	}
}

// patchNode writes a node. Only a change of its taints, which replaces their list, is
// locked: the kubelet's writes would make others fail for nothing.
func (c *Controller) patchNode(ctx context.Context, change nodeChange) error {
	// Without the status, which is most of a node and is not written: comparing it is dear.
	before := &corev1.Node{ObjectMeta: change.is.ObjectMeta, Spec: change.is.Spec}
	patch := client.StrategicMergeFrom(before)
	if !slices.EqualFunc(change.is.Spec.Taints, change.shall.Spec.Taints, sameTaint) {
		patch = client.StrategicMergeFrom(before, client.MergeFromWithOptimisticLock{})
	}
	err := c.Target.Client().Patch(ctx, change.shall, patch)
	if expectations.Gone(err) {
		return nil // it went meanwhile
	}
	if err != nil {
		return fmt.Errorf("patching node %s: %w", change.is.Name, err)
	}
	c.nodes.Wrote(change.shall)
	return nil
}
