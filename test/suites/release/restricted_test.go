package release

import (
	"os"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestComponents_PodIsRestricted checks that the API server admits the Pod of the Deployment where the Pod Security
// level "restricted" is enforced, as in the namespace of the components. Each of its settings is required for
// that, except the read-only file system, which Pod Security does not cover.
func TestComponents_PodIsRestricted(t *testing.T) {
	tier.All(t)
	p := newPlace(t)
	e := env.New(t, env.WithOwn())
	if err := controlplane.InstallCRDs(t.Context(), e.Admin, os.DirFS("testdata/cert-manager")); err != nil {
		t.Fatal(err)
	}
	p.init(e.Cluster, contract())
	key := client.ObjectKey{Namespace: "millwright-system", Name: "millwright-capi"}
	namespace, deployment := &corev1.Namespace{}, &appsv1.Deployment{}
	for _, object := range []client.Object{namespace, deployment} {
		at := key
		if object == client.Object(namespace) {
			at = client.ObjectKey{Name: key.Namespace}
		}
		if err := e.Client.Get(t.Context(), at, object); err != nil {
			t.Fatal(err)
		}
	}
	if level := namespace.Labels["pod-security.kubernetes.io/enforce"]; level != "restricted" {
		t.Errorf("the namespace enforces %q", level)
	}
	template := deployment.Spec.Template
	if !ptr.Deref(template.Spec.Containers[0].SecurityContext.ReadOnlyRootFilesystem, false) {
		t.Error("the manager may write to its root")
	}
	for name, tc := range map[string]struct {
		change  func(*corev1.PodSpec)
		refused bool
	}{
		"as it is":     {func(*corev1.PodSpec) {}, false},
		"root":         {func(spec *corev1.PodSpec) { spec.SecurityContext.RunAsUser = ptr.To[int64](0) }, true},
		"maybe root":   {func(spec *corev1.PodSpec) { spec.SecurityContext.RunAsNonRoot = nil }, true},
		"no seccomp":   {func(spec *corev1.PodSpec) { spec.SecurityContext.SeccompProfile = nil }, true},
		"capabilities": {func(spec *corev1.PodSpec) { spec.Containers[0].SecurityContext.Capabilities = nil }, true},
		"escalation":   {func(spec *corev1.PodSpec) { spec.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil }, true},
		"the host":     {func(spec *corev1.PodSpec) { spec.HostNetwork = true }, true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, GenerateName: "manager-", Labels: template.Labels},
				Spec:       *template.Spec.DeepCopy(),
			}
			tc.change(&pod.Spec)
			err := e.Client.Create(t.Context(), pod, client.DryRunAll)
			if refused := apierrors.IsForbidden(err); refused != tc.refused || err != nil && !refused {
				t.Errorf("refused: %t, want %t: %v", refused, tc.refused, err)
			}
		})
	}
}
