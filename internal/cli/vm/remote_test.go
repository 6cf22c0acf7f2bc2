package vm

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/millwright-dev/millwright/api/vm/subresources"
)

// TestExplain_NotFound checks that the error for a VM that does not exist names the command that lists VMs, and that the error
// for a cluster without a VM controller is another one.
func TestExplain_NotFound(t *testing.T) {
	mistyped := explain(apierrors.NewNotFound(schema.GroupResource{Group: subresources.Group, Resource: subresources.Resource}, "web"))
	if !apierrors.IsNotFound(mistyped) || !strings.HasSuffix(mistyped.Error(), `"web" not found; "millwright vm list -A" shows all`) {
		t.Errorf("VM does not exist: %v", mistyped)
	}
	if err := explain(apierrors.NewGenericServerResponse(404, "GET", schema.GroupResource{}, "", "", 0, true)); !errors.Is(err, errNotServed) {
		t.Errorf("no VM controller: %v", err)
	}
}
