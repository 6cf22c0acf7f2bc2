package apiserver

import (
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
)

// secretOf returns a Secret of a type in a namespace.
func secretOf(namespace, name string, kind corev1.SecretType) *corev1.Secret {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: kind}
	if kind == corev1.SecretTypeServiceAccountToken {
		secret.Annotations = map[string]string{corev1.ServiceAccountNameKey: "clusterrole-aggregation-controller"}
	}
	return secret
}

func newClient(t *testing.T, access *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(access, client.Options{Scheme: env.NewScheme()})
	must(t, err)
	return c
}

// TestPolicy_ManagerOnlyWritesBootstrapTokens checks that the manager, with the shipped role in the target cluster,
// can only create and delete bootstrap tokens in kube-system. Otherwise, it could create a token of any
// ServiceAccount there. The policy does not affect others.
func TestPolicy_ManagerOnlyWritesBootstrapTokens(t *testing.T) {
	t.Parallel()
	e := env.New(t, changed)
	must(t, controlplane.Apply(t.Context(), e.Admin, config.Files, "policy/bootstrap-tokens.yaml", ""))
	manager := newClient(t, e.UserWith(t, "config/rbac/target-role.yaml"))
	suffix := e.Namespace
	forged := secretOf(metav1.NamespaceSystem, "forged-"+suffix, corev1.SecretTypeServiceAccountToken)
	attempt := func(secret *corev1.Secret) metav1.StatusReason {
		return apierrors.ReasonForError(manager.Create(t.Context(), secret.DeepCopy(), client.DryRunAll))
	}
	gomega.NewWithT(t).Eventually(func() metav1.StatusReason { return attempt(forged) }).
		WithTimeout(env.WaitTimeout).Should(gomega.Equal(metav1.StatusReasonForbidden), "the policy takes effect")

	for name, test := range map[string]struct {
		name string
		kind corev1.SecretType
		want metav1.StatusReason
	}{
		"bootstrap token":                    {"bootstrap-token-abcdef", corev1.SecretTypeBootstrapToken, metav1.StatusReasonUnknown},
		"token of a ServiceAccount":          {"forged-" + suffix, corev1.SecretTypeServiceAccountToken, metav1.StatusReasonForbidden},
		"such a token with a permitted name": {"bootstrap-token-" + suffix, corev1.SecretTypeServiceAccountToken, metav1.StatusReasonForbidden},
		"opaque Secret, permitted name":      {"bootstrap-token-" + suffix, corev1.SecretTypeOpaque, metav1.StatusReasonForbidden},
		"without a type":                     {"bootstrap-token-" + suffix, "", metav1.StatusReasonForbidden},
		"bootstrap token with another name":  {"kubeadm-certs", corev1.SecretTypeBootstrapToken, metav1.StatusReasonForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			if got := attempt(secretOf(metav1.NamespaceSystem, test.name, test.kind)); got != test.want {
				t.Errorf("creating it: got reason %q, want %q", got, test.want)
			}
		})
	}
	t.Run("delete", func(t *testing.T) {
		other := secretOf(metav1.NamespaceSystem, "other-"+suffix, corev1.SecretTypeOpaque)
		token := secretOf(metav1.NamespaceSystem, "bootstrap-token-fedcba", corev1.SecretTypeBootstrapToken)
		for _, secret := range []*corev1.Secret{other, token} {
			must(t, e.Client.Create(t.Context(), secret)) // an administrator can create both
		}
		if err := manager.Delete(t.Context(), other); !apierrors.IsForbidden(err) {
			t.Errorf("deleting another Secret: got %v, want Forbidden", err)
		}
		must(t, manager.Delete(t.Context(), token))
		must(t, e.Client.Delete(t.Context(), other))
	})
	t.Run("others", func(t *testing.T) {
		other := newClient(t, writer(t, e, metav1.NamespaceSystem, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create"}}))
		gomega.NewWithT(t).Eventually(func() error { // the authorizer observes the binding
			return other.Create(t.Context(), secretOf(metav1.NamespaceSystem, "written-"+suffix, corev1.SecretTypeOpaque), client.DryRunAll)
		}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
	})
}
