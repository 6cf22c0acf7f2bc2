// Package rotation replaces the certificate authority of hypervisors while they run.
//
// The authority is in a Secret. A rotation has two phases, and its whole state is in the Secret, so that any process
// can continue it. First, the next authority is in the Secret, and all hypervisors learn from the VM controller to trust
// it. When all of them do, it becomes the authority that issues certificates. The previous one is trusted until none of
// its certificates can be valid.
package rotation

import (
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/vm/identity"
)

// Keys of the Secret, in addition to tls.crt and tls.key, which are the authority that issues certificates.
const (
	// keyNextCert and keyNextKey are the authority that will issue certificates when all hypervisors trust it.
	keyNextCert = "next.crt"
	keyNextKey  = "next.key"
	// keyPreviousCert is the certificate of the authority that issued certificates before.
	keyPreviousCert = "previous.crt"
)

// content is the parsed content of the Secret.
type content struct {
	current    *identity.Authority
	next       *identity.Authority // nil unless the next authority is being distributed
	previous   *x509.Certificate   // nil unless the previous authority is still trusted
	switchedAt time.Time           // when previous issued its last certificate; zero if unknown
	requested  bool
}

// parse parses the Secret. If only the next or the previous authority is invalid, parse returns the content without
// it, together with the error. If the current one is invalid, content.current is nil. All errors wrap
// identity.ErrBadAuthority and name the keys.
func parse(secret *corev1.Secret) (content, error) {
	current, err := identity.ParseAuthority(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return content{}, fmt.Errorf("%s and %s: %w", corev1.TLSCertKey, corev1.TLSPrivateKeyKey, err)
	}
	c := content{current: current}
	_, c.requested = secret.Annotations[v1alpha1.AnnotationRotateAuthority]
	c.switchedAt, _ = time.Parse(time.RFC3339, secret.Annotations[v1alpha1.AnnotationAuthoritySwitched])
	if data := secret.Data[keyPreviousCert]; len(data) > 0 {
		if c.previous, err = identity.ParseCertificate(data); err != nil {
			return c, fmt.Errorf("%s: %w", keyPreviousCert, err)
		}
	}
	if data := secret.Data[keyNextCert]; len(data) > 0 {
		if c.next, err = identity.ParseAuthority(data, secret.Data[keyNextKey]); err != nil {
			return c, fmt.Errorf("%s and %s: %w", keyNextCert, keyNextKey, err)
		}
	}
	return c, nil
}

// authority returns the authority that signs and trusts what the content requires.
func (c content) authority() *identity.Authority {
	authority := c.current
	if c.next != nil {
		authority = authority.Trusting(c.next.Certificate())
	}
	if c.previous != nil {
		authority = authority.Trusting(c.previous)
	}
	return authority
}

// Load reads the certificate authority from its Secret. If the Secret does not exist, Load creates it in the
// namespace, which must exist. Concurrent processes get the same authority. The client must read from the API server.
//
// Load does not replace a malformed Secret, because running hypervisors trust its certificate. It then returns
// identity.ErrBadAuthority. It ignores a malformed next or previous authority.
func Load(ctx context.Context, c client.Client, namespace string) (*identity.Authority, error) {
	return load(ctx, c, namespace, func() (*identity.Authority, error) { return identity.NewAuthority(time.Now()) })
}

func load(ctx context.Context, c client.Client, namespace string, missing func() (*identity.Authority, error)) (*identity.Authority, error) {
	key := client.ObjectKey{Namespace: namespace, Name: podspec.AuthoritySecret}
	secret := &corev1.Secret{}
	err := c.Get(ctx, key, secret)
	if apierrors.IsNotFound(err) {
		secret, err = create(ctx, c, key, missing)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot load the VM certificate authority from secret %s: %w", key, err)
	}
	parsed, err := parse(secret)
	if parsed.current == nil {
		return nil, fmt.Errorf("cannot load the VM certificate authority from secret %s: %w", key, err)
	}
	return parsed.authority(), nil
}

// create creates the Secret with an authority, or reads the one that another process has created.
func create(ctx context.Context, c client.Client, key client.ObjectKey, authorityOf func() (*identity.Authority, error)) (*corev1.Secret, error) {
	authority, err := authorityOf()
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
	if apierror.Taken(err) {
		return secret, c.Get(ctx, key, secret)
	}
	return secret, err
}

// copyOf returns a new Secret with the same content, for the case that the Secret was deleted.
func copyOf(secret *corev1.Secret) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: secret.Namespace, Name: secret.Name, Labels: maps.Clone(secret.Labels), Annotations: maps.Clone(secret.Annotations),
		},
		Type: secret.Type,
		Data: maps.Clone(secret.Data),
	}
}
