package apiserver

import (
	"testing"

	"github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
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

// TestPolicy_OnlyKubeletsRequestTokensForHypervisors checks that a user who can create tokens of ServiceAccounts cannot
// get one with which a hypervisor's certificate is issued, and that the kubelet of the Pod's node can.
func TestPolicy_OnlyKubeletsRequestTokensForHypervisors(t *testing.T) {
	t.Parallel()
	e := env.New(t, changed)
	must(t, controlplane.Apply(t.Context(), e.Admin, config.Files, "policy/hosts.yaml", ""))
	pod := hypervisorLike(e)
	must(t, e.Client.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}}))
	must(t, e.Client.Create(t.Context(), pod))

	kubelet, err := e.ControlPlane.UserConfig("system:node:"+pod.Spec.NodeName, "system:nodes")
	must(t, err)
	const forHypervisors, forOthers = "vm.metropolis.monogon.dev", "other"
	request := func(access *rest.Config, audience string) func() metav1.StatusReason {
		c := newClient(t, access)
		return func() metav1.StatusReason {
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "default"}}
			token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
				Audiences:      []string{audience},
				BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
			}}
			return apierrors.ReasonForError(c.SubResource("token").Create(t.Context(), account, token))
		}
	}
	user := writer(t, e, e.Namespace, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, Verbs: []string{"create"}})
	g := gomega.NewWithT(t)
	eventually := func(attempt func() metav1.StatusReason, want metav1.StatusReason, what string) {
		g.Eventually(attempt).WithTimeout(env.WaitTimeout).Should(gomega.Equal(want), what)
	}
	eventually(request(user, forOthers), metav1.StatusReasonUnknown, "the user can create tokens")
	eventually(request(user, forHypervisors), metav1.StatusReasonForbidden, "the user cannot create tokens for hypervisors")
	eventually(request(kubelet, forHypervisors), metav1.StatusReasonUnknown, "the kubelet can")
}

// hypervisorLike returns a Pod with a token for hypervisors.
func hypervisorLike(e *env.Env) *corev1.Pod {
	token := corev1.ServiceAccountTokenProjection{Audience: "vm.metropolis.monogon.dev", Path: "token"}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "hypervisor"},
		Spec: corev1.PodSpec{
			NodeName: "host-of-" + e.Namespace, ServiceAccountName: "default", Containers: []corev1.Container{{Name: "c", Image: "i"}},
			Volumes: []corev1.Volume{{Name: "identity", VolumeSource: corev1.VolumeSource{
				Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ServiceAccountToken: &token}}},
			}}},
		},
	}
}

// writer returns the access of a user who has one permission in a namespace, and no others. The API server observes it
// a moment later.
func writer(t *testing.T, e *env.Env, namespace string, rule rbacv1.PolicyRule) *rest.Config {
	t.Helper()
	user := "writer-of-" + e.Namespace
	access, err := e.ControlPlane.UserConfig(user)
	must(t, err)
	meta := metav1.ObjectMeta{Namespace: namespace, Name: user}
	for _, object := range []client.Object{
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{rule}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
		},
	} {
		must(t, e.Client.Create(t.Context(), object))
	}
	return access
}
