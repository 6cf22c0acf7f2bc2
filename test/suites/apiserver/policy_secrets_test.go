package apiserver

import (
	"maps"
	"slices"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
)

// patches are changes of a Secret, and whether the manager for Cluster API can make them.
var patches = map[string]struct {
	change func(*corev1.Secret)
	want   metav1.StatusReason
}{
	"adds its finalizer":         {func(s *corev1.Secret) { s.Finalizers = append(s.Finalizers, infrav1.SecretFinalizer) }, metav1.StatusReasonUnknown},
	"replaces another finalizer": {func(s *corev1.Secret) { s.Finalizers = []string{infrav1.SecretFinalizer} }, metav1.StatusReasonForbidden},
	"adds another finalizer":     {func(s *corev1.Secret) { s.Finalizers = append(s.Finalizers, "example.com/other") }, metav1.StatusReasonForbidden},
	"changes a value":            {func(s *corev1.Secret) { s.Data["ca.crt"] = []byte("forged") }, metav1.StatusReasonForbidden},
	"adds a value":               {func(s *corev1.Secret) { s.Data["more"] = []byte("x") }, metav1.StatusReasonForbidden},
	"removes all values":         {func(s *corev1.Secret) { s.Data = nil }, metav1.StatusReasonForbidden},
	"changes a label":            {func(s *corev1.Secret) { s.Labels = map[string]string{"a": "b"} }, metav1.StatusReasonForbidden},
	"changes an annotation":      {func(s *corev1.Secret) { s.Annotations = map[string]string{"a": "b"} }, metav1.StatusReasonForbidden},
	"makes it immutable":         {func(s *corev1.Secret) { s.Immutable = new(true) }, metav1.StatusReasonForbidden},
	"changes its owner": {func(s *corev1.Secret) {
		s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "a", UID: "b"}}
	}, metav1.StatusReasonForbidden},
}

// TestPolicy_ClusterAPIManagerOnlyPatchesItsFinalizer checks that the manager for Cluster API, whose role permits it to
// patch all Secrets, can only add and remove its own finalizer.
func TestPolicy_ClusterAPIManagerOnlyPatchesItsFinalizer(t *testing.T) {
	t.Parallel()
	e := env.New(t, changed)
	must(t, controlplane.Apply(t.Context(), e.Admin, config.Files, "policy/secret-finalizers.yaml", ""))
	manager := newClient(t, e.UserWith(t, "config/rbac/capi-role.yaml"))
	secret := secretOf(e.Namespace, "credentials", corev1.SecretTypeOpaque)
	secret.Finalizers, secret.Data = []string{"example.com/own"}, map[string][]byte{"ca.crt": []byte("ca")}
	must(t, e.Client.Create(t.Context(), secret))
	attempt := func(from *corev1.Secret, change func(*corev1.Secret)) metav1.StatusReason {
		changed := from.DeepCopy()
		change(changed)
		return apierrors.ReasonForError(manager.Patch(t.Context(), changed, client.MergeFrom(from), client.DryRunAll))
	}
	gomega.NewWithT(t).Eventually(func() metav1.StatusReason { return attempt(secret, patches["changes a value"].change) }).
		WithTimeout(env.WaitTimeout).Should(gomega.Equal(metav1.StatusReasonForbidden), "the policy takes effect")
	for _, name := range slices.Sorted(maps.Keys(patches)) {
		if got := attempt(secret, patches[name].change); got != patches[name].want {
			t.Errorf("manager %s: got reason %q, want %q", name, got, patches[name].want)
		}
	}
	held := secret.DeepCopy()
	held.Finalizers = append(held.Finalizers, infrav1.SecretFinalizer)
	must(t, e.Client.Update(t.Context(), held)) // an administrator can write anything
	if got := attempt(held, func(s *corev1.Secret) { s.Finalizers = s.Finalizers[:1] }); got != metav1.StatusReasonUnknown {
		t.Errorf("manager removes its finalizer: got reason %q", got)
	}
	e.Grant(t, "user-of-"+e.Namespace, "config/rbac/driver-vm-role.yaml")
	if got := attempt(held, patches["changes a value"].change); got != metav1.StatusReasonUnknown {
		t.Errorf("manager with the role of the driver vm changes a value: got reason %q", got)
	}
	held.Finalizers = nil
	must(t, e.Client.Update(t.Context(), held))
}
