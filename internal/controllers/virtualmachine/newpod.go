package virtualmachine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
)

// refusedError reports that a VM may not have a Pod.
type refusedError struct{ *cause }

// Error implements error.
func (e *refusedError) Error() string { return e.Message }

// createPod creates a Pod of a VM. All Pods of VMs are created here: hypervisors, migration targets and disk servers.
//
// The function build returns the Pod for the VM as the API server has it: with an outdated VM from the cache, a disk
// could be overwritten, and the checks would apply to another spec than that of the Pod. If the VM may not have the
// Pod, the error is a refusedError. createPod returns the VM that it read, and the Pod.
func (c *cluster) createPod(ctx context.Context, s *scope, build func(live *v1alpha1.VirtualMachine) (*corev1.Pod, error)) (*v1alpha1.VirtualMachine, *corev1.Pod, error) {
	live, err := c.confirm(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	pod, err := build(live)
	if refused, is := errors.AsType[*podspec.RefusedError](err); is {
		return nil, nil, &refusedError{causef(reasonInvalid, "%s", refused.Message)}
	}
	if err != nil {
		return nil, nil, err
	}
	if err := c.checkClaims(ctx, s, pod); err != nil {
		return nil, nil, err
	}
	c.signer.Sign(pod)
	if err := c.client.Create(ctx, pod); err != nil {
		return nil, nil, fmt.Errorf("creating pod %s: %w", pod.Name, err)
	}
	return live, pod, nil
}

// checkClaims returns a refusedError unless all claims that a new Pod mounts exist and belong to the VM. Claims of
// different VMs can have the same name: data disk b of VM a has the name of the disk of VM a-b.
func (c *cluster) checkClaims(ctx context.Context, s *scope, pod *corev1.Pod) error {
	for _, name := range podspec.Claims(pod) {
		if slices.ContainsFunc(s.claims, func(claim *corev1.PersistentVolumeClaim) bool { return claim.Name == name }) {
			continue // this pass has checked it
		}
		claim := &corev1.PersistentVolumeClaim{}
		err := c.live.Get(ctx, client.ObjectKey{Namespace: s.vm.Namespace, Name: name}, claim)
		switch {
		case apierrors.IsNotFound(err):
			return &refusedError{causef(v1alpha1.ReasonVolumeLost, "persistent volume claim %s was not found", name)}
		case err != nil:
			return fmt.Errorf("reading claim %s: %w", name, err)
		case !podstate.Owns(s.vm, claim):
			return &refusedError{causef(reasonClaimTaken, "persistent volume claim %s exists but does not belong to this virtual machine", name)}
		case !claim.DeletionTimestamp.IsZero():
			return &refusedError{causef(v1alpha1.ReasonVolumeLost, "persistent volume claim %s is being deleted", name)}
		}
	}
	return nil
}
