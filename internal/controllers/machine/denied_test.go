package machine

import (
	"context"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

// TestMachine_DeniedStatusWriteIsNotConflict checks that a write that a webhook denies with the code of a conflict
// is treated as an error, and causes one event.
func TestMachine_DeniedStatusWriteIsNotConflict(t *testing.T) {
	h := newHarness(t)
	h.declare()
	denial := &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict,
		Message: `admission webhook "freeze.example.com" denied the request: frozen`,
	}}
	h.useClient(h.Record(interceptor.NewClient(h.control, interceptor.Funcs{
		SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
			return denial
		},
	}), indexes))
	failures := 0
	for range 10 {
		result, err := h.controller.Reconcile(t.Context(), h.Request())
		if err != nil {
			failures++
		} else if result.RequeueAfter == expectations.StaleCache {
			t.Errorf("the denial was treated as a conflict")
		}
		h.Call()
	}
	var events []string
	for _, event := range h.takeEvents() {
		if strings.Contains(event, edge.ReasonWriteDenied) {
			events = append(events, event)
		}
	}
	if failures < 2 || len(events) != 1 {
		t.Errorf("%d errors, events %q", failures, events)
	}
}
