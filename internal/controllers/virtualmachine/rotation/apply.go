package rotation

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/vm/identity"
)

// apply changes the Secret, without writing it, and reports whether it has changed. It returns an error only if no
// key can be generated.
func apply(secret *corev1.Secret, c content, next action, message string, now time.Time) (changed bool, err error) {
	changed = next != wait
	switch next {
	case begin:
		authority, err := identity.NewAuthority(now)
		if err != nil {
			return false, fmt.Errorf("creating the next authority: %w", err)
		}
		secret.Data[keyNextCert], secret.Data[keyNextKey] = authority.PEM()
		delete(secret.Annotations, v1alpha1.AnnotationRotateAuthority)
	case change:
		secret.Data[keyPreviousCert] = identity.EncodeCertificate(c.current.Certificate())
		secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey] = secret.Data[keyNextCert], secret.Data[keyNextKey]
		delete(secret.Data, keyNextCert)
		delete(secret.Data, keyNextKey)
		annotate(secret, v1alpha1.AnnotationAuthoritySwitched, now.UTC().Format(time.RFC3339))
	case date:
		annotate(secret, v1alpha1.AnnotationAuthoritySwitched, now.UTC().Format(time.RFC3339))
	case retire:
		delete(secret.Data, keyPreviousCert)
		delete(secret.Annotations, v1alpha1.AnnotationAuthoritySwitched)
	}
	if secret.Annotations[v1alpha1.AnnotationAuthorityRotation] != message {
		annotate(secret, v1alpha1.AnnotationAuthorityRotation, message)
		changed = true
	}
	return changed, nil
}

// annotate sets an annotation, or removes it if the value is empty.
func annotate(secret *corev1.Secret, name, value string) {
	if value == "" {
		delete(secret.Annotations, name)
		return
	}
	if secret.Annotations == nil {
		secret.Annotations = map[string]string{}
	}
	secret.Annotations[name] = value
}
