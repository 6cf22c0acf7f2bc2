package apierror

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestErrors_OfWebhooksDoNotMatch checks that the code of a webhook's denial does not describe the object.
func TestErrors_OfWebhooksDoNotMatch(t *testing.T) {
	kind := schema.GroupResource{Resource: "machines"}
	denied := func(code int32, reason metav1.StatusReason) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Code: code, Reason: reason, Message: "admission webhook denied the request", Details: &metav1.StatusDetails{Name: "a"},
		}}
	}
	for name, c := range map[string]struct {
		check           func(error) bool
		object, webhook error
	}{
		"conflict": {Conflict, apierrors.NewConflict(kind, "a", errors.New("changed")), denied(http.StatusConflict, metav1.StatusReasonConflict)},
		"gone":     {Gone, apierrors.NewNotFound(kind, "a"), denied(http.StatusNotFound, metav1.StatusReasonNotFound)},
		"taken":    {Taken, apierrors.NewAlreadyExists(kind, "a"), denied(http.StatusConflict, metav1.StatusReasonAlreadyExists)},
	} {
		t.Run(name, func(t *testing.T) {
			if !c.check(fmt.Errorf("writing: %w", c.object)) || c.check(c.webhook) || c.check(errors.New("no response")) || c.check(nil) {
				t.Errorf("object: %t, webhook: %t", c.check(c.object), c.check(c.webhook))
			}
		})
	}
	if webhook := denied(http.StatusNotFound, metav1.StatusReasonNotFound); IgnoreGone(apierrors.NewNotFound(kind, "a")) != nil || !errors.Is(IgnoreGone(webhook), webhook) {
		t.Error("IgnoreGone does not distinguish deleted objects from denied requests")
	}
}
