package hostrunner

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// renewLease renews the Node's sign of life, or makes it.
func (n *node) renewLease(ctx context.Context) error {
	leases := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now := &metav1.MicroTime{Time: n.Clock.Now()}
	lease, err := leases.Get(ctx, n.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return n.createLease(ctx, now)
	}
	if err != nil {
		return err
	}
	lease.Spec.HolderIdentity = &n.Name
	lease.Spec.LeaseDurationSeconds = ptr.To(int32(leaseDuration.Seconds()))
	lease.Spec.RenewTime = now
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	return err
}

// createLease makes a lease that goes with the Node.
func (n *node) createLease(ctx context.Context, now *metav1.MicroTime) error {
	owner, err := n.client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return err // registered any moment now; this is tried again
	}
	if err != nil {
		return err
	}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name, Namespace: corev1.NamespaceNodeLease,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: owner.Name, UID: owner.UID}},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &n.Name, LeaseDurationSeconds: ptr.To(int32(leaseDuration.Seconds())), RenewTime: now,
		},
	}
	_, err = n.client.CoordinationV1().Leases(lease.Namespace).Create(ctx, lease, metav1.CreateOptions{})
	return err
}
