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

// TestAWebhookSaysNothingOfTheObject checks that the code of a webhook's denial says nothing about the object.
func TestAWebhookSaysNothingOfTheObject(t *testing.T) {
	kind := schema.GroupResource{Resource: "machines"}
	denied := func(code int32, reason metav1.StatusReason) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Reason: reason, Message: "admission webhook denied the request"}}
	}
	for name, c := range map[string]struct {
		tells           func(error) bool
		object, webhook error
	}{
		"conflict": {Conflict, apierrors.NewConflict(kind, "a", errors.New("changed")), denied(http.StatusConflict, metav1.StatusReasonConflict)},
		"gone":     {Gone, apierrors.NewNotFound(kind, "a"), denied(http.StatusNotFound, metav1.StatusReasonNotFound)},
		"taken":    {Taken, apierrors.NewAlreadyExists(kind, "a"), denied(http.StatusConflict, metav1.StatusReasonAlreadyExists)},
	} {
		t.Run(name, func(t *testing.T) {
			if !c.tells(fmt.Errorf("writing: %w", c.object)) || c.tells(c.webhook) || c.tells(errors.New("no answer")) || c.tells(nil) {
				t.Errorf("object: %t, webhook: %t", c.tells(c.object), c.tells(c.webhook))
			}
		})
	}
	if webhook := denied(http.StatusNotFound, metav1.StatusReasonNotFound); IgnoreGone(apierrors.NewNotFound(kind, "a")) != nil || !errors.Is(IgnoreGone(webhook), webhook) {
		t.Error("IgnoreGone does not distinguish deleted objects from denied requests")
	}
}
