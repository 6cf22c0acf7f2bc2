package machinedeployment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/planner"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
)

// errNodes marks failures to mark nodes. A rollout goes on without the marks: it only moves some pods
// once more.
var errNodes = errors.New("marking nodes")

const (
	// manyNodes are patched at the same time.
	manyNodes = 16
	// nodesWithin is the time for the nodes of one operation. The others come in the next pass.
	nodesWithin = 10 * time.Second
)

// patchNodes patches nodes. It returns the first failure, and patches the others all the same.
func (p pass) patchNodes(ctx context.Context, deployment *v1alpha1.MachineDeployment, op planner.Operation) error {
	limited, cancel := context.WithTimeout(ctx, nodesWithin)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(manyNodes)
	for _, change := range op.Nodes {
		group.Go(func() error { return p.patchNode(limited, change) })
	}
	err := group.Wait()
	if err != nil {
		return fmt.Errorf("%w: %w", errNodes, err)
	}
	if op.Topic != "" {
		p.Events.Event(deployment, corev1.EventTypeNormal, op.Topic, op.Reason)
	}
	ctrl.LoggerFrom(ctx).Info("Patched nodes", "why", op.Reason)
	return nil
}

// forgetNodes drops what was written to the nodes of a set without replicas: they are not read any more.
func (p pass) forgetNodes(of []planner.Node, set *v1alpha1.MachineSet) {
	for _, n := range of {
		if metav1.IsControlledBy(n.Machine, set) {
			p.memory.nodes.Forget(client.ObjectKeyFromObject(n.Node))
		}
	}
}

// patchNode writes a node. Only a change of its taints, which replaces their list, is locked: the
// kubelet's writes would make others fail for nothing.
func (p pass) patchNode(ctx context.Context, change planner.NodeChange) error {
	// Without the status, which is most of a node and is not written: comparing it is dear.
	before := &corev1.Node{ObjectMeta: change.Old.ObjectMeta, Spec: change.Old.Spec}
	patch := client.StrategicMergeFrom(before)
	if !slices.EqualFunc(change.Old.Spec.Taints, change.New.Spec.Taints, planner.SameTaint) {
		patch = client.StrategicMergeFrom(before, client.MergeFromWithOptimisticLock{})
	}
	err := p.Target.Client().Patch(ctx, change.New, patch)
	if apierror.Gone(err) {
		return nil // it was deleted meanwhile
	}
	if err != nil {
		return fmt.Errorf("patching node %s: %w", change.Old.Name, err)
	}
	p.memory.nodes.Wrote(change.New)
	return nil
}
