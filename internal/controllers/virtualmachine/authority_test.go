package virtualmachine

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/rotation"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/service"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// TestAuthority_DamagedIsKept checks that a controller that cannot parse its certificate authority does not replace
// it, because running hypervisors trust it, and that the error names the Secret.
func TestAuthority_DamagedIsKept(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.stop()
	key := client.ObjectKey{Namespace: w.namespace, Name: podspec.AuthoritySecret}
	other, err := identity.NewAuthority(time.Now())
	w.must(err)
	_, otherKey := other.PEM()
	for name, damage := range map[string]func(data map[string][]byte){
		"empty":                          func(data map[string][]byte) { clear(data) },
		"no key":                         func(data map[string][]byte) { delete(data, corev1.TLSPrivateKeyKey) },
		"no certificate":                 func(data map[string][]byte) { delete(data, corev1.TLSCertKey) },
		"half a certificate":             func(data map[string][]byte) { data[corev1.TLSCertKey] = data[corev1.TLSCertKey][:100] },
		"garbage":                        func(data map[string][]byte) { data[corev1.TLSPrivateKeyKey] = []byte("\x00\x1b[2J") },
		"key of another authority":       func(data map[string][]byte) { data[corev1.TLSPrivateKeyKey] = otherKey },
		"key instead of the certificate": func(data map[string][]byte) { data[corev1.TLSCertKey] = data[corev1.TLSPrivateKeyKey] },
	} {
		t.Run(name, func(t *testing.T) {
			secret := &corev1.Secret{}
			w.must(w.client.Get(t.Context(), key, secret))
			w.must(w.client.Delete(t.Context(), secret))
			secret.ObjectMeta, secret.Type = metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, corev1.SecretTypeOpaque
			good := maps.Clone(secret.Data)
			damage(secret.Data)
			w.must(w.client.Create(t.Context(), secret))
			_, err := rotation.Load(t.Context(), w.client, w.namespace)
			if !errors.Is(err, identity.ErrBadAuthority) || !strings.Contains(err.Error(), key.String()) {
				t.Errorf("the error is %v", err)
			}
			after := &corev1.Secret{}
			w.must(w.client.Get(t.Context(), key, after))
			if diff := cmp.Diff(secret, after); diff != "" {
				t.Errorf("the Secret changed (-was +is):\n%s", diff)
			}
			after.Data = good
			w.must(w.client.Update(t.Context(), after))
		})
	}
}

// TestCertificate_NotIssuedWithoutVM checks that a hypervisor whose VM is gone gets no new certificate, even if another VM of
// the same name is created.
func TestCertificate_NotIssuedWithoutVM(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.declare("a", nil)
	pod := w.awaitPod("a", "")
	token := w.token(pod, vmpb.TokenAudience)
	w.stop() // otherwise the controller would delete the Pod
	tokens := service.TokenReviewer{Client: w.client, APIReader: w.client}
	_, err := tokens.Resolve(t.Context(), token)
	w.must(err)
	w.change("a", func(vm *v1alpha1.VirtualMachine) { vm.Finalizers = nil })
	w.must(w.client.Delete(t.Context(), w.vm("a")))
	_, err = tokens.Resolve(t.Context(), token)
	wantCode(t, err, codes.PermissionDenied)
	w.declare("a", nil)
	_, err = tokens.Resolve(t.Context(), token)
	wantCode(t, err, codes.PermissionDenied)
}

func (w *testEnv) requestRotation() {
	w.Helper()
	secret := &corev1.Secret{}
	w.must(w.client.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: podspec.AuthoritySecret}, secret))
	secret.Annotations = map[string]string{v1alpha1.AnnotationRotateAuthority: ""}
	w.must(w.client.Update(w.Context(), secret))
}

// TestAuthority_RotatesWhileHypervisorsRun rotates the authority with one hypervisor that follows and one of an earlier
// version that does not, which must be replaced before the rotation continues.
func TestAuthority_RotatesWhileHypervisorsRun(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	pod, _, _ := w.running("a")
	earlier, _, _ := w.running("b")
	step := func(want string) {
		t.Helper()
		w.eventually("the rotation is "+want, func() bool { // the cache may lag behind
			w.must(w.rotation.Step(t.Context()))
			secret := &corev1.Secret{}
			w.must(w.client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: podspec.AuthoritySecret}, secret))
			return strings.HasPrefix(secret.Annotations[v1alpha1.AnnotationAuthorityRotation], want)
		})
	}
	old := w.authority.Certificate()
	w.requestRotation()
	step("Distributing: 2 of 2 hypervisors")

	follower := w.credentials(w.token(pod, vmpb.TokenAudience))
	conn, err := follower.Dial(w.endpoint, identity.Controller())
	w.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() { follower.FollowAuthorities(ctx, conn) })
	defer following.Wait()
	defer cancel()
	step("Distributing: 1 of 2 hypervisors do not trust the next authority yet: " + w.namespace + "/" + earlier.Name)
	w.clock.SetTime(w.clock.Now().Add(time.Hour))
	step("Distributing: 1 of 2")
	w.must(w.client.Delete(t.Context(), earlier))
	w.remove(earlier)
	w.awaitPod("b", earlier.Name) // trusts both authorities since its start
	step("Retiring")
	if w.authority.Certificate().Equal(old) || w.rotation.State().Phase != rotation.PhaseRetiring {
		t.Error("the new authority does not issue certificates")
	}
	w.hypervisor("a", pod, 1).report(vmpb.ReportStateRequest_STATE_RUNNING, nil) // with a certificate of the new one

	w.clock.SetTime(w.clock.Now().Add(identity.Lifetime + time.Hour))
	step("")
	if w.rotation.State().Phase != rotation.PhaseNone || bytes.Contains(w.authority.Bundle(), identity.EncodeCertificate(old)) {
		t.Error("the previous authority is still trusted")
	}
	w.awaitReady("a", reasonRunning)
}
