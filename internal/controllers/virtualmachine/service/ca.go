package service

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/vm/identity"
)

// AuthoritySecret is the name of the Secret that holds the certificate authority.
const AuthoritySecret = "millwright-vm-authority"

// LoadAuthority reads the certificate authority from its Secret in a namespace, which must
// exist. Without a Secret it creates one; processes that do so at the same time get the
// same one. The client must read from the API server.
//
// A malformed Secret is an error, identity.ErrBadAuthority, and is not replaced: all
// running hypervisors trust it.
func LoadAuthority(ctx context.Context, c client.Client, namespace string) (*identity.Authority, error) {
	key := client.ObjectKey{Namespace: namespace, Name: AuthoritySecret}
	secret := &corev1.Secret{}
	err := c.Get(ctx, key, secret)
	if apierrors.IsNotFound(err) {
		secret, err = createAuthority(ctx, c, key)
	}
	if err != nil {
		return nil, fmt.Errorf("authority of virtual machines in secret %s: %w", key, err)
	}
	authority, err := identity.ParseAuthority(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, fmt.Errorf("authority of virtual machines in secret %s: %w", key, err)
	}
	return authority, nil
}

// createAuthority creates the Secret, or reads the one that another process just created.
func createAuthority(ctx context.Context, c client.Client, key client.ObjectKey) (*corev1.Secret, error) {
	authority, err := identity.NewAuthority(time.Now())
	if err != nil {
		return nil, err
	}
	certificate, private := authority.PEM()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: private},
	}
	err = c.Create(ctx, secret)
	if apierrors.IsAlreadyExists(err) {
		return secret, c.Get(ctx, key, secret)
	}
	return secret, err
}
