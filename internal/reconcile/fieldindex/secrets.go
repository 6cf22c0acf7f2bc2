package fieldindex

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// MergedSecret lays the data of the class's Secrets over one another. A driver gets
// nothing but data: whose Secrets these were is not its business. What is not there is no
// error: it is said in a sentence.
func MergedSecret(ctx context.Context, from client.Reader, class *v1alpha1.MachineClass) (secret *corev1.Secret, missing string, err error) {
	merged := &corev1.Secret{Data: map[string][]byte{}}
	for _, key := range SecretsOf(class) {
		if key.Namespace != class.Namespace {
			return merged, fmt.Sprintf("Secret %q of MachineClass %q must be in namespace %q, as the class is", key, class.Name, class.Namespace), nil
		}
		secret := &corev1.Secret{}
		err := from.Get(ctx, key, secret)
		if apierrors.IsNotFound(err) {
			return merged, fmt.Sprintf("Secret %q of MachineClass %q not found", key, class.Name), nil
		}
		if err != nil {
			return merged, "", fmt.Errorf("reading Secret %s of MachineClass %s: %w", key, class.Name, err)
		}
		maps.Copy(merged.Data, secret.Data)
	}
	return merged, "", nil
}
