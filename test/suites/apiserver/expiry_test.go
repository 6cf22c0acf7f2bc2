package apiserver

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestMachine_ExpiryTimeIsValidated checks that any valid time can be stored, and that an invalid one is rejected with the path of
// the field. It would keep a manager from reading any Machine.
func TestMachine_ExpiryTimeIsValidated(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	machine := fixture.In(e.Namespace, fixture.Machine())
	must(t, e.Client.Create(t.Context(), machine))
	for value, valid := range map[string]bool{
		`"1970-01-01T00:00:00Z"`: true, `"9999-12-31T23:59:59Z"`: true, `null`: true,
		`"tomorrow"`: false, `""`: false, `"2026-02-30T00:00:00Z"`: false, `1767225600`: false, `{}`: false,
	} {
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"currentStatus":{"preserveExpiryTime":%s}}}`, value))
		err := e.Client.Status().Patch(t.Context(), machine, patch)
		switch {
		case valid && err != nil:
			t.Errorf("%s: %v", value, err)
		case !valid && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "status.currentStatus.preserveExpiryTime")):
			t.Errorf("%s returned %v", value, err)
		}
	}
}
