package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// notReady makes all nodes NotReady, and Ready again as soon as the manager has noticed it for all Machines. None may
// be replaced.
func (w *setup) notReady() phase {
	return phase{
		do: func(ctx context.Context) error {
			if err := w.setReady(ctx, corev1.ConditionFalse); err != nil {
				return err
			}
			if err := w.awaitUnavailable(ctx); err != nil {
				return err
			}
			if err := w.setReady(ctx, corev1.ConditionTrue); err != nil {
				return err
			}
			return w.settled(ctx, all)
		},
		bounds: func(p pool) bounds { return bounds{most: p.machines} },
	}
}

// replace makes all nodes NotReady until the manager has replaced some Machines because of that, and then Ready. In each
// pool, the manager may replace one Machine at a time, which is its default.
func (w *setup) replace() phase {
	return phase{
		do: func(ctx context.Context) error {
			if err := w.setReady(ctx, corev1.ConditionFalse); err != nil {
				return err
			}
			if err := w.tracker.await(ctx, func() bool { return w.tracker.gone() >= w.load.replacements }); err != nil {
				return err
			}
			if err := w.setReady(ctx, corev1.ConditionTrue); err != nil {
				return err
			}
			return w.settled(ctx, all)
		},
		bounds: func(p pool) bounds { return bounds{most: p.machines + 1, leaving: 1} },
	}
}

// awaitUnavailable waits until no Machine is available.
func (w *setup) awaitUnavailable(ctx context.Context) error {
	return w.tracker.await(ctx, func() bool {
		return !slices.ContainsFunc(w.pools, func(p pool) bool { return w.tracker.census(p).available > 0 })
	})
}

// setReady sets the Ready condition of the nodes of all Machines, as kubelets or the node lifecycle controller do.
func (w *setup) setReady(ctx context.Context, ready corev1.ConditionStatus) error {
	reason := map[corev1.ConditionStatus]string{corev1.ConditionTrue: "KubeletReady", corev1.ConditionFalse: "KubeletNotReady"}[ready]
	patch := client.RawPatch(types.StrategicMergePatchType, fmt.Appendf(nil,
		`{"status":{"conditions":[{"type":"Ready","status":%q,"reason":%q,"lastHeartbeatTime":%[3]q,"lastTransitionTime":%[3]q}]}}`,
		ready, reason, time.Now().UTC().Format(time.RFC3339)))
	var nodes []string
	for _, name := range w.tracker.nodes() {
		nodes = append(nodes, name)
	}
	slices.Sort(nodes)
	return inParallel(ctx, len(nodes), func(ctx context.Context, i int) error {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodes[i]}}
		return client.IgnoreNotFound(w.client.Status().Patch(ctx, node, patch)) // its Machine may just have been replaced
	})
}
