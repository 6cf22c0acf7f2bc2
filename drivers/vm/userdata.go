package vm

import (
	"context"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// ensureUserData writes the Secret with the user data. If owner is nil, the VM does not exist yet, and the Secret
// gets the user data of this call. Otherwise, only missing data is added, because the VM may have read the Secret.
func (c call) ensureUserData(ctx context.Context, owner *vmv1alpha1.VirtualMachine) error {
	if c.userData == nil {
		return nil
	}
	// Another call for the same machine may also write the Secret.
	err := retry.OnError(retry.DefaultRetry, raced, func() error { return c.writeUserData(ctx, owner) })
	if apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err) {
		// The code is not InvalidArgument, because the specification is valid.
		return status.WrapError(codes.FailedPrecondition, "cannot store the user data: "+textOf(err), err)
	}
	return err
}

func raced(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || absent(err)
}

func (c call) writeUserData(ctx context.Context, owner *vmv1alpha1.VirtualMachine) error {
	want := c.userDataSecret(owner)
	have := &corev1.Secret{}
	err := c.cluster.Get(ctx, c.key, have)
	switch {
	case absent(err):
		return c.cluster.Create(ctx, want)
	case err != nil:
		return err
	case !c.ownsSecret(have):
		return status.Error(codes.AlreadyExists, fmt.Sprintf("Secret %s exists but was not created for machine %s/%s", c.key, c.identity.Namespace, c.identity.Machine))
	}
	changed := have.DeepCopy()
	changed.OwnerReferences = want.OwnerReferences
	if owner == nil || len(have.Data[userDataKey]) == 0 {
		changed.Data = want.Data
	}
	if reflect.DeepEqual(changed, have) {
		return nil
	}
	return c.cluster.Update(ctx, changed)
}

func (c call) userDataSecret(owner *vmv1alpha1.VirtualMachine) *corev1.Secret {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: c.key.Name, Namespace: c.key.Namespace, Labels: c.identity.labels(),
			Annotations: map[string]string{AnnotationIdentity: c.identity.annotation()},
		},
		Data: map[string][]byte{userDataKey: c.userData},
	}
	if owner != nil {
		secret.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: vmv1alpha1.SchemeGroupVersion.String(), Kind: vmv1alpha1.VirtualMachineKind, Name: owner.Name, UID: owner.UID,
		}}
	}
	return secret
}

func (c call) ownsSecret(secret *corev1.Secret) bool {
	made, ok := identityOf(secret)
	return ok && made == c.identity
}

// removeUserData deletes the Secret of a VM that does not exist. A concurrent creation writes the Secret again
// after it creates the VM.
func (c call) removeUserData(ctx context.Context) error {
	secret := &corev1.Secret{}
	err := c.cluster.Get(ctx, c.key, secret)
	if err == nil && c.ownsSecret(secret) {
		err = c.cluster.Delete(ctx, secret, client.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion})
	}
	if absent(err) {
		return nil
	}
	return err
}
