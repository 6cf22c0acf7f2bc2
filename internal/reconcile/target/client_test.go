package target_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestClient_RefusesUpdatesOfPartialObjects checks that an object from the cache cannot overwrite what the cache lacks.
func TestClient_RefusesUpdatesOfPartialObjects(t *testing.T) {
	s := newServer(t)
	s.open.Store(true)
	c := newCluster(t, s)
	ctx, writer := t.Context(), c.Client()
	for _, object := range []client.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pod-1"}},
	} {
		before := s.requests.Load()
		for _, err := range []error{
			writer.Update(ctx, object), writer.Status().Update(ctx, object), writer.SubResource("status").Update(ctx, object),
		} {
			if err == nil || !strings.Contains(err.Error(), "patch it instead") {
				t.Errorf("updating %T returned %v", object, err)
			}
		}
		if sent := s.requests.Load() - before; sent != 0 {
			t.Errorf("%d requests for updates of %T", sent, object)
		}
	}
	before := s.requests.Load()
	_ = writer.Update(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "token"}}) // not served
	if s.requests.Load() == before {
		t.Error("updates of complete objects are not sent")
	}
}
