package explain

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// target reads the node, and what is on it if it is to be emptied.
func (r *gathering) target(ctx context.Context) {
	machine, found := r.facts.Machine, &r.facts.Target
	if r.Target == nil {
		found.None = true
		return
	}
	name := machine.Labels[v1alpha1.NodeLabelKey]
	if name == "" {
		return
	}
	node := &corev1.Node{}
	switch err := r.Target.Get(ctx, types.NamespacedName{Name: name}, node); {
	case apierrors.IsForbidden(err):
		r.unread("Node %s: %v", name, err)
		found.Unread = true
		return
	case err == nil:
		found.Node = node
	case !apierrors.IsNotFound(err):
		found.Problem = err.Error()
		return
	}
	// Kubelets and controllers write events on nodes there, which have no namespace.
	r.events(ctx, r.Target, metav1.NamespaceDefault, "Node", name)
	if found.Node != nil && !machine.DeletionTimestamp.IsZero() {
		r.load(ctx, name)
	}
}

// load reads what a drain has to take off the node.
func (r *gathering) load(ctx context.Context, node string) {
	pods := &corev1.PodList{}
	if r.list(ctx, r.Target, pods, client.MatchingFields{"spec.nodeName": node}) {
		r.facts.Target.Pods = pods.Items
	}
	seen := map[string]bool{}
	for i := range pods.Items {
		namespace := pods.Items[i].Namespace
		if seen[namespace] || !mustLeave(&pods.Items[i]) {
			continue
		}
		seen[namespace] = true
		budgets := &policyv1.PodDisruptionBudgetList{}
		if r.list(ctx, r.Target, budgets, client.InNamespace(namespace)) {
			r.facts.Target.Budgets = append(r.facts.Target.Budgets, budgets.Items...)
		}
	}
	attachments := &storagev1.VolumeAttachmentList{}
	if !r.list(ctx, r.Target, attachments) {
		return
	}
	for i := range attachments.Items {
		if attachments.Items[i].Spec.NodeName == node {
			r.facts.Target.Attachments = append(r.facts.Target.Attachments, attachments.Items[i])
		}
	}
}
