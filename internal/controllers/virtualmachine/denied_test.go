package virtualmachine

import (
	"context"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestVirtualMachine_DeniedWrite checks that a denial by a webhook with code 409 is not treated as a write conflict.
// The pass fails, so that it is retried with back-off, and an event contains the reason.
func TestVirtualMachine_DeniedWrite(t *testing.T) {
	w := newFakeEnv(t, newAuthority(t), fixture.VirtualMachine())
	denied := &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict, Message: `admission webhook "quota.example" denied the request: too many`,
	}}
	w.cluster.client = interceptor.NewClient(w.live, interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return denied
		},
	})
	for range 3 {
		if result, err := w.Reconcile(t.Context(), ctrl.Request{NamespacedName: fakeKey}); err == nil {
			t.Fatalf("the pass succeeded and is repeated after %v", result.RequeueAfter)
		}
	}
	events := w.cluster.events.(*record.FakeRecorder).Events
	if len(events) != 1 {
		t.Fatalf("%d events, want 1", len(events))
	}
	if event := <-events; !strings.Contains(event, "quota.example") {
		t.Errorf("the event is %q", event)
	}
}
